-- name: extents_from
-- The extent that covers an offset and those after it: as many as asked for, and no more bytes than asked for
-- beyond the first. The key's index leads to the first one; nothing before it is looked at.
SELECT topic_id, partition, base_offset, last_offset, record_count, min_timestamp, max_timestamp, file_id,
       object_name, kind, position, length, index_position, index_length, offset_shift, leader_epoch, unique_keys,
       committed_ms
FROM (
    SELECT e.*, f.object_name, f.kind, sum(e.length) OVER (ORDER BY e.base_offset) - e.length AS bytes_before
    FROM (
        SELECT *
        FROM extents
        WHERE topic_id = %(topic_id)s AND partition = %(partition)s
          AND base_offset >= coalesce((
              SELECT base_offset FROM extents
              WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND base_offset <= %(offset)s
              ORDER BY base_offset DESC
              LIMIT 1
          ), 0)
          AND last_offset >= %(offset)s
        ORDER BY base_offset
        LIMIT %(max_extents)s
    ) AS e
    JOIN files AS f USING (file_id)
    WHERE EXISTS (SELECT FROM partitions WHERE topic_id = %(topic_id)s AND partition = %(partition)s)
) AS bounded
WHERE bytes_before = 0 OR bytes_before + length <= %(max_bytes)s
ORDER BY base_offset;

-- name: bisect_timestamp
-- The base offset of the first extent whose max_timestamp_so_far reaches a timestamp. That column never falls
-- along the log, so this halves the span of base offsets until one is left: some forty probes of the key's index
-- at most, whatever the partition's size. Of `low` it is known that all before it is too old, of `high` that it
-- is not too old, or the end.
WITH RECURSIVE search (low, high) AS (
    SELECT p.log_start_offset, p.log_end_offset
    FROM partitions AS p
    WHERE p.topic_id = %(topic_id)s AND p.partition = %(partition)s
    UNION ALL
    SELECT CASE WHEN probe.max_timestamp_so_far >= %(timestamp)s THEN s.low ELSE probe.last_offset + 1 END,
           CASE WHEN probe.max_timestamp_so_far >= %(timestamp)s THEN probe.base_offset ELSE s.high END
    FROM search AS s
    CROSS JOIN LATERAL (
        SELECT e.base_offset, e.last_offset, e.max_timestamp_so_far
        FROM extents AS e
        WHERE e.topic_id = %(topic_id)s AND e.partition = %(partition)s
          AND e.base_offset <= s.low + (s.high - s.low) / 2
        ORDER BY e.base_offset DESC
        LIMIT 1
    ) AS probe
    WHERE s.low < s.high
)
SELECT low, high FROM search ORDER BY high - low LIMIT 1;

-- name: latest_timestamp
-- The largest timestamp that a partition ever had: kept by commits, so it may be that of a record that is gone.
SELECT max_timestamp FROM partitions WHERE topic_id = %(topic_id)s AND partition = %(partition)s;

-- name: latest_live_timestamp
-- The largest timestamp of what a partition has now; looks at all its extents.
SELECT coalesce(max(max_timestamp), -1) FROM extents
WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND record_count > 0;

-- name: page_of_timestamp
-- Of a bounded page of extents from an offset on: the first that holds a record at or after a timestamp, and
-- where the next page begins (null when there is none).
WITH page AS (
    SELECT base_offset, last_offset, max_timestamp
    FROM extents
    WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND base_offset >= %(offset)s
    ORDER BY base_offset
    LIMIT %(page)s
)
SELECT (SELECT min(base_offset) FROM page WHERE max_timestamp >= %(timestamp)s),
       (SELECT max(last_offset) + 1 FROM page HAVING count(*) = %(page)s);

-- name: announce
-- Tells watchers which partitions grew. There is nothing to make durable, so nothing waits for the disk while the
-- lock is held that all notifying transactions share.
SELECT set_config('synchronous_commit', 'off', true), pg_notify(%(channel)s::text, payload)
FROM unnest(%(payloads)s::text[]) AS payload;
