-- name: lock_transactional_ids
-- Lock transactional ids against commits and other changes, in the order in which commits lock them; no row of those
-- that do not exist. Also return the catalog's time, its epoch, and whether the server continues the history that the
-- epoch belongs to, as `lock_session` does.
SELECT t.transactional_id, t.producer_id, t.producer_epoch, t.last_producer_id, t.last_epoch, t.timeout_ms, t.state, t.bumps_epoch,
       t.started_ms, t.has_local_partitions,
       coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms,
       c.epoch,
       c.is_current AND c.inserted >= %(flushed)s AND (
           %(last_commit)s::uuid IS NULL
           OR EXISTS (SELECT FROM commit_results AS r WHERE r.file_id = %(last_commit)s::uuid)
           OR EXISTS (SELECT FROM files AS f WHERE f.file_id = %(last_commit)s::uuid)
       ) AS is_current
FROM transactional_ids AS t CROSS JOIN current_incarnation AS c
WHERE t.transactional_id = ANY(%(transactional_ids)s::text[])
ORDER BY t.producer_id
FOR NO KEY UPDATE OF t;

-- name: earlier_releases
-- Return whether an agent runs that ignores transactions, because it would show their records too early, and whether
-- processes that do not know a schema version may use the catalog.
SELECT EXISTS (SELECT FROM sessions WHERE state = 'active' AND NOT knows_transactions) AS have_agents,
       EXISTS (SELECT FROM schema_version WHERE min_version < %(version)s) AS are_admitted;

-- name: lock_registrations
-- Let registrations of sessions wait until the transaction ends: they lock the incarnation, too.
SELECT FROM catalog_incarnation FOR UPDATE;

-- name: exclude_earlier_releases
-- Exclude processes that do not know a schema version.
UPDATE schema_version SET min_version = %(version)s WHERE min_version < %(version)s;

-- name: insert_transactional_id
-- Insert a transactional id with a producer id that was never assigned before; no row if it exists, or if the server
-- continues on another history.
INSERT INTO transactional_ids (transactional_id, producer_id, producer_epoch, timeout_ms, updated_ms)
SELECT %(transactional_id)s, nextval('producer_ids'), 0, %(timeout_ms)s,
       coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
FROM current_incarnation WHERE is_current
ON CONFLICT DO NOTHING
RETURNING producer_id;

-- name: update_transactional_id
-- Store the state of a locked transactional id.
UPDATE transactional_ids
SET producer_id = %(producer_id)s, producer_epoch = %(producer_epoch)s, last_producer_id = %(last_producer_id)s,
    last_epoch = %(last_epoch)s, timeout_ms = %(timeout_ms)s, state = %(state)s, bumps_epoch = %(bumps_epoch)s,
    started_ms = %(started_ms)s, updated_ms = %(now_ms)s
WHERE transactional_id = %(transactional_id)s;

-- name: add_partitions
-- Add partitions to an ongoing transaction.
INSERT INTO transaction_partitions (producer_id, topic_id, partition)
SELECT %(producer_id)s, topic_id, partition
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS added (topic_id, partition)
ON CONFLICT DO NOTHING;

-- name: added_partitions
-- Return the partitions of an ongoing transaction.
SELECT topic_id, partition FROM transaction_partitions WHERE producer_id = %(producer_id)s
UNION ALL
SELECT topic_id, partition FROM local_transaction_partitions WHERE producer_id = %(producer_id)s AND commits IS NULL;

-- name: add_group
-- Add a group to an ongoing transaction.
INSERT INTO transaction_groups (producer_id, group_id) VALUES (%(producer_id)s, %(group_id)s) ON CONFLICT DO NOTHING;

-- name: lock_group
-- Lock a group against changes of its claim, as an ordinary offset commit does. Return also whether the transaction
-- has the group, and the topics that do not exist; no row if another coordinator has claimed the group.
SELECT generation,
       EXISTS (
           SELECT FROM transaction_groups AS t WHERE t.producer_id = %(producer_id)s AND t.group_id = %(group_id)s
       ) AS is_added,
       ARRAY(
           SELECT DISTINCT topic_id FROM unnest(%(topic_ids)s::uuid[]) AS given (topic_id)
           WHERE NOT EXISTS (SELECT FROM topics AS t WHERE t.topic_id = given.topic_id AND t.deleted_ms IS NULL)
       ) AS deleted_topic_ids
