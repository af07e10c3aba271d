-- name: insert_topics
-- Adds topics, but those whose names, or names that differ only by '.' and '_', are taken. In one order for all, so that
-- two who add the same ones wait for each other and not both.
INSERT INTO topics (topic_id, name, partition_count, config, created_ms)
SELECT topic_id, name, partition_count, config, %(created_ms)s
FROM unnest(
    %(topic_ids)s::uuid[], %(names)s::text[], %(partition_counts)s::integer[], %(configs)s::jsonb[]
) AS wanted (topic_id, name, partition_count, config)
ORDER BY translate(name, '.', '_') COLLATE "C", name COLLATE "C"
ON CONFLICT DO NOTHING;

-- name: insert_partitions
-- Adds the empty partitions that these topics do not have yet; a second try changes nothing.
INSERT INTO partitions (topic_id, partition, producers_from)
SELECT t.topic_id, number, coalesce(past.producers_from, 0)
FROM topics AS t
LEFT JOIN past_topics AS past USING (name)
CROSS JOIN LATERAL generate_series(0, t.partition_count - 1) AS number
WHERE t.topic_id = ANY(%(topic_ids)s::uuid[])
ON CONFLICT DO NOTHING;

-- name: find_holders
-- The topics whose names are these, by their places from 1 on, or differ from them only by '.' and '_'.
SELECT wanted.place, t.topic_id, t.name, t.partition_count, t.config, t.created_ms
FROM unnest(%(names)s::text[]) WITH ORDINALITY AS wanted (name, place)
JOIN topics AS t ON translate(t.name, '.', '_') = translate(wanted.name, '.', '_')
WHERE t.deleted_ms IS NULL;

-- name: find_topic
-- The topic whose name is this one or differs only by '.' and '_'.
SELECT topic_id, name, partition_count, config, created_ms
FROM topics
WHERE translate(name, '.', '_') = translate(%(name)s, '.', '_') AND deleted_ms IS NULL;

-- name: topic_by_id
-- The topic of that identifier, unless it was deleted.
SELECT topic_id, name, partition_count, config, created_ms
FROM topics
WHERE topic_id = %(topic_id)s AND deleted_ms IS NULL;

-- name: topics_named
-- The topics of exactly these names; those that do not exist are left out.
SELECT t.topic_id, t.name, t.partition_count, t.config, t.created_ms
FROM unnest(%(names)s::text[]) AS wanted (name)
JOIN topics AS t ON translate(t.name, '.', '_') = translate(wanted.name, '.', '_') AND t.name = wanted.name
WHERE t.deleted_ms IS NULL;

-- name: topics_identified
-- The topics of these identifiers; those that do not exist or were deleted are left out.
SELECT t.topic_id, t.name, t.partition_count, t.config, t.created_ms
FROM unnest(%(topic_ids)s::uuid[]) AS wanted (topic_id)
JOIN topics AS t USING (topic_id)
WHERE t.deleted_ms IS NULL;

-- name: list_topics
-- All topics by name.
SELECT topic_id, name, partition_count, config, created_ms
FROM topics
WHERE deleted_ms IS NULL
ORDER BY name;

-- name: lock_topic
-- Locks a topic's row, so that changes to the topic come one after the other.
SELECT config FROM topics WHERE topic_id = %(topic_id)s AND deleted_ms IS NULL FOR UPDATE;

-- name: set_config
-- Replaces a topic's settings.
UPDATE topics SET config = %(config)s WHERE topic_id = %(topic_id)s;

-- name: set_partition_count
-- Notes that a topic has more partitions; never fewer.
UPDATE topics SET partition_count = greatest(partition_count, %(partition_count)s) WHERE topic_id = %(topic_id)s;

-- name: mark_topic_deleted
-- Frees a topic's name; its extents are removed afterwards, a bounded number at a time.
UPDATE topics SET deleted_ms = %(now_ms)s WHERE topic_id = %(topic_id)s AND deleted_ms IS NULL;

-- name: note_past_topic
-- Keeps the name of a topic that is deleted, with the first producer id that was not given by then.
INSERT INTO past_topics AS past (name, producers_from, deleted_ms)
SELECT t.name, CASE WHEN given.is_called THEN given.last_value + 1 ELSE 0 END, %(now_ms)s
FROM topics AS t CROSS JOIN producer_ids AS given
WHERE t.topic_id = %(topic_id)s
ON CONFLICT (name) DO UPDATE
SET producers_from = greatest(past.producers_from, excluded.producers_from), deleted_ms = excluded.deleted_ms;

-- name: lock_topic_partitions
-- Waits for the commits that are under way in a topic; in the order in which commits lock.
SELECT partition FROM partitions WHERE topic_id = %(topic_id)s ORDER BY partition FOR UPDATE;

-- name: delete_partitions
-- Takes a deleted topic's partitions away: from here on a commit to them is refused.
DELETE FROM partitions WHERE topic_id = %(topic_id)s;

-- name: partition_states
-- Bounds of all partitions of a topic.
SELECT topic_id, partition, log_start_offset, last_stable_offset, high_watermark, log_end_offset,
       first_dirty_offset, leader_epoch
FROM partitions
WHERE topic_id = %(topic_id)s
ORDER BY partition;

-- name: partition_sizes
-- How many bytes of live data each partition of these topics has.
SELECT topic_id, partition, live_bytes FROM partitions WHERE topic_id = ANY(%(topic_ids)s::uuid[]);

-- name: states_of
-- Bounds of the partitions that are named and exist.
SELECT p.topic_id, p.partition, p.log_start_offset, p.last_stable_offset, p.high_watermark, p.log_end_offset,
       p.first_dirty_offset, p.leader_epoch
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS wanted (topic_id, partition)
JOIN partitions AS p USING (topic_id, partition)
ORDER BY p.topic_id, p.partition;
