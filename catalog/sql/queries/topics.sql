-- name: insert_topics
-- Insert topics whose names are free; names that differ only by '.' and '_' collide. All callers insert in
-- the same order, so that two callers with the same topics cannot deadlock.
INSERT INTO topics (topic_id, name, partition_count, config, created_ms)
SELECT topic_id, name, partition_count, config, %(created_ms)s
FROM unnest(
    %(topic_ids)s::uuid[], %(names)s::text[], %(partition_counts)s::integer[], %(configs)s::jsonb[]
) AS requested (topic_id, name, partition_count, config)
ORDER BY translate(name, '.', '_') COLLATE "C", name COLLATE "C"
ON CONFLICT DO NOTHING;

-- name: insert_partitions
-- Insert the partitions that these topics do not have yet; a retry changes nothing.
INSERT INTO partitions (topic_id, partition, first_new_producer_id)
SELECT t.topic_id, number, coalesce(deleted.first_new_producer_id, 0)
FROM topics AS t
LEFT JOIN deleted_topics AS deleted USING (name)
CROSS JOIN LATERAL generate_series(0, t.partition_count - 1) AS number
WHERE t.topic_id = ANY(%(topic_ids)s::uuid[]) AND t.deleted_ms IS NULL
ON CONFLICT DO NOTHING;

-- name: find_conflicting_topics
-- Return the topics whose names equal the given ones, or differ only by '.' and '_', with the ordinal (from
-- 1) of the given name.
SELECT requested.number, t.topic_id, t.name, t.partition_count, t.config, t.created_ms
FROM unnest(%(names)s::text[]) WITH ORDINALITY AS requested (name, number)
JOIN topics AS t ON translate(t.name, '.', '_') = translate(requested.name, '.', '_')
WHERE t.deleted_ms IS NULL;

-- name: find_topic
-- Return the topic whose name equals the given one, or differs only by '.' and '_'.
SELECT topic_id, name, partition_count, config, created_ms
FROM topics
WHERE translate(name, '.', '_') = translate(%(name)s, '.', '_') AND deleted_ms IS NULL;

-- name: topic_by_id
-- Return the topic with that id, unless it was deleted.
SELECT topic_id, name, partition_count, config, created_ms
FROM topics
WHERE topic_id = %(topic_id)s AND deleted_ms IS NULL;

-- name: is_known_topic
-- Return a row if the catalog has a topic of that id, also a deleted one.
SELECT 1 AS found FROM topics WHERE topic_id = %(topic_id)s;

-- name: topics_by_names
-- Return the topics with exactly these names; unknown names are left out.
SELECT t.topic_id, t.name, t.partition_count, t.config, t.created_ms
FROM unnest(%(names)s::text[]) AS requested (name)
JOIN topics AS t ON translate(t.name, '.', '_') = translate(requested.name, '.', '_') AND t.name = requested.name
WHERE t.deleted_ms IS NULL;

-- name: topics_by_ids
-- Return the topics with these ids; unknown and deleted ones are left out.
SELECT t.topic_id, t.name, t.partition_count, t.config, t.created_ms
FROM unnest(%(topic_ids)s::uuid[]) AS requested (topic_id)
JOIN topics AS t USING (topic_id)
WHERE t.deleted_ms IS NULL;

-- name: list_topics
-- Return all topics by name.
SELECT topic_id, name, partition_count, config, created_ms
FROM topics
WHERE deleted_ms IS NULL
ORDER BY name;

-- name: topic_changes
-- Return the ids of the last changes of topics and of leaders, usually one. They are other ones after each change.
SELECT change_id FROM topic_changes;

-- name: lock_topic
-- Lock a topic's row, so that changes to the topic are serialized.
SELECT config FROM topics WHERE topic_id = %(topic_id)s AND deleted_ms IS NULL FOR UPDATE;

-- name: set_config
-- Replace a topic's settings.
UPDATE topics SET config = %(config)s WHERE topic_id = %(topic_id)s;

-- name: set_partition_count
-- Increase a topic's number of partitions; never decrease it.
UPDATE topics SET partition_count = greatest(partition_count, %(partition_count)s) WHERE topic_id = %(topic_id)s;

-- name: mark_topic_deleted
-- Mark a topic as deleted, which frees its name. Its extents are removed later, a bounded number at a time.
UPDATE topics SET deleted_ms = %(now_ms)s WHERE topic_id = %(topic_id)s AND deleted_ms IS NULL;

