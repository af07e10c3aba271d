-- name: correct_beginning
-- Let the current epoch begin one delay from now, if it has begun later than that: the clock was ahead at its beginning.
-- Otherwise no topic would be removed until that time. The delay is added because the clock may be behind only now: so
-- a step back by at most the delay shortens nothing.
UPDATE catalog_incarnation SET started_ms = %(now_ms)s::bigint + %(delay_ms)s::bigint
WHERE started_ms > %(now_ms)s::bigint + %(delay_ms)s::bigint;

-- name: pick_deleted_topic
-- Lock one topic that was deleted before a time and still has rows; skip topics that another transaction has
-- locked, and local topics that are marked as purged.
-- A failover may have lost the undeletion of a topic that is not marked yet. Its agents bring it back before their
-- sessions are settled, or else its operator before the time has passed since the failover.
SELECT topic_id FROM topics
WHERE (CASE WHEN config ->> 'storage.mode' = 'local' THEN purged_ms END) IS NULL AND deleted_ms <= %(before_ms)s
  AND (
      purged_ms IS NOT NULL
      OR EXISTS (SELECT FROM catalog_incarnation WHERE started_ms <= %(before_ms)s)
      AND NOT EXISTS (SELECT FROM sessions WHERE unsettled IS NOT NULL)
  )
ORDER BY (CASE WHEN config ->> 'storage.mode' = 'local' THEN purged_ms END), deleted_ms
LIMIT 1
FOR UPDATE SKIP LOCKED;

-- name: pick_purged_local_topic
-- Lock one local topic that was marked as purged before a time; skip topics that another transaction has locked.
-- It stays until then, because its agents have to learn that it is purged.
SELECT topic_id FROM topics
WHERE (CASE WHEN config ->> 'storage.mode' = 'local' THEN purged_ms END) <= %(local_before_ms)s
  AND deleted_ms IS NOT NULL
ORDER BY (CASE WHEN config ->> 'storage.mode' = 'local' THEN purged_ms END), deleted_ms
LIMIT 1
FOR UPDATE SKIP LOCKED;

-- name: begin_purge
-- Record that the removal of a deleted topic's rows has begun: from now on it cannot be undeleted.
UPDATE topics SET purged_ms = %(now_ms)s WHERE topic_id = %(topic_id)s AND purged_ms IS NULL
RETURNING coalesce(config ->> 'storage.mode', 'object') = 'local' AS is_local;

-- name: remove_extents_of_topic
-- Remove a bounded number of a deleted topic's extents, in the order of the key; return counts by file.
WITH doomed AS (
    SELECT topic_id, partition, base_offset FROM extents
    WHERE topic_id = %(topic_id)s
    ORDER BY partition, base_offset
    LIMIT %(limit)s
    FOR UPDATE
),
removed AS (
    DELETE FROM extents AS e USING doomed AS d
    WHERE e.topic_id = d.topic_id AND e.partition = d.partition AND e.base_offset = d.base_offset
    RETURNING e.file_id, e.job_id, e.length
)
SELECT file_id, count(*) AS extents, count(job_id) AS claimed_extents, sum(length)::bigint AS length
FROM removed
GROUP BY file_id
ORDER BY file_id;

-- name: lock_files
-- Lock files in the order of their ids, as every transaction does that changes their counts.
SELECT file_id FROM files WHERE file_id = ANY (%(file_ids)s::uuid[]) ORDER BY file_id FOR UPDATE;

-- name: subtract_from_files
-- Subtract removed extents from the counts of their files. `claimed` are those that name a job; a job may claim the
-- whole file instead. A file without live extents is dead from now on.
UPDATE files AS f
SET live_extents = f.live_extents - v.removed,
    claimed_extents = CASE WHEN f.job_id IS NULL THEN f.claimed_extents - v.claimed
                           ELSE f.live_extents - v.removed END,
    live_bytes = f.live_bytes - v.bytes,
    dead_ms = CASE WHEN f.live_extents = v.removed THEN %(now_ms)s::bigint END
