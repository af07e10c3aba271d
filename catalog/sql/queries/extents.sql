-- name: extents_from_offset
-- Return the extent that covers an offset and the extents after it, up to a number of extents and of bytes.
-- The first extent may exceed the number of bytes. The primary key leads to it; no earlier extent is read.
SELECT topic_id, partition, base_offset, last_offset, record_count, min_timestamp, max_timestamp, file_id,
       object_name, kind, format_version, required_features, kernel_digest, position, length, index_position,
       index_length, offset_shift, leader_epoch, unique_keys, committed_ms
FROM (
    SELECT e.*, f.object_name, f.kind, f.format_version, f.required_features, f.kernel_digest,
           sum(e.length) OVER (ORDER BY e.base_offset) - e.length AS bytes_before
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
-- Find the first extent whose max_timestamp_so_far reaches a timestamp. That column never decreases along the
-- log, so a binary search over base offsets works: about forty probes of the primary key for any partition.
-- All extents before `low` are too old; the extent at `high` is not too old, or `high` is the log end offset.
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

-- name: page_of_timestamp
-- Search a page of extents from an offset on. Return the base offset of the first extent with a record at or
-- after a timestamp, and the offset of the next page (null after the last page).
WITH page AS (
    SELECT base_offset, last_offset, max_timestamp
    FROM extents
    WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND base_offset >= %(offset)s
    ORDER BY base_offset
    LIMIT %(page)s
)
SELECT (SELECT min(base_offset) FROM page WHERE max_timestamp >= %(timestamp)s) AS base_offset,
       (SELECT max(last_offset) + 1 FROM page HAVING count(*) = %(page)s) AS next_offset;

-- name: latest_timestamp
-- Return the largest timestamp that a partition ever had. Its record may have been removed.
SELECT max_timestamp FROM partitions WHERE topic_id = %(topic_id)s AND partition = %(partition)s;

-- name: latest_live_timestamp
-- Return the largest timestamp in a partition's live extents; reads all of them.
SELECT coalesce(max(max_timestamp), -1) AS max_timestamp FROM extents
WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND record_count > 0;