-- name: record_deleted_topic
-- Record the name of a deleted topic with the first producer id that had not been assigned by then.
INSERT INTO deleted_topics AS deleted (name, first_new_producer_id, deleted_ms)
SELECT t.name, CASE WHEN assigned.is_called THEN assigned.last_value + 1 ELSE 0 END, %(now_ms)s
FROM topics AS t CROSS JOIN producer_ids AS assigned
WHERE t.topic_id = %(topic_id)s
ON CONFLICT (name) DO UPDATE
SET first_new_producer_id = greatest(deleted.first_new_producer_id, excluded.first_new_producer_id),
    deleted_ms = excluded.deleted_ms;

-- name: lock_topic_partitions
-- Wait for running commits to a topic; lock in the order in which commits lock.
SELECT partition FROM partitions WHERE topic_id = %(topic_id)s ORDER BY partition FOR UPDATE;

-- name: lock_local_leaders
-- Wait for changes of the leaders of a local topic, so that the last recorded log directories are kept.
SELECT partition FROM local_leaders WHERE topic_id = %(topic_id)s ORDER BY partition FOR UPDATE;

-- name: lock_local_transactions
-- Wait for ends of transactions in a local topic, so that each is kept as it was decided.
SELECT partition FROM local_transaction_partitions
WHERE topic_id = %(topic_id)s
ORDER BY producer_id, partition
FOR UPDATE;

-- name: keep_deleted_partitions
-- Keep the rows of a deleted topic's partitions, so that it can be undeleted, and the producer id, epoch and first
-- offset of each open transaction. Of a local partition, keep the leader, and the transactions that are open in its
-- log: ongoing ones, and those with a pending marker. Keep the epoch of the deletion, too.
INSERT INTO deleted_partitions (topic_id, partition, state, leader_epochs)
SELECT topic_id, partition, to_jsonb(p) || jsonb_build_object('deleted_epoch', (
    SELECT i.epoch FROM catalog_incarnation AS i
), 'open_transactions', (
    SELECT coalesce(jsonb_agg(jsonb_build_array(t.producer_id, i.producer_epoch, t.first_offset)), '[]')
    FROM transaction_partitions AS t JOIN transactional_ids AS i USING (producer_id)
    WHERE t.topic_id = p.topic_id AND t.partition = p.partition AND t.first_offset IS NOT NULL
), 'local_leader', (
    SELECT jsonb_build_array(l.node_id, l.leader_epoch, l.directory_id) FROM local_leaders AS l
    WHERE l.topic_id = p.topic_id AND l.partition = p.partition
), 'local_transactions', (
    SELECT coalesce(jsonb_agg(to_jsonb(t) || jsonb_build_object('started_ms', i.started_ms)), '[]')
    FROM local_transaction_partitions AS t LEFT JOIN transactional_ids AS i USING (producer_id)
    WHERE t.topic_id = p.topic_id AND t.partition = p.partition AND t.first_sequence IS NOT NULL
)), (
    SELECT coalesce(jsonb_agg(jsonb_build_array(e.leader_epoch, e.start_offset)), '[]') FROM leader_epochs AS e
    WHERE e.topic_id = p.topic_id AND e.partition = p.partition
)
FROM partitions AS p
WHERE topic_id = %(topic_id)s
ON CONFLICT DO NOTHING;

-- name: delete_partitions
-- Delete the partitions of a deleted topic; later commits to them are rejected.
DELETE FROM partitions WHERE topic_id = %(topic_id)s;

-- name: partition_states
-- Return the bounds of all partitions of a topic.
SELECT topic_id, partition, log_start_offset, last_stable_offset, high_watermark, log_end_offset,
       first_dirty_offset, has_transactions, i.epoch AS leader_epoch
FROM partitions CROSS JOIN catalog_incarnation AS i
WHERE topic_id = %(topic_id)s
ORDER BY partition;

-- name: live_bytes_of_partitions
-- Return the bytes of live data of each partition of these topics.
SELECT topic_id, partition, live_bytes FROM partitions WHERE topic_id = ANY(%(topic_ids)s::uuid[]);

-- name: states_of
-- Return the bounds of the given partitions; unknown ones are left out.
SELECT p.topic_id, p.partition, p.log_start_offset, p.last_stable_offset, p.high_watermark, p.log_end_offset,
       p.first_dirty_offset, p.has_transactions, i.epoch AS leader_epoch
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS requested (topic_id, partition)
JOIN partitions AS p USING (topic_id, partition)
CROSS JOIN catalog_incarnation AS i
ORDER BY p.topic_id, p.partition;