FROM consumer_groups
WHERE group_id = %(group_id)s AND claim_id = %(claim_id)s
FOR SHARE;

-- name: add_offsets
-- Store offsets that a transaction commits when it ends.
INSERT INTO pending_offsets (
    group_id, topic_id, partition, producer_id, committed_offset, leader_epoch, metadata, commit_number
)
SELECT %(group_id)s, topic_id, partition, %(producer_id)s, committed_offset, leader_epoch, metadata,
       (SELECT nextval('offset_commits'))
FROM unnest(
    %(topic_ids)s::uuid[], %(partitions)s::integer[], %(offsets)s::bigint[], %(leader_epochs)s::integer[],
    %(metadata)s::bytea[]
) AS given (topic_id, partition, committed_offset, leader_epoch, metadata)
JOIN topics USING (topic_id)
WHERE deleted_ms IS NULL
ORDER BY topic_id, partition
ON CONFLICT (group_id, topic_id, partition, producer_id) DO UPDATE
SET committed_offset = EXCLUDED.committed_offset, leader_epoch = EXCLUDED.leader_epoch, metadata = EXCLUDED.metadata,
    commit_number = EXCLUDED.commit_number;

-- name: lock_partitions
-- Lock the partitions of transactions, in the order that every transaction uses. Earlier statements have locked the
-- transactional ids, so no commit adds a partition from now on.
SELECT p.topic_id, p.partition
FROM transaction_partitions AS t JOIN partitions AS p USING (topic_id, partition)
WHERE t.producer_id = ANY(%(producer_ids)s::bigint[])
ORDER BY p.topic_id, p.partition
FOR UPDATE OF p;

