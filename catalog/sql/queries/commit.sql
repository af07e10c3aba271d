-- name: lock_file_id
-- Serialize concurrent attempts to commit one file.
SELECT pg_advisory_xact_lock(hashtextextended(%(file_id)s::text, 0));

-- name: find_result
-- Return the stored outcomes of the file's commit; null if they have expired, no row if the file was not
-- committed. Outcomes may outlive the file: a file without appended runs is garbage at once, and must not be
-- committed again.
SELECT r.sections, coalesce(f.committed_ms, r.committed_ms) AS committed_ms
FROM (SELECT %(file_id)s::uuid AS file_id) AS requested
LEFT JOIN files AS f USING (file_id)
LEFT JOIN commit_results AS r USING (file_id)
WHERE f.file_id IS NOT NULL OR r.file_id IS NOT NULL;

-- name: lock_session
-- Return the session's state, the catalog's time, its epoch, whether the server continues the history that the
-- epoch belongs to (it has all that this process has seen of it: a position of the WAL, and the last commit, which
-- may be null), and the durable position of its WAL. The lock prevents fencing during the commit, but not
-- heartbeats: the state belongs to a unique index, so only a change of the state conflicts with it.
SELECT s.state, coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms,
       c.epoch,
       c.is_current AND c.inserted >= %(flushed)s AND (
           %(last_commit)s::uuid IS NULL
           OR EXISTS (SELECT FROM commit_results AS r WHERE r.file_id = %(last_commit)s::uuid)
           OR EXISTS (SELECT FROM files AS f WHERE f.file_id = %(last_commit)s::uuid)
       ) AS is_current,
       c.flushed
FROM sessions AS s CROSS JOIN current_incarnation AS c
WHERE s.session_id = %(session_id)s
FOR KEY SHARE OF s;

-- name: hold_session
-- Lock the session of several files, before their partitions: it is not fenced before the transaction ends.
SELECT FROM sessions WHERE session_id = %(session_id)s FOR KEY SHARE;

-- name: awaits_readoption
-- Return whether a gap in a producer's sequence may still be filled: acknowledged commits wait to be readopted, or an
-- agent that lived when the incarnation began may still report some.
SELECT EXISTS (SELECT FROM lost_commits WHERE outcome IS NULL AND acknowledged)
    OR EXISTS (
        SELECT FROM sessions
        WHERE unsettled = 'unverified'
          AND closed_ms > coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
              - %(period_ms)s::bigint
    ) AS awaits;

-- name: lock_transactions
-- Lock the transactional ids of a commit's producers, in the order that every transaction uses, so that no transaction
-- ends before the commit.
SELECT producer_id, transactional_id, producer_epoch, state = 'ongoing' AS is_ongoing
FROM transactional_ids
WHERE producer_id = ANY (%(producer_ids)s::bigint[])
ORDER BY producer_id
FOR NO KEY UPDATE;

-- name: read_transaction_partitions
-- Return the first offsets of the transactions of a commit's producers, in the partitions that these have added.
-- `number` is the ordinal (from 1) in the parameters.
SELECT requested.number, t.first_offset
FROM unnest(
    %(topic_ids)s::uuid[],
    %(partitions)s::integer[],
    %(producer_ids)s::bigint[]
) WITH ORDINALITY AS requested (topic_id, partition, producer_id, number)
JOIN transaction_partitions AS t USING (topic_id, partition, producer_id);

-- name: begin_transactions
-- Begin the transactions of locked transactional ids.
UPDATE transactional_ids
SET state = 'ongoing', started_ms = %(now_ms)s, updated_ms = %(now_ms)s, bumps_epoch = false,
    last_producer_id = -1, last_epoch = -1
WHERE producer_id = ANY (%(producer_ids)s::bigint[]);

-- name: open_partitions
-- Record the first offsets of transactions in partitions, after these were advanced.
WITH opened AS (
    INSERT INTO transaction_partitions AS t (producer_id, topic_id, partition, first_offset)
    SELECT (%(producer_ids)s::bigint[])[i], (%(topic_ids)s::uuid[])[i], (%(partitions)s::integer[])[i],
           (%(first_offsets)s::bigint[])[i]
    FROM generate_subscripts(%(partitions)s::integer[], 1) AS i
    ON CONFLICT (producer_id, topic_id, partition) DO UPDATE
    SET first_offset = coalesce(t.first_offset, excluded.first_offset)
)
UPDATE partitions AS p
SET unstable_offset = least(p.unstable_offset, v.first_offset),
    last_stable_offset = greatest(p.log_start_offset, least(p.unstable_offset, v.first_offset)),
    has_transactions = true
