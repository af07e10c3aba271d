-- name: list_deleted
-- Return the deleted topics whose rows are not removed yet, the last deleted first.
SELECT topic_id, name, partition_count, config, created_ms, deleted_ms, purged_ms IS NOT NULL AS is_purged
FROM topics
WHERE deleted_ms IS NOT NULL
ORDER BY deleted_ms DESC, topic_id;

-- name: lock_deleted
-- Lock a deleted topic, so that garbage collection does not begin to remove it.
SELECT purged_ms IS NOT NULL AS is_purged FROM topics
WHERE topic_id = %(topic_id)s AND deleted_ms IS NOT NULL
FOR UPDATE;

-- name: fence_open_transactions
-- Fence the producers of the ongoing transactions that had records in a topic when it was deleted, and let these
-- transactions time out at once: a part of their records will be aborted, so they must not commit.
WITH locked AS (
    SELECT i.transactional_id FROM transactional_ids AS i
    WHERE i.state = 'ongoing' AND i.producer_id IN (
        SELECT t.producer_id FROM transaction_partitions AS t
        WHERE t.topic_id = %(topic_id)s AND t.first_offset IS NOT NULL
    )
    ORDER BY i.producer_id
    FOR NO KEY UPDATE OF i
)
UPDATE transactional_ids AS i SET producer_epoch = least(i.producer_epoch + 1, 32767), started_ms = 0
FROM locked AS l
WHERE i.transactional_id = l.transactional_id;

-- name: fence_open_local_transactions
-- Do the same for the transactions that had records in a local topic when it was deleted, and that are still ongoing.
WITH open AS (
    SELECT DISTINCT (e.kept ->> 'producer_id')::bigint AS producer_id, (e.kept ->> 'started_ms')::bigint AS started_ms
    FROM deleted_partitions AS d
    CROSS JOIN LATERAL jsonb_array_elements(coalesce(d.state -> 'local_transactions', '[]')) AS e (kept)
    WHERE d.topic_id = %(topic_id)s AND e.kept ->> 'commits' IS NULL
),
locked AS (
    SELECT i.transactional_id FROM transactional_ids AS i JOIN open USING (producer_id, started_ms)
    WHERE i.state = 'ongoing'
    ORDER BY i.producer_id
    FOR NO KEY UPDATE OF i
)
UPDATE transactional_ids AS i SET producer_epoch = least(i.producer_epoch + 1, 32767), started_ms = 0
FROM locked AS l
WHERE i.transactional_id = l.transactional_id;

-- name: has_local_leaders
-- Return whether the leaders of a deleted local topic's partitions were recorded.
SELECT NOT EXISTS (
    SELECT FROM deleted_partitions WHERE topic_id = %(topic_id)s AND NOT jsonb_exists(state, 'local_leader')
) AS has_local_leaders;

-- name: undelete
-- Let a deleted topic exist again, under a name that is free.
UPDATE topics SET deleted_ms = NULL, name = %(name)s WHERE topic_id = %(topic_id)s;

-- name: restore_partitions
-- Replace the new rows of a topic's partitions by those that it had when it was deleted. Columns that were
-- added since then keep the values of the new rows.
WITH fresh AS (
    DELETE FROM partitions WHERE topic_id = %(topic_id)s RETURNING *
)
INSERT INTO partitions
SELECT restored.*
FROM deleted_partitions AS d
JOIN fresh USING (topic_id, partition)
CROSS JOIN LATERAL jsonb_populate_record(fresh::partitions, d.state) AS restored
ORDER BY restored.partition;

-- name: restore_leader_epochs
-- Restore the first offsets of the leader epochs of a topic's partitions.
INSERT INTO leader_epochs (topic_id, partition, leader_epoch, start_offset)
SELECT d.topic_id, d.partition, (e.pair ->> 0)::integer, (e.pair ->> 1)::bigint
FROM deleted_partitions AS d
CROSS JOIN LATERAL jsonb_array_elements(d.leader_epochs) AS e (pair)
WHERE d.topic_id = %(topic_id)s
ON CONFLICT DO NOTHING;

-- name: restore_local_leaders
-- Let the nodes that have the logs of a local topic lead its partitions again, in a new leader epoch. If the catalog's
-- incarnation began after the deletion, skip the epochs that the lost history may have used after an undeletion.
INSERT INTO local_leaders (topic_id, partition, node_id, leader_epoch, directory_id)
SELECT topic_id, partition, (state -> 'local_leader' ->> 0)::integer,
       CASE WHEN coalesce((state ->> 'deleted_epoch')::integer, -1) = i.epoch
            THEN (state -> 'local_leader' ->> 1)::integer + 1
            ELSE greatest((state -> 'local_leader' ->> 1)::integer + 1 + %(epoch_margin)s::integer, i.epoch) END,
       (state -> 'local_leader' ->> 2)::uuid
