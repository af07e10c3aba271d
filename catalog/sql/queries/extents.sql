-- name: extents_from_offsets
-- Return extents of several partitions in the order of the arrays: of each, the extent that covers its offset and
-- the extents after it, up to its share of the bytes. A share is what the partitions before left of max_bytes, at
-- most the partition's max_bytes, and at least its ahead_bytes, which are not charged. The first extent of a
-- partition may exceed its share. The search ends when max_bytes or max_extents are used up, and reads about as many
-- rows as it returns: within a partition, `past` finds the first extent after the share.
WITH RECURSIVE looked_up (number, bytes_left, extents_left, found) AS (
    SELECT 0, %(max_bytes)s::bigint, %(max_extents)s::bigint, NULL::extents[]
    UNION ALL
    SELECT looked_up.number + 1, bytes_left - least(greatest(wanted.max_bytes, 1), page.bytes),
           extents_left - page.extents, page.found
    FROM looked_up
    CROSS JOIN LATERAL (
        SELECT topic_id, partition, log_offset, max_bytes,
               greatest(least(max_bytes, bytes_left), ahead_bytes) AS share,
               least(extents_left, %(max_extents_of_one)s::bigint) AS most,
               coalesce((
                   SELECT e.base_offset FROM extents AS e
                   WHERE e.topic_id = requested.topic_id AND e.partition = requested.partition
                     AND e.base_offset <= log_offset
                   ORDER BY e.base_offset DESC
                   LIMIT 1
               ), 0) AS first
        FROM (
            SELECT (%(topic_ids)s::uuid[])[number + 1], (%(partitions)s::integer[])[number + 1],
                   (%(offsets)s::bigint[])[number + 1], (%(max_bytes_of)s::bigint[])[number + 1],
                   (%(ahead_bytes_of)s::bigint[])[number + 1]
        ) AS requested (topic_id, partition, log_offset, max_bytes, ahead_bytes)
        OFFSET 0
    ) AS wanted
    CROSS JOIN LATERAL (
        SELECT (
            SELECT e.base_offset
            FROM (
                SELECT base_offset, length, sum(length) OVER (
                           ORDER BY base_offset ROWS UNBOUNDED PRECEDING
                       ) AS bytes
                FROM (
                    SELECT base_offset, length FROM extents
                    WHERE topic_id = wanted.topic_id AND partition = wanted.partition
                      AND base_offset >= wanted.first AND last_offset >= wanted.log_offset
                    ORDER BY base_offset
                    LIMIT wanted.most
                ) AS near
            ) AS e
            WHERE e.bytes > e.length AND e.bytes > wanted.share
            LIMIT 1
        ) AS base_offset
        OFFSET 0
    ) AS past
    CROSS JOIN LATERAL (
        SELECT array_agg(e.extent ORDER BY e.base_offset) AS found, count(*) AS extents,
               coalesce(sum(e.length), 0)::bigint AS bytes
        FROM (
            SELECT each AS extent, each.base_offset, each.length
            FROM extents AS each
            WHERE topic_id = wanted.topic_id AND partition = wanted.partition
              AND base_offset >= wanted.first AND last_offset >= wanted.log_offset
              AND base_offset < coalesce(past.base_offset, 9223372036854775807)
            ORDER BY base_offset
            LIMIT wanted.most
        ) AS e
        WHERE EXISTS (
            SELECT FROM partitions AS p WHERE p.topic_id = wanted.topic_id AND p.partition = wanted.partition
        )
    ) AS page
    WHERE looked_up.number < cardinality(%(topic_ids)s::uuid[]) AND extents_left > 0
      AND (bytes_left > 0 OR bytes_left = %(max_bytes)s)
)
SELECT looked_up.number, e.topic_id, e.partition, e.base_offset, e.last_offset, e.record_count, e.min_timestamp,
       e.max_timestamp, e.file_id, f.object_name, f.kind, f.format_version, f.required_features, f.kernel_digest,
       e.position, e.length, e.index_position, e.index_length, e.offset_shift, e.leader_epoch, e.unique_keys,
       e.committed_ms, e.control_producer_id, e.control_producer_epoch, e.control_commits
FROM looked_up
CROSS JOIN LATERAL unnest(looked_up.found) AS e
LEFT JOIN LATERAL (SELECT * FROM files WHERE files.file_id = e.file_id OFFSET 0) AS f ON true
WHERE f.file_id IS NOT NULL OR e.control_producer_id IS NOT NULL
ORDER BY looked_up.number, e.base_offset;

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
-- Return the largest timestamp in a partition's live extents that begin at an offset or later; reads all of
-- them.
SELECT coalesce(max(max_timestamp), -1) AS max_timestamp FROM extents
WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND base_offset >= %(offset)s AND record_count > 0;
