-- name: recent_history
-- What each topic got since a time, by the timestamps of its live extents: an extent that began before counts with
-- the part of its span that lies after. Reads every extent with a timestamp since then; for a report now and then.
SELECT e.topic_id,
       count(DISTINCT e.partition),
       coalesce(sum((e.last_offset - e.base_offset + 1) * recent.part), 0)::double precision,
       min(greatest(e.min_timestamp, %(since_ms)s)),
       sum(e.length)::bigint,
       sum(e.record_count)::bigint,
       coalesce(sum(e.record_count) FILTER (WHERE e.unique_keys), 0)::bigint,
       count(*) FILTER (WHERE f.kind = 'ingestion'),
       coalesce(sum(e.record_count) FILTER (WHERE f.kind = 'ingestion'), 0)::bigint
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
