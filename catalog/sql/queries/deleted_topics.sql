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

-- name: forget_deleted_partitions
-- Delete the kept rows of a topic that exists again.
DELETE FROM deleted_partitions WHERE topic_id = %(topic_id)s;
