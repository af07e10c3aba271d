-- name: claim_partitions
-- Assign partitions without a leader to nodes. The first caller wins. A partition that is removed meanwhile is skipped.
INSERT INTO local_leaders (topic_id, partition, node_id, directory_id)
SELECT requested.topic_id, requested.partition, requested.node_id, %(unassigned)s::uuid
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(node_ids)s::integer[])
    AS requested (topic_id, partition, node_id)
JOIN partitions USING (topic_id, partition)
ORDER BY requested.topic_id, requested.partition
FOR KEY SHARE OF partitions
ON CONFLICT DO NOTHING;

-- name: claim_found
-- Assign partitions to the node that has their logs with records, if they have no leader, or one without a log. A log
-- continues in a later leader epoch than any of its records.
INSERT INTO local_leaders (topic_id, partition, node_id, leader_epoch, directory_id)
SELECT found.topic_id, found.partition, %(node_id)s, greatest(found.leader_epoch + 1, i.epoch), found.directory_id
FROM unnest(
    %(topic_ids)s::uuid[], %(partitions)s::integer[], %(leader_epochs)s::integer[], %(directory_ids)s::uuid[]
) AS found (topic_id, partition, leader_epoch, directory_id)
JOIN partitions AS p USING (topic_id, partition)
JOIN topics AS t USING (topic_id)
CROSS JOIN catalog_incarnation AS i
WHERE t.config ->> 'storage.mode' = 'local'
ORDER BY found.topic_id, found.partition
FOR KEY SHARE OF p
ON CONFLICT (topic_id, partition) DO UPDATE
SET node_id = excluded.node_id, directory_id = excluded.directory_id,
    leader_epoch = greatest(local_leaders.leader_epoch + 1, excluded.leader_epoch)
WHERE local_leaders.node_id <> excluded.node_id AND local_leaders.directory_id = %(unassigned)s;

-- name: led_elsewhere
-- Return those of some partitions that another node leads.
SELECT topic_id, partition, l.node_id
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS found (topic_id, partition)
JOIN local_leaders AS l USING (topic_id, partition)
WHERE l.node_id <> %(node_id)s
ORDER BY topic_id, partition;

-- name: leaders_of_topics
-- Return the leaders of the partitions of some topics.
SELECT topic_id, partition, node_id, leader_epoch, directory_id
FROM unnest(%(topic_ids)s::uuid[]) AS requested (topic_id)
JOIN local_leaders USING (topic_id)
ORDER BY topic_id, partition;

-- name: begin_epochs
-- Increment the leader epoch of each partition that a node leads, when the node has opened its logs.
UPDATE local_leaders SET leader_epoch = leader_epoch + 1
WHERE node_id = %(node_id)s
RETURNING topic_id, partition, leader_epoch;

-- name: directories_of_node
-- Return the log directory of each partition that a node leads.
SELECT topic_id, partition, directory_id FROM local_leaders
WHERE node_id = %(node_id)s
ORDER BY topic_id, partition;

-- name: lock_leaders
-- Lock the rows of some partitions that a node leads, and return their log directories.
SELECT topic_id, partition, l.directory_id
FROM local_leaders AS l
JOIN unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS requested (topic_id, partition)
    USING (topic_id, partition)
WHERE l.node_id = %(node_id)s
ORDER BY topic_id, partition
FOR UPDATE OF l;

-- name: assign_directories
-- Record the log directories of partitions, which are in another given directory or in none.
UPDATE local_leaders AS l SET directory_id = requested.directory_id
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(directory_ids)s::uuid[])
    AS requested (topic_id, partition, directory_id)
WHERE l.topic_id = requested.topic_id AND l.partition = requested.partition
  AND l.node_id = %(node_id)s AND (l.directory_id IS NULL OR l.directory_id = %(source)s);

-- name: declare_unassigned
-- Record that the partitions of a node without a log directory have no log.
UPDATE local_leaders SET directory_id = %(unassigned)s
WHERE node_id = %(node_id)s AND directory_id IS NULL;
