-- name: claim_partitions
-- Assign partitions without a leader to nodes. The first caller wins.
INSERT INTO local_leaders (topic_id, partition, node_id)
SELECT requested.topic_id, requested.partition, requested.node_id
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(node_ids)s::integer[])
    AS requested (topic_id, partition, node_id)
JOIN partitions USING (topic_id, partition)
ORDER BY requested.topic_id, requested.partition
ON CONFLICT DO NOTHING;

-- name: leaders_of_topics
-- Return the leaders of the partitions of some topics.
SELECT topic_id, partition, node_id, leader_epoch
FROM unnest(%(topic_ids)s::uuid[]) AS requested (topic_id)
JOIN local_leaders USING (topic_id)
ORDER BY topic_id, partition;

-- name: begin_epochs
-- Increment the leader epoch of each partition that a node leads, when the node has opened its logs.
UPDATE local_leaders SET leader_epoch = leader_epoch + 1
WHERE node_id = %(node_id)s
RETURNING topic_id, partition, leader_epoch;
