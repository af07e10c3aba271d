-- name: share_topics
-- Return the settings of a job's topics, and lock them against changes until the transaction ends.
SELECT topic_id, config FROM topics
WHERE topic_id = ANY (%(topic_ids)s::uuid[]) AND deleted_ms IS NULL
ORDER BY topic_id
FOR SHARE;

-- name: lock_partitions
-- Lock a job's partitions, in the order that every transaction uses. Return also the max_timestamp_so_far of
-- the extent before the job's first one, from which that of the outputs continues.
SELECT p.topic_id, p.partition, p.log_start_offset, p.first_dirty_offset, p.exactness, p.has_transactions,
       coalesce((
           SELECT e.max_timestamp_so_far FROM extents AS e
           WHERE e.topic_id = p.topic_id AND e.partition = p.partition AND e.base_offset < requested.base_offset
           ORDER BY e.base_offset DESC
           LIMIT 1
       ), -1) AS max_timestamp_so_far
FROM unnest(
    %(topic_ids)s::uuid[],
    %(partitions)s::integer[],
    %(base_offsets)s::bigint[]
) AS requested (topic_id, partition, base_offset)
JOIN partitions AS p USING (topic_id, partition)
ORDER BY p.topic_id, p.partition
FOR UPDATE OF p;

-- name: remove_inputs
-- Remove the extents that a job claims, except those of partitions that the publication leaves out; return their base
-- offsets by partition. The locks of the partitions keep retention and other publications from removing them.
WITH removed AS (
    DELETE FROM extents AS e
    USING job_files AS j, files AS f
    WHERE j.job_id = %(job_id)s AND f.file_id = j.file_id AND e.file_id = j.file_id
      AND (e.job_id = j.job_id OR e.job_id IS NULL AND f.job_id = j.job_id)
      AND NOT EXISTS (
          SELECT FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS omitted (topic_id, partition)
          WHERE omitted.topic_id = e.topic_id AND omitted.partition = e.partition
      )
    RETURNING e.topic_id, e.partition, e.base_offset
)
SELECT topic_id, partition, array_agg(base_offset) AS base_offsets FROM removed GROUP BY topic_id, partition;

-- name: remove_controls
-- Remove the control batches in the ranges of a job.
DELETE FROM extents AS e
USING unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(base_offsets)s::bigint[], %(upper_offsets)s::bigint[])
    AS v (topic_id, partition, base_offset, upper_offset)
WHERE e.topic_id = v.topic_id AND e.partition = v.partition
  AND e.base_offset >= v.base_offset AND e.base_offset < v.upper_offset AND e.control_producer_id IS NOT NULL;

-- name: shrink_aborted
-- After a job's inputs and control batches were removed, let each aborted transaction that overlaps its range begin
-- with the first ingestion file that may still have records of it, and delete it if there is none. Return those whose
-- control batch was removed although records are left: the job may not be published then. Note the time.
WITH overlapping AS (
    SELECT a.topic_id, a.partition, a.last_offset, a.first_offset, v.base_offset, v.upper_offset, (
        SELECT e.base_offset FROM extents AS e JOIN files AS f USING (file_id)
        WHERE e.topic_id = a.topic_id AND e.partition = a.partition AND f.kind = 'ingestion'
          AND e.last_offset >= a.first_offset AND e.base_offset < a.last_offset
          AND e.base_offset >= coalesce((
              SELECT max(x.base_offset) FROM extents AS x
              WHERE x.topic_id = a.topic_id AND x.partition = a.partition AND x.base_offset <= a.first_offset
          ), 0)
        ORDER BY e.base_offset
        LIMIT 1
    ) AS next_offset
    FROM unnest(
        %(topic_ids)s::uuid[], %(partitions)s::integer[], %(base_offsets)s::bigint[], %(upper_offsets)s::bigint[]
    ) AS v (topic_id, partition, base_offset, upper_offset)
    JOIN aborted_transactions AS a USING (topic_id, partition)
    WHERE a.last_offset >= v.base_offset AND a.first_offset < v.upper_offset
),
removed AS (
    DELETE FROM aborted_transactions AS a USING overlapping AS o
    WHERE a.topic_id = o.topic_id AND a.partition = o.partition AND a.last_offset = o.last_offset
      AND o.next_offset IS NULL
),
shrunk AS (
    UPDATE aborted_transactions AS a SET first_offset = o.next_offset
    FROM overlapping AS o
    WHERE a.topic_id = o.topic_id AND a.partition = o.partition AND a.last_offset = o.last_offset
      AND o.next_offset > o.first_offset
),
noted AS (
    UPDATE partitions AS p SET transactions_removed_ms = %(now_ms)s
    FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS v (topic_id, partition)
    WHERE p.topic_id = v.topic_id AND p.partition = v.partition
)
SELECT topic_id, partition, last_offset FROM overlapping
WHERE next_offset IS NOT NULL AND last_offset >= base_offset AND last_offset < upper_offset;

