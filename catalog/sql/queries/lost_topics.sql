-- name: awaits_reports
-- Return whether an agent that lived when an epoch began, after `since_ms`, has not compared its commits.
SELECT EXISTS (SELECT FROM sessions WHERE unsettled = 'unverified' AND closed_ms > %(since_ms)s) AS awaits;

-- name: lock_restoration
-- Let only one process at a time restore topics, because each decision depends on all topics of a name.
SELECT pg_advisory_xact_lock(hashtextextended('siltstone: restoration of lost topics', 0));

-- name: lock_topics
-- Lock topics, so that none is deleted meanwhile; unknown ones are left out. An earlier release did not record the
-- epoch of a deletion: it counts as older than every commit.
SELECT topic_id, name, partition_count, deleted_ms IS NOT NULL AS is_deleted,
       deleted_ms IS NOT NULL AND purged_ms IS NULL AND kept.partitions = partition_count AS can_be_undeleted,
       kept.deleted_epoch
FROM topics
CROSS JOIN LATERAL (
    SELECT count(*) AS partitions, coalesce(max((d.state ->> 'deleted_epoch')::integer), -1) AS deleted_epoch
    FROM deleted_partitions AS d
    WHERE d.topic_id = topics.topic_id
) AS kept
WHERE topic_id = ANY(%(topic_ids)s::uuid[])
ORDER BY topic_id
FOR UPDATE OF topics;

-- name: lacking_topics
-- Return the ids of topics that have no row, not even as deleted ones, or fewer partitions than given.
SELECT given.topic_id
FROM unnest(%(topic_ids)s::uuid[], %(partition_counts)s::integer[]) AS given (topic_id, partition_count)
LEFT JOIN topics AS t USING (topic_id)
WHERE t.topic_id IS NULL OR (t.deleted_ms IS NULL AND t.partition_count < given.partition_count);

-- name: lost_local_undeletions
-- Return the deleted local topics of which a node's logs have later leader epochs than at the deletion. So a log was
-- opened again and written after an undeletion, which was lost when a later incarnation began. A deletion in that one
-- would have a later leader epoch, because each incarnation skips the epochs of the history before.
SELECT DISTINCT t.topic_id, t.name, t.partition_count, t.config, t.created_ms
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(leader_epochs)s::integer[])
    AS log (topic_id, partition, leader_epoch)
JOIN deleted_partitions AS d USING (topic_id, partition)
JOIN topics AS t USING (topic_id)
CROSS JOIN catalog_incarnation AS i
WHERE t.deleted_ms IS NOT NULL AND t.purged_ms IS NULL AND (d.state ->> 'deleted_epoch')::integer < i.epoch
  AND (d.state -> 'local_leader' ->> 0)::integer = %(node_id)s
  AND (d.state -> 'local_leader' ->> 1)::integer < log.leader_epoch
ORDER BY t.topic_id;

-- name: lock_namesakes
-- Lock the topics whose names equal the given ones, or differ only by '.' and '_'; `number` is the ordinal (from 1) of
-- the given name. A topic may be a restored one if it is older than the epoch, its records are in the object store, and
-- all of its offsets are of this epoch.
SELECT requested.number, t.topic_id, t.name, t.partition_count, t.config, t.created_ms,
       t.created_ms < i.started_ms
       AND coalesce(t.config ->> 'storage.mode', 'object') <> 'local'
       AND NOT EXISTS (
           SELECT FROM partitions AS p
           WHERE p.topic_id = t.topic_id AND p.log_end_offset > 0 AND NOT EXISTS (
               SELECT FROM leader_epochs AS e
               WHERE e.topic_id = p.topic_id AND e.partition = p.partition AND e.leader_epoch = i.epoch
                 AND e.start_offset = 0
           )
       ) AS may_be_restored
FROM unnest(%(names)s::text[]) WITH ORDINALITY AS requested (name, number)
JOIN topics AS t ON translate(t.name, '.', '_') = translate(requested.name, '.', '_')
CROSS JOIN catalog_incarnation AS i
WHERE t.deleted_ms IS NULL
ORDER BY t.topic_id
FOR UPDATE OF t;

-- name: rename_topic
-- Give a topic a name that is free.
UPDATE topics SET name = %(name)s WHERE topic_id = %(topic_id)s;

-- name: insert_lost_topics
-- Insert lost topics whose names are free, with the times of their creation; return their ids.
INSERT INTO topics (topic_id, name, partition_count, config, created_ms)
SELECT topic_id, name, partition_count, config, created_ms
FROM unnest(
    %(topic_ids)s::uuid[], %(names)s::text[], %(partition_counts)s::integer[], %(configs)s::jsonb[],
    %(created_ms)s::bigint[]
) AS requested (topic_id, name, partition_count, config, created_ms)
ORDER BY translate(name, '.', '_') COLLATE "C", name COLLATE "C"
ON CONFLICT DO NOTHING
RETURNING topic_id;

-- name: raise_partition_counts
-- Increase the numbers of partitions of topics that have fewer than given.
UPDATE topics AS t SET partition_count = given.partition_count
FROM unnest(%(topic_ids)s::uuid[], %(partition_counts)s::integer[]) AS given (topic_id, partition_count)
WHERE t.topic_id = given.topic_id AND t.deleted_ms IS NULL AND t.partition_count < given.partition_count;