-- name: end_transaction
-- End a transaction in all its partitions and groups, whose rows earlier statements have locked: write the control
-- batches at the log ends, record aborted offsets, move last stable offsets, commit or drop pending offsets, and set
-- the state of the transactional id. Return the partitions that changed.
WITH ended AS (
    DELETE FROM transaction_partitions WHERE producer_id = %(producer_id)s
    RETURNING topic_id, partition, first_offset
),
moved AS (
    UPDATE partitions AS p
    SET log_end_offset = p.log_end_offset + 1,
        high_watermark = p.log_end_offset + 1,
        unstable_offset = others.first_offset,
        last_stable_offset = greatest(p.log_start_offset, coalesce(others.first_offset, p.log_end_offset + 1)),
        leader_epoch = %(epoch)s,
        has_transactions = true
    FROM ended AS e
    CROSS JOIN LATERAL (
        SELECT min(t.first_offset) AS first_offset FROM transaction_partitions AS t
        WHERE t.topic_id = e.topic_id AND t.partition = e.partition AND t.producer_id <> %(producer_id)s
          AND t.first_offset IS NOT NULL
    ) AS others
    WHERE p.topic_id = e.topic_id AND p.partition = e.partition
    RETURNING p.topic_id, p.partition, p.log_end_offset - 1 AS end_offset, p.last_stable_offset, p.max_timestamp,
              e.first_offset
),
marked AS (
    INSERT INTO extents (
        topic_id, partition, base_offset, last_offset, record_count, min_timestamp, max_timestamp,
        max_timestamp_so_far, file_id, position, length, index_position, index_length, offset_shift, leader_epoch,
        unique_keys, committed_ms, control_producer_id, control_producer_epoch, control_commits
    )
    SELECT topic_id, partition, end_offset, end_offset, 0, -1, -1, max_timestamp,
           '00000000-0000-0000-0000-000000000000', 0, 0, 0, 0, 0, %(epoch)s, false, %(now_ms)s,
           %(producer_id)s, %(control_epoch)s, %(commits)s
    FROM moved
),
epochs AS (
    INSERT INTO leader_epochs (topic_id, partition, leader_epoch, start_offset)
    SELECT topic_id, partition, %(epoch)s, end_offset FROM moved WHERE %(epoch)s::integer > 0
    ON CONFLICT DO NOTHING
),
aborted AS (
    INSERT INTO aborted_transactions (
        topic_id, partition, last_offset, first_offset, last_stable_offset, producer_id
    )
    SELECT topic_id, partition, end_offset, first_offset, last_stable_offset, %(producer_id)s
    FROM moved WHERE NOT %(commits)s::boolean AND first_offset IS NOT NULL
),
dropped_groups AS (
    DELETE FROM transaction_groups WHERE producer_id = %(producer_id)s
),
existing_groups AS (
    SELECT g.group_id FROM consumer_groups AS g
    WHERE g.group_id IN (SELECT o.group_id FROM pending_offsets AS o WHERE o.producer_id = %(producer_id)s)
    ORDER BY g.group_id
    FOR KEY SHARE
),
pending AS (
    -- The count locks all groups before the first row is deleted, in the order of a deletion of a group.
    DELETE FROM pending_offsets AS o
    USING (SELECT count(*) AS groups FROM existing_groups) AS locked
    WHERE o.producer_id = %(producer_id)s AND locked.groups >= 0
    RETURNING o.group_id, o.topic_id, o.partition, o.committed_offset, o.leader_epoch, o.metadata, o.commit_number
),
committed AS (
    -- An offset that was committed after the transaction had stored its own stays.
    INSERT INTO committed_offsets AS c (
        group_id, topic_id, partition, committed_offset, leader_epoch, metadata, committed_ms, commit_number
    )
    SELECT o.group_id, o.topic_id, o.partition, o.committed_offset, o.leader_epoch, o.metadata, %(now_ms)s,
           o.commit_number
    FROM pending AS o JOIN existing_groups USING (group_id) JOIN topics USING (topic_id)
    WHERE %(commits)s::boolean AND topics.deleted_ms IS NULL
    ORDER BY o.group_id, o.topic_id, o.partition
    ON CONFLICT (group_id, topic_id, partition) DO UPDATE
    SET committed_offset = EXCLUDED.committed_offset, leader_epoch = EXCLUDED.leader_epoch,
        metadata = EXCLUDED.metadata, committed_ms = EXCLUDED.committed_ms, expires_ms = NULL,
        commit_number = EXCLUDED.commit_number
    WHERE EXCLUDED.commit_number = 0 OR c.commit_number < EXCLUDED.commit_number
),
updated AS (
    UPDATE transactional_ids
    SET producer_id = %(new_producer_id)s, producer_epoch = %(new_producer_epoch)s,
        last_producer_id = %(last_producer_id)s, last_epoch = %(last_epoch)s, timeout_ms = %(timeout_ms)s,
        state = %(state)s, bumps_epoch = %(bumps_epoch)s, started_ms = %(started_ms)s, updated_ms = %(now_ms)s,
        has_local_partitions = false
    WHERE transactional_id = %(transactional_id)s
)
SELECT topic_id, partition, end_offset FROM moved ORDER BY topic_id, partition;

-- name: timed_out
-- Return a bounded number of the ongoing transactions that have lasted for longer than their timeout, oldest first.
SELECT transactional_id, producer_id, producer_epoch, started_ms
FROM transactional_ids
WHERE state = 'ongoing' AND started_ms + timeout_ms
    < coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
ORDER BY started_ms + timeout_ms
LIMIT %(limit)s;

-- name: count_ongoing
-- Return the number of ongoing transactions, and the age of the oldest (0 without any).
SELECT count(*) AS transactions,
       coalesce(greatest(0, max(
           coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) - started_ms
       )), 0)::bigint AS oldest_ms
FROM transactional_ids
WHERE state = 'ongoing';

-- name: expire_idle
-- Delete a bounded number of transactional ids without an ongoing transaction that were not used for long; skip those
-- that another transaction has locked.
DELETE FROM transactional_ids
WHERE transactional_id IN (
    SELECT transactional_id FROM transactional_ids
    WHERE state <> 'ongoing' AND updated_ms
        <= coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) - %(expiration_ms)s
    ORDER BY updated_ms
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
);