-- name: insert_outputs
-- Insert the extents of compacted files.
INSERT INTO extents (
    topic_id, partition, base_offset, last_offset, record_count, min_timestamp, max_timestamp,
    max_timestamp_so_far, file_id, position, length, index_position, index_length, offset_shift, leader_epoch,
    unique_keys, committed_ms
)
SELECT topic_id, partition, base_offset, last_offset, record_count, min_timestamp, max_timestamp,
       max_timestamp_so_far, file_id, position, length, index_position, index_length, 0, leader_epoch,
       unique_keys <> 0, committed_ms
FROM unnest(
    %(topic_ids)s::uuid[],
    %(file_ids)s::uuid[],
    %(partitions)s::integer[],
    %(base_offsets)s::bigint[],
    %(last_offsets)s::bigint[],
    %(record_counts)s::bigint[],
    %(min_timestamps)s::bigint[],
    %(max_timestamps)s::bigint[],
    %(max_timestamps_so_far)s::bigint[],
    %(positions)s::bigint[],
    %(lengths)s::bigint[],
    %(index_positions)s::bigint[],
    %(index_lengths)s::bigint[],
    %(leader_epochs)s::integer[],
    %(unique_keys)s::bigint[],
    %(committed)s::bigint[]
) AS v (
    topic_id, file_id, partition, base_offset, last_offset, record_count, min_timestamp, max_timestamp,
    max_timestamp_so_far, position, length, index_position, index_length, leader_epoch, unique_keys, committed_ms
);

-- name: add_to_partitions
-- Add the changes of a publication to the partitions' totals, before its outputs are inserted. Where the
-- clean part grew, the dirty part begins with the first extent after it. Extents that the clean part now
-- covers, but the job did not read, are no longer dirty.
UPDATE partitions AS p
SET first_dirty_offset = v.first_dirty_offset,
    live_bytes = p.live_bytes + v.live_bytes,
    dirty_bytes = p.dirty_bytes + v.dirty_bytes - (
        SELECT coalesce(sum(e.length), 0) FROM extents AS e
        WHERE e.topic_id = v.topic_id AND e.partition = v.partition AND e.base_offset < v.first_dirty_offset
          AND e.last_offset >= p.first_dirty_offset AND e.last_offset < v.first_dirty_offset
          AND v.first_dirty_offset > p.first_dirty_offset
          AND e.base_offset >= coalesce((
              SELECT max(x.base_offset) FROM extents AS x
              WHERE x.topic_id = p.topic_id AND x.partition = p.partition AND x.base_offset <= p.first_dirty_offset
          ), 0)
    ),
    ingestion_extents = p.ingestion_extents + v.ingestion_extents,
    compacted_extents = p.compacted_extents + v.compacted_extents,
    exactness = v.exactness,
    dirty_since_ms = CASE WHEN v.first_dirty_offset = p.first_dirty_offset THEN p.dirty_since_ms ELSE (
        SELECT e.committed_ms FROM extents AS e
        WHERE e.topic_id = v.topic_id AND e.partition = v.partition AND e.base_offset >= v.first_dirty_offset
          AND e.control_producer_id IS NULL
        ORDER BY e.base_offset
        LIMIT 1
    ) END
FROM unnest(
    %(topic_ids)s::uuid[],
    %(partitions)s::integer[],
    %(first_dirty_offsets)s::bigint[],
    %(live_bytes)s::bigint[],
    %(dirty_bytes)s::bigint[],
    %(ingestion_extents)s::bigint[],
    %(compacted_extents)s::bigint[],
    %(exactness)s::text[]
) AS v (
    topic_id, partition, first_dirty_offset, live_bytes, dirty_bytes, ingestion_extents, compacted_extents, exactness
)
WHERE p.topic_id = v.topic_id AND p.partition = v.partition;
