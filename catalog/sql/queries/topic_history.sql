-- name: topic_growth
-- Return what each topic received since a time, by the commits of its live extents. The records of an ingestion
-- extent were committed at once. Those of a compacted extent were committed from its own time on, which is that of
-- the first one, until the next extent's or its file's; of these, the part after the given time counts. Reads every
-- extent, so it is for occasional reports.
WITH committed AS (
    SELECT e.topic_id, e.partition, e.base_offset, e.last_offset, e.record_count, e.length, e.unique_keys, f.kind,
           e.committed_ms AS first_ms,
           CASE WHEN f.kind = 'ingestion' THEN e.committed_ms ELSE greatest(
               e.committed_ms,
               least(f.committed_ms, lead(e.committed_ms) OVER (
                   PARTITION BY e.topic_id, e.partition ORDER BY e.base_offset
               ))
           ) END AS last_ms
    FROM extents AS e
    JOIN files AS f USING (file_id)
    WHERE EXISTS (SELECT FROM partitions AS p WHERE p.topic_id = e.topic_id AND p.partition = e.partition)
)
SELECT topic_id,
       count(DISTINCT partition) AS partitions,
       coalesce(sum((last_offset - base_offset + 1) * recent.part), 0)::double precision AS records,
       min(greatest(first_ms, %(since_ms)s)) AS first_ms,
       sum(length)::bigint AS live_bytes,
       sum(record_count)::bigint AS live_records,
       coalesce(sum(record_count) FILTER (WHERE unique_keys), 0)::bigint AS unique_records,
       count(*) FILTER (WHERE kind = 'ingestion') AS ingestion_extents,
       coalesce(sum(record_count) FILTER (WHERE kind = 'ingestion'), 0)::bigint AS ingestion_records
FROM committed
CROSS JOIN LATERAL (
    SELECT (last_ms - greatest(first_ms, %(since_ms)s) + 1)::double precision / (last_ms - first_ms + 1) AS part
) AS recent
WHERE last_ms >= %(since_ms)s AND length > 0
GROUP BY topic_id
ORDER BY topic_id;
