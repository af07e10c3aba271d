-- name: advance_log_start
-- Moves a partition's log start forward, never back and never past the high watermark.
UPDATE partitions
SET log_start_offset = greatest(log_start_offset, least(%(offset)s, high_watermark)),
    last_stable_offset = greatest(last_stable_offset, least(%(offset)s, high_watermark))
WHERE topic_id = %(topic_id)s AND partition = %(partition)s
RETURNING log_start_offset;

-- name: lock_partition
-- Locks a partition and says where its log and its dirty part begin.
SELECT log_start_offset, first_dirty_offset FROM partitions
WHERE topic_id = %(topic_id)s AND partition = %(partition)s
FOR UPDATE;

-- name: remove_expired
-- Removes a bounded number of extents that lie below the log start, oldest first.
WITH expired AS (
    SELECT topic_id, partition, base_offset FROM extents
    WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND base_offset < %(log_start_offset)s
      AND last_offset < %(log_start_offset)s
    ORDER BY base_offset
    LIMIT %(limit)s
    FOR UPDATE
)
DELETE FROM extents AS e USING expired AS x, files AS f
WHERE e.topic_id = x.topic_id AND e.partition = x.partition AND e.base_offset = x.base_offset
  AND f.file_id = e.file_id
RETURNING e.file_id, e.job_id IS NOT NULL, e.last_offset, e.length, f.kind;

-- name: subtract_from_partition
-- Takes removed extents off a partition's sums.
UPDATE partitions AS p
SET live_bytes = live_bytes - %(live_bytes)s,
    dirty_bytes = dirty_bytes - %(dirty_bytes)s,
    ingestion_extents = ingestion_extents - %(ingestion_extents)s,
    compacted_extents = compacted_extents - %(compacted_extents)s,
    dirty_since_ms = CASE WHEN dirty_bytes = %(dirty_bytes)s THEN NULL ELSE (
        SELECT e.committed_ms FROM extents AS e
        WHERE e.topic_id = p.topic_id AND e.partition = p.partition AND e.last_offset >= p.first_dirty_offset
          AND e.base_offset >= coalesce((
              SELECT max(x.base_offset) FROM extents AS x
              WHERE x.topic_id = p.topic_id AND x.partition = p.partition AND x.base_offset <= p.first_dirty_offset
          ), 0)
        ORDER BY e.base_offset
        LIMIT 1
    ) END
WHERE topic_id = %(topic_id)s AND partition = %(partition)s;
