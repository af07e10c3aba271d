-- name: topic_growth
-- Return what each topic received since a time, by the timestamps of its live extents. An extent that began
-- before counts in proportion to the part of its time range that lies after. Reads every extent with a
-- timestamp since then, so it is for occasional reports.
SELECT e.topic_id,
       count(DISTINCT e.partition) AS partitions,
       coalesce(sum((e.last_offset - e.base_offset + 1) * recent.part), 0)::double precision AS records,
       min(greatest(e.min_timestamp, %(since_ms)s)) AS first_ms,
       sum(e.length)::bigint AS live_bytes,
       sum(e.record_count)::bigint AS live_records,
       coalesce(sum(e.record_count) FILTER (WHERE e.unique_keys), 0)::bigint AS unique_records,
       count(*) FILTER (WHERE f.kind = 'ingestion') AS ingestion_extents,
       coalesce(sum(e.record_count) FILTER (WHERE f.kind = 'ingestion'), 0)::bigint AS ingestion_records
FROM extents AS e
JOIN files AS f USING (file_id)
CROSS JOIN LATERAL (
    SELECT (e.max_timestamp - greatest(e.min_timestamp, %(since_ms)s) + 1)::double precision
           / (e.max_timestamp - e.min_timestamp + 1) AS part
) AS recent
WHERE e.max_timestamp >= %(since_ms)s AND e.length > 0
  AND EXISTS (SELECT FROM partitions AS p WHERE p.topic_id = e.topic_id AND p.partition = e.partition)
GROUP BY e.topic_id
ORDER BY e.topic_id;