FROM (
    SELECT topic_id, partition, min(first_offset) AS first_offset
    FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(first_offsets)s::bigint[])
        AS given (topic_id, partition, first_offset)
    GROUP BY topic_id, partition
) AS v
WHERE p.topic_id = v.topic_id AND p.partition = v.partition;

-- name: lock_partitions
-- Lock the partitions of a commit, in the order that every transaction uses. `number` is a partition's
-- ordinal (from 1) in the parameters.
SELECT requested.number, p.log_start_offset, p.log_end_offset, p.leader_epoch, p.max_timestamp, p.first_new_producer_id,
       p.has_transactions::integer AS has_transactions
FROM unnest(
    %(topic_ids)s::uuid[],
    %(partitions)s::integer[]
) WITH ORDINALITY AS requested (topic_id, partition, number)
JOIN partitions AS p USING (topic_id, partition)
ORDER BY p.topic_id, p.partition
FOR UPDATE OF p;

-- name: read_producers
-- Return the states of a commit's producers. `number` is the ordinal (from 1) in the parameters.
SELECT requested.number, p.producer_epoch, p.batches
FROM unnest(
    %(topic_ids)s::uuid[],
    %(partitions)s::integer[],
    %(producer_ids)s::bigint[]
) WITH ORDINALITY AS requested (topic_id, partition, producer_id, number)
JOIN producers AS p USING (topic_id, partition, producer_id);

-- name: insert_file
-- Insert a file. A file without extents is dead from the start.
INSERT INTO files (
    file_id, object_name, kind, size, directory_length, owner_id, committed_ms, live_extents,
    initial_bytes, live_bytes, format_version, required_features, kernel_digest, dead_ms
)
VALUES (
    %(file_id)s, %(object_name)s, %(kind)s, %(size)s, %(directory_length)s, %(owner_id)s, %(now_ms)s,
    %(extents)s::bigint, %(initial_bytes)s::bigint, %(live_bytes)s::bigint,
    %(format_version)s::smallint, %(required_features)s, %(kernel_digest)s,
    CASE WHEN %(extents)s::bigint = 0 THEN %(now_ms)s::bigint END
);

-- name: insert_result
-- Store the outcomes for a retry. Each commit deletes a few expired ones, so that they do not accumulate. This is no
-- separate statement, because a small commit costs little else than its statements. Of a parameter, PostgreSQL would
-- expect a tenth of all rows. It would scan them, or plan the statement again for each commit.
WITH expired AS (
    DELETE FROM commit_results
    WHERE file_id IN (
        SELECT r.file_id FROM commit_results AS r
        WHERE r.committed_ms < %(expired_before_ms)s
        ORDER BY r.committed_ms
        LIMIT 4
        FOR UPDATE SKIP LOCKED
    )
)
INSERT INTO commit_results (file_id, committed_ms, sections) VALUES (%(file_id)s, %(now_ms)s, %(sections)s);

-- name: advance_partitions
-- Advance the log end offset of each partition and add to its totals. This statement and those below read
-- arrays by subscript, because unnest over many arrays materializes each of them and takes several times as
-- long. This one unnests a single array: PostgreSQL expects ten rows of it or knows their number, and looks the
-- partitions up in the index. Of generate_subscripts it expects 1,000 rows, for which it scans all partitions.
UPDATE partitions AS p
SET log_end_offset = v.log_end_offset,
    high_watermark = v.log_end_offset,
    last_stable_offset = greatest(p.log_start_offset, least(p.unstable_offset, v.log_end_offset)),
    max_timestamp = v.max_timestamp,
    leader_epoch = %(leader_epoch)s,
    live_bytes = p.live_bytes + v.bytes,
    dirty_bytes = p.dirty_bytes + v.bytes,
    dirty_since_ms = coalesce(p.dirty_since_ms, %(now_ms)s::bigint),
    ingestion_extents = p.ingestion_extents + v.extents