-- name: lock_settled
-- Lock a bounded number of partitions that seem to have had nothing transactional for so long that no reader uses
-- extents that were looked up before; skip those that another transaction has locked. The scalar subqueries make
-- PostgreSQL search each partition from its newest extent on.
SELECT p.topic_id, p.partition FROM partitions AS p
WHERE p.has_transactions AND p.unstable_offset IS NULL
  AND coalesce(p.transactions_removed_ms, 0)
      <= coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) - %(grace_ms)s
  AND NOT EXISTS (
      SELECT FROM aborted_transactions AS a WHERE a.topic_id = p.topic_id AND a.partition = p.partition
  )
  AND (
      SELECT true FROM extents AS e
      WHERE e.topic_id = p.topic_id AND e.partition = p.partition AND e.control_producer_id IS NOT NULL
      ORDER BY e.base_offset DESC
      LIMIT 1
  ) IS NULL
ORDER BY p.topic_id, p.partition
LIMIT %(limit)s
FOR UPDATE OF p SKIP LOCKED;

-- name: settle
-- Record that locked partitions have no transactions, unless one has begun or ended before they were locked.
UPDATE partitions AS p SET has_transactions = false
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS v (topic_id, partition)
WHERE p.topic_id = v.topic_id AND p.partition = v.partition AND p.unstable_offset IS NULL
  AND NOT EXISTS (
      SELECT FROM aborted_transactions AS a WHERE a.topic_id = p.topic_id AND a.partition = p.partition
  )
  AND (
      SELECT true FROM extents AS e
      WHERE e.topic_id = p.topic_id AND e.partition = p.partition AND e.control_producer_id IS NOT NULL
      ORDER BY e.base_offset DESC
      LIMIT 1
  ) IS NULL;

-- name: aborted_in
-- Return the aborted transactions of partitions that overlap a range of offsets each, by partition and last offset.
-- Once the last stable offset has passed the range, all that ended later began after it, so the search ends there.
-- Also return a row without a producer for each of the given extents that a compaction or retention has removed, and
-- for each partition if the server does not continue the history of the given epoch: its end of a transaction may be
-- lost there. PostgreSQL expects ten elements of an unnested array or knows their number, and looks the partitions up
-- in the index. Of generate_subscripts it expects 1,000, for which it scans all aborted transactions.
WITH incarnation AS MATERIALIZED (SELECT epoch, is_current FROM current_incarnation)
SELECT (%(topic_ids)s::uuid[])[i] AS topic_id, requested.partition, found.producer_id, found.first_offset,
       found.last_offset
FROM unnest(%(partitions)s::integer[]) WITH ORDINALITY AS requested (partition, i)
CROSS JOIN LATERAL (
    SELECT a.producer_id, a.first_offset, a.last_offset FROM aborted_transactions AS a
    WHERE a.topic_id = (%(topic_ids)s::uuid[])[i] AND a.partition = requested.partition
      AND a.last_offset >= (%(base_offsets)s::bigint[])[i] AND a.first_offset < (%(end_offsets)s::bigint[])[i]
      AND a.last_offset <= coalesce((
          SELECT b.last_offset FROM aborted_transactions AS b
          WHERE b.topic_id = (%(topic_ids)s::uuid[])[i] AND b.partition = requested.partition
            AND b.last_offset >= (%(base_offsets)s::bigint[])[i]
            AND b.last_stable_offset >= (%(end_offsets)s::bigint[])[i]
          ORDER BY b.last_offset
          LIMIT 1
      ), 9223372036854775807)
) AS found
UNION ALL
SELECT read.topic_id, read.partition, NULL, NULL, NULL
FROM unnest(
    %(read_topic_ids)s::uuid[], %(read_partitions)s::integer[], %(read_offsets)s::bigint[], %(read_files)s::uuid[]
) AS read (topic_id, partition, base_offset, file_id)
WHERE NOT EXISTS (
    SELECT FROM extents AS e
    WHERE e.topic_id = read.topic_id AND e.partition = read.partition AND e.base_offset = read.base_offset
      AND e.file_id = read.file_id
)
UNION ALL
SELECT (%(topic_ids)s::uuid[])[i], (%(partitions)s::integer[])[i], NULL, NULL, NULL
FROM generate_subscripts(%(epochs)s::integer[], 1) AS i
JOIN incarnation AS c ON NOT c.is_current OR c.epoch <> (%(epochs)s::integer[])[i]
ORDER BY topic_id, partition, last_offset;

