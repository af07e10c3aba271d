-- name: advance_log_starts
-- Advance log start offsets of partitions, never back and never past their high watermarks. The rows are
-- locked in the order that every transaction uses.
WITH locked AS (
    SELECT p.topic_id, p.partition, requested.log_start
    FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(offsets)s::bigint[])
        AS requested (topic_id, partition, log_start)
    JOIN partitions AS p USING (topic_id, partition)
    ORDER BY p.topic_id, p.partition
    FOR UPDATE OF p
)
UPDATE partitions AS p
SET log_start_offset = greatest(p.log_start_offset, least(l.log_start, p.high_watermark)),
    last_stable_offset = greatest(p.last_stable_offset, least(l.log_start, p.high_watermark))
FROM locked AS l
WHERE p.topic_id = l.topic_id AND p.partition = l.partition
RETURNING p.topic_id, p.partition, p.log_start_offset;

-- name: due_partitions
-- Return the partitions of a page whose oldest extent has expired, and the page's last partition. The cost is
-- one probe of the extents' primary key per partition.
SELECT topic_id, partition, expired
FROM (
    SELECT p.topic_id, p.partition, coalesce(oldest.expired, false) AS expired,
           lead(p.partition) OVER (ORDER BY p.topic_id, p.partition) IS NULL AS last
    FROM (
        SELECT topic_id, partition, log_start_offset, live_bytes
        FROM partitions
        WHERE (topic_id, partition) > (%(after_topic)s, %(after_partition)s)
        ORDER BY topic_id, partition
        LIMIT %(limit)s
    ) AS p
    LEFT JOIN unnest(
        %(topic_ids)s::uuid[],
        %(retention_ms)s::bigint[],
        %(retention_bytes)s::bigint[]
    ) AS rule (topic_id, retention_ms, retention_bytes) USING (topic_id)
    LEFT JOIN LATERAL (
        SELECT e.last_offset < p.log_start_offset
               OR rule.retention_bytes >= 0 AND p.live_bytes - e.length >= rule.retention_bytes
               OR rule.retention_ms >= 0
                  AND coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
                      - CASE WHEN e.max_timestamp >= 0 THEN e.max_timestamp ELSE e.committed_ms END
                      > rule.retention_ms AS expired
        FROM extents AS e
        WHERE e.topic_id = p.topic_id AND e.partition = p.partition
        ORDER BY e.base_offset
        LIMIT 1
    ) AS oldest ON true
) AS page
WHERE expired OR last
ORDER BY topic_id, partition;

-- name: share_topics
-- Return the settings of topics, and lock them against changes until the transaction ends.
SELECT topic_id, config FROM topics
WHERE topic_id = ANY (%(topic_ids)s::uuid[]) AND deleted_ms IS NULL
ORDER BY topic_id
FOR SHARE;

-- name: lock_partitions
-- Lock partitions, in the order that every transaction uses; return their first dirty offsets.
SELECT p.topic_id, p.partition, p.first_dirty_offset
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS requested (topic_id, partition)
JOIN partitions AS p USING (topic_id, partition)
ORDER BY p.topic_id, p.partition
FOR UPDATE OF p;

-- name: remove_expired
-- Remove a bounded number of the oldest extents of each partition: the longest prefix of extents that lie
-- below the log start offset, or leave at least the bytes to keep, or are too old. Extents that reach the
-- last stable offset stay.
WITH doomed AS (
    SELECT requested.topic_id, requested.partition, candidate.base_offset
    FROM unnest(
        %(topic_ids)s::uuid[],
        %(partitions)s::integer[],
        %(retention_ms)s::bigint[],
        %(retention_bytes)s::bigint[]
    ) AS requested (topic_id, partition, retention_ms, retention_bytes)
    JOIN partitions AS p USING (topic_id, partition)
    CROSS JOIN LATERAL (
        SELECT e.base_offset,
               bool_and(e.last_offset < p.last_stable_offset AND (
                   e.last_offset < p.log_start_offset
                   OR requested.retention_bytes >= 0 AND p.live_bytes - e.bytes >= requested.retention_bytes
                   OR requested.retention_ms >= 0 AND %(now_ms)s::bigint - e.stamp > requested.retention_ms
               )) OVER (ORDER BY e.base_offset) AS expired
        FROM (
            SELECT base_offset, last_offset, sum(length) OVER (ORDER BY base_offset) AS bytes,
                   CASE WHEN max_timestamp >= 0 THEN max_timestamp ELSE committed_ms END AS stamp
            FROM (
                SELECT base_offset, last_offset, length, max_timestamp, committed_ms
                FROM extents
                WHERE topic_id = requested.topic_id AND partition = requested.partition
                ORDER BY base_offset
                LIMIT %(limit)s
            ) AS oldest
        ) AS e
    ) AS candidate
    WHERE candidate.expired
),
locked AS (
    SELECT e.topic_id, e.partition, e.base_offset, e.file_id
    FROM doomed JOIN extents AS e USING (topic_id, partition, base_offset)
    ORDER BY e.topic_id, e.partition, e.base_offset
    FOR UPDATE OF e
)
DELETE FROM extents AS e USING locked AS l LEFT JOIN files AS f USING (file_id)
WHERE e.topic_id = l.topic_id AND e.partition = l.partition AND e.base_offset = l.base_offset
RETURNING e.topic_id, e.partition, e.last_offset, e.length, e.file_id, e.job_id IS NOT NULL AS claimed,
          coalesce(f.kind, 'control') AS kind;

-- name: remove_aborted
-- Remove the aborted transactions whose control batches lie below the new log start offsets.
DELETE FROM aborted_transactions AS a
USING unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(log_start_offsets)s::bigint[])
    AS v (topic_id, partition, log_start_offset)
WHERE a.topic_id = v.topic_id AND a.partition = v.partition AND a.last_offset < v.log_start_offset;

-- name: advance_partitions
-- Advance log start offsets past removed extents, and subtract these from the partitions' totals.
UPDATE partitions AS p
SET log_start_offset = greatest(p.log_start_offset, v.log_start_offset),
    last_stable_offset = greatest(p.last_stable_offset, v.log_start_offset),
    live_bytes = p.live_bytes - v.live_bytes,
    dirty_bytes = p.dirty_bytes - v.dirty_bytes,
    ingestion_extents = p.ingestion_extents - v.ingestion_extents,
    compacted_extents = p.compacted_extents - v.compacted_extents,
    dirty_since_ms = CASE WHEN p.dirty_bytes = v.dirty_bytes THEN NULL ELSE (
        SELECT e.committed_ms FROM extents AS e
        WHERE e.topic_id = p.topic_id AND e.partition = p.partition AND e.last_offset >= p.first_dirty_offset
          AND e.control_producer_id IS NULL
          AND e.base_offset >= coalesce((
              SELECT max(x.base_offset) FROM extents AS x
              WHERE x.topic_id = p.topic_id AND x.partition = p.partition AND x.base_offset <= p.first_dirty_offset
          ), 0)
        ORDER BY e.base_offset
        LIMIT 1
    ) END
FROM unnest(
    %(topic_ids)s::uuid[],
    %(partitions)s::integer[],
    %(log_start_offsets)s::bigint[],
    %(live_bytes)s::bigint[],
    %(dirty_bytes)s::bigint[],
    %(ingestion_extents)s::bigint[],
    %(compacted_extents)s::bigint[]
) AS v (topic_id, partition, log_start_offset, live_bytes, dirty_bytes, ingestion_extents, compacted_extents)
WHERE p.topic_id = v.topic_id AND p.partition = v.partition;