FROM deleted_partitions CROSS JOIN catalog_incarnation AS i
WHERE topic_id = %(topic_id)s AND jsonb_typeof(state -> 'local_leader') = 'array'
ON CONFLICT DO NOTHING;

-- name: restore_markers
-- Let the leaders of a local topic end the transactions that are open in its logs: as they had ended before the
-- deletion, or else with an abort.
INSERT INTO local_transaction_partitions (
    producer_id, topic_id, partition, producer_epoch, first_sequence, commits, marker_epoch, coordinator_epoch, ended_ms,
    node_id
)
SELECT kept.producer_id, kept.topic_id, kept.partition, kept.producer_epoch, kept.first_sequence,
       coalesce(kept.commits, false), coalesce(kept.marker_epoch, kept.producer_epoch),
       coalesce(kept.coordinator_epoch, i.epoch),
       coalesce(kept.ended_ms, %(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
       (d.state -> 'local_leader' ->> 0)::integer
FROM deleted_partitions AS d
CROSS JOIN catalog_incarnation AS i
CROSS JOIN LATERAL jsonb_populate_recordset(
    NULL::local_transaction_partitions, coalesce(d.state -> 'local_transactions', '[]')
) AS kept
WHERE d.topic_id = %(topic_id)s
ORDER BY kept.number
ON CONFLICT DO NOTHING;

-- name: abort_open_transactions
-- Abort the transactions in a restored topic that were open when it was deleted: they have ended since without it, or
-- their producers are fenced. Each gets a control batch at the log end, in the order of their first offsets.
WITH open AS (
    SELECT d.topic_id, d.partition, (e.parts ->> 0)::bigint AS producer_id, (e.parts ->> 1)::smallint AS producer_epoch,
           (e.parts ->> 2)::bigint AS first_offset,
           row_number() OVER (PARTITION BY d.partition ORDER BY (e.parts ->> 2)::bigint) - 1 AS number,
           lead((e.parts ->> 2)::bigint) OVER (PARTITION BY d.partition ORDER BY (e.parts ->> 2)::bigint) AS next_offset,
           count(*) OVER (PARTITION BY d.partition) AS transactions
    FROM deleted_partitions AS d
    CROSS JOIN LATERAL jsonb_array_elements(coalesce(d.state -> 'open_transactions', '[]')) AS e (parts)
    WHERE d.topic_id = %(topic_id)s
),
moved AS (
    UPDATE partitions AS p
    SET log_end_offset = p.log_end_offset + o.transactions, high_watermark = p.log_end_offset + o.transactions,
        last_stable_offset = p.log_end_offset + o.transactions, unstable_offset = NULL
    FROM (SELECT DISTINCT topic_id, partition, transactions FROM open) AS o
    WHERE p.topic_id = o.topic_id AND p.partition = o.partition
    RETURNING p.topic_id, p.partition, p.log_end_offset - o.transactions AS end_offset, p.log_end_offset,
              p.max_timestamp, p.leader_epoch
),
marked AS (
    INSERT INTO extents (
        topic_id, partition, base_offset, last_offset, record_count, min_timestamp, max_timestamp,
        max_timestamp_so_far, file_id, position, length, index_position, index_length, offset_shift, leader_epoch,
        unique_keys, committed_ms, control_producer_id, control_producer_epoch, control_commits
    )
    SELECT topic_id, partition, end_offset + number, end_offset + number, 0, -1, -1, max_timestamp,
           '00000000-0000-0000-0000-000000000000', 0, 0, 0, 0, 0, leader_epoch, false,
           coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint),
           producer_id, producer_epoch, false
    FROM moved JOIN open USING (topic_id, partition)
),
reopened AS (
    UPDATE transaction_partitions SET first_offset = NULL WHERE topic_id = %(topic_id)s
)
INSERT INTO aborted_transactions (topic_id, partition, last_offset, first_offset, last_stable_offset, producer_id)
SELECT topic_id, partition, end_offset + number, first_offset, coalesce(next_offset, log_end_offset), producer_id
FROM moved JOIN open USING (topic_id, partition);

-- name: forget_deleted_partitions
-- Delete the kept rows of a topic that exists again.
DELETE FROM deleted_partitions WHERE topic_id = %(topic_id)s;