FROM unnest(
    %(file_ids)s::uuid[],
    %(removed)s::bigint[],
    %(claimed)s::bigint[],
    %(bytes)s::bigint[]
) AS v (file_id, removed, claimed, bytes)
WHERE f.file_id = v.file_id;

-- name: remove_producers_of_topic
-- Remove a bounded number of producers of a deleted topic.
DELETE FROM producers
WHERE (topic_id, partition, producer_id) IN (
    SELECT topic_id, partition, producer_id FROM producers WHERE topic_id = %(topic_id)s LIMIT %(limit)s
);

-- name: remove_gaps_of_topic
-- Remove a bounded number of the gaps in the sequences of a deleted topic's producers.
DELETE FROM sequence_gaps
WHERE (topic_id, partition, producer_id, producer_epoch, first_sequence) IN (
    SELECT topic_id, partition, producer_id, producer_epoch, first_sequence FROM sequence_gaps
    WHERE topic_id = %(topic_id)s
    LIMIT %(limit)s
);

-- name: remove_offsets_of_topic
-- Remove a bounded number of the offsets that groups have committed in a deleted topic.
DELETE FROM committed_offsets
WHERE (group_id, topic_id, partition) IN (
    SELECT group_id, topic_id, partition FROM committed_offsets WHERE topic_id = %(topic_id)s LIMIT %(limit)s
);

-- name: remove_aborted_of_topic
-- Remove a bounded number of the aborted transactions of a deleted topic.
DELETE FROM aborted_transactions
WHERE (topic_id, partition, last_offset) IN (
    SELECT topic_id, partition, last_offset FROM aborted_transactions WHERE topic_id = %(topic_id)s LIMIT %(limit)s
);

-- name: remove_partitions_of_topic
-- Remove a bounded number of the rows that a deleted topic would need to come back.
DELETE FROM deleted_partitions
WHERE (topic_id, partition) IN (
    SELECT topic_id, partition FROM deleted_partitions WHERE topic_id = %(topic_id)s LIMIT %(limit)s
);

-- name: remove_topic
-- Remove the row of a deleted topic.
DELETE FROM topics WHERE topic_id = %(topic_id)s AND deleted_ms IS NOT NULL;

-- name: dead_files
-- Return a page of the objects that may be deleted, oldest first: dead since before the given time, not read by
-- an open job, and without an attempt to delete them that failed a short time ago.
SELECT file_id, object_name, kind, size, owner_id, dead_ms
FROM files AS f
WHERE dead_ms IS NOT NULL AND dead_ms < %(before_ms)s AND (dead_ms, file_id) > (%(after_ms)s, %(after_id)s)
  AND (retry_ms IS NULL
       OR retry_ms <= coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint))
  AND NOT EXISTS (SELECT FROM job_files AS j WHERE j.file_id = f.file_id)
ORDER BY dead_ms, file_id
LIMIT %(limit)s;

-- name: postpone_files
-- Record that dead files could not be deleted. The pause before the next attempt doubles with each failure.
UPDATE files
SET failures = failures + 1,
    retry_ms = %(now_ms)s + least(%(max_pause_ms)s, %(first_pause_ms)s * 2::bigint ^ least(failures, 30))::bigint
WHERE file_id = ANY (%(file_ids)s::uuid[]) AND dead_ms IS NOT NULL;

-- name: delete_files
-- Delete the rows of dead files whose objects were deleted.
DELETE FROM files AS f
WHERE file_id = ANY (%(file_ids)s::uuid[]) AND dead_ms IS NOT NULL
  AND NOT EXISTS (SELECT FROM job_files AS j WHERE j.file_id = f.file_id);

-- name: known_files
-- Return a page of the files below a prefix, by object name.
SELECT file_id, object_name, kind, size, owner_id, dead_ms
FROM files
WHERE object_name > %(after)s AND object_name >= %(prefix)s AND object_name < %(prefix)s || chr(1114111)
ORDER BY object_name
LIMIT %(limit)s;