FROM (
    SELECT (%(topic_ids)s::uuid[])[i] AS topic_id,
           partition,
           (%(log_end_offsets)s::bigint[])[i] AS log_end_offset,
           (%(max_timestamps)s::bigint[])[i] AS max_timestamp,
           (%(bytes)s::bigint[])[i] AS bytes,
           (%(extents)s::bigint[])[i] AS extents
    FROM unnest(%(partitions)s::integer[]) WITH ORDINALITY AS given (partition, i)
) AS v
WHERE p.topic_id = v.topic_id AND p.partition = v.partition;

-- name: begin_epochs
-- Record the first offsets of a leader epoch in the partitions that receive their first records in it.
INSERT INTO leader_epochs (topic_id, partition, leader_epoch, start_offset)
SELECT (%(topic_ids)s::uuid[])[i], (%(partitions)s::integer[])[i], %(leader_epoch)s, (%(start_offsets)s::bigint[])[i]
FROM generate_subscripts(%(partitions)s::integer[], 1) AS i
ON CONFLICT DO NOTHING;

-- name: remove_old_epochs
-- Remove the leader epochs that end before the log start, in partitions that begin a new one.
DELETE FROM leader_epochs AS old
USING unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS v (topic_id, partition)
JOIN partitions AS p USING (topic_id, partition)
WHERE old.topic_id = p.topic_id AND old.partition = p.partition
  AND old.leader_epoch < (
      SELECT max(e.leader_epoch) FROM leader_epochs AS e
      WHERE e.topic_id = p.topic_id AND e.partition = p.partition AND e.start_offset <= p.log_start_offset
  );

-- name: insert_extents
-- Insert the extents of an ingestion file.
INSERT INTO extents (
    topic_id, partition, base_offset, last_offset, record_count, min_timestamp, max_timestamp,
    max_timestamp_so_far, file_id, position, length, index_position, index_length, offset_shift, leader_epoch,
    unique_keys, committed_ms
)
SELECT (%(topic_ids)s::uuid[])[i],
       (%(partitions)s::integer[])[i],
       (%(base_offsets)s::bigint[])[i],
       (%(last_offsets)s::bigint[])[i],
       (%(record_counts)s::bigint[])[i],
       (%(min_timestamps)s::bigint[])[i],
       (%(max_timestamps)s::bigint[])[i],
       (%(max_timestamps_so_far)s::bigint[])[i],
       %(file_id)s,
       (%(positions)s::bigint[])[i],
       (%(lengths)s::bigint[])[i],
       0,
       0,
       (%(offset_shifts)s::bigint[])[i],
       (%(leader_epochs)s::integer[])[i],
       false,
       %(now_ms)s
FROM generate_subscripts(%(partitions)s::integer[], 1) AS i;

-- name: write_producers
-- Store the last batches of producers. Most of them exist, and an update writes a third less WAL than an insert that
-- finds a conflict, because that locks the row first. A producer that expires meanwhile is inserted.
WITH v AS MATERIALIZED (
    SELECT (%(topic_ids)s::uuid[])[i] AS topic_id,
           (%(partitions)s::integer[])[i] AS partition,
           (%(producer_ids)s::bigint[])[i] AS producer_id,
           (%(producer_epochs)s::integer[])[i]::smallint AS producer_epoch,
           batches
    FROM unnest(%(batches)s::bytea[]) WITH ORDINALITY AS v (batches, i)
), updated AS (
    UPDATE producers AS p
    SET producer_epoch = v.producer_epoch, batches = v.batches, updated_ms = %(now_ms)s
    FROM v
    WHERE p.topic_id = v.topic_id AND p.partition = v.partition AND p.producer_id = v.producer_id
    RETURNING p.topic_id, p.partition, p.producer_id
)
INSERT INTO producers (topic_id, partition, producer_id, producer_epoch, batches, updated_ms)
SELECT topic_id, partition, producer_id, producer_epoch, batches, %(now_ms)s
FROM v
WHERE NOT EXISTS (
    SELECT FROM updated AS u
    WHERE u.topic_id = v.topic_id AND u.partition = v.partition AND u.producer_id = v.producer_id
)
ON CONFLICT (topic_id, partition, producer_id) DO UPDATE
SET producer_epoch = excluded.producer_epoch, batches = excluded.batches, updated_ms = excluded.updated_ms;