-- name: ongoing_id_of
-- Return the transactional id of a producer with an ongoing transaction.
SELECT transactional_id, producer_epoch FROM transactional_ids
WHERE producer_id = %(producer_id)s AND state = 'ongoing';

-- name: wrong_bounds
-- Return partitions whose last stable offset does not follow from their open transactions, a bounded number.
SELECT p.topic_id, p.partition, p.last_stable_offset, p.unstable_offset, open.first_offset
FROM partitions AS p
CROSS JOIN LATERAL (
    SELECT min(t.first_offset) AS first_offset
    FROM transaction_partitions AS t JOIN transactional_ids AS i USING (producer_id)
    WHERE t.topic_id = p.topic_id AND t.partition = p.partition AND t.first_offset IS NOT NULL AND i.state = 'ongoing'
) AS open
WHERE p.has_transactions AND (
    p.unstable_offset IS DISTINCT FROM open.first_offset
    OR p.last_stable_offset <> greatest(p.log_start_offset, least(p.unstable_offset, p.high_watermark))
)
ORDER BY p.topic_id, p.partition
LIMIT %(limit)s;

-- name: wrong_aborted
-- Return aborted transactions of partitions without a control batch that aborts them at their last offset, a bounded
-- number.
SELECT a.topic_id, a.partition, a.producer_id, a.first_offset, a.last_offset
FROM aborted_transactions AS a JOIN partitions AS p USING (topic_id, partition)
WHERE a.last_offset >= p.log_start_offset AND (a.first_offset >= a.last_offset OR NOT EXISTS (
    SELECT FROM extents AS e
    WHERE e.topic_id = a.topic_id AND e.partition = a.partition AND e.base_offset = a.last_offset
      AND e.control_producer_id = a.producer_id AND NOT e.control_commits
))
ORDER BY a.topic_id, a.partition, a.last_offset
LIMIT %(limit)s;

-- name: page_of_ids
-- Return a page of transactional ids with their states.
SELECT t.transactional_id, t.producer_id, t.producer_epoch, t.last_producer_id, t.last_epoch, t.timeout_ms, t.state,
       t.bumps_epoch, t.started_ms
FROM transactional_ids AS t
WHERE t.transactional_id > %(after)s
ORDER BY t.transactional_id
LIMIT %(limit)s;

-- name: partitions_of
-- Return the partitions of ongoing transactions, by producer, name and partition.
SELECT p.producer_id, t.name AS topic_name, p.partition
FROM (
    SELECT producer_id, topic_id, partition FROM transaction_partitions
    WHERE producer_id = ANY (%(producer_ids)s::bigint[])
    UNION ALL
    SELECT producer_id, topic_id, partition FROM local_transaction_partitions
    WHERE producer_id = ANY (%(producer_ids)s::bigint[]) AND commits IS NULL
) AS p
JOIN topics AS t USING (topic_id)
WHERE t.deleted_ms IS NULL
ORDER BY p.producer_id, t.name, p.partition;

-- name: open_in
-- Return the first offsets of the open transactions of partitions.
SELECT t.topic_id, t.partition, t.producer_id, t.first_offset
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS requested (topic_id, partition)
JOIN transaction_partitions AS t USING (topic_id, partition)
WHERE t.first_offset IS NOT NULL;

-- name: describe
-- Return the state of transactional ids.
SELECT t.transactional_id, t.producer_id, t.producer_epoch, t.last_producer_id, t.last_epoch, t.timeout_ms, t.state,
       t.bumps_epoch, t.started_ms
FROM transactional_ids AS t
WHERE t.transactional_id = ANY (%(transactional_ids)s::text[])
ORDER BY t.transactional_id;
