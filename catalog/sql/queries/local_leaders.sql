-- name: claim_partitions
-- Gives partitions that nobody leads to the nodes that were chosen for them; the first one who asks decides.
INSERT INTO local_leaders (topic_id, partition, node_id)
SELECT wanted.topic_id, wanted.partition, wanted.node_id
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(node_ids)s::integer[])
    AS wanted (topic_id, partition, node_id)
JOIN partitions USING (topic_id, partition)
ORDER BY wanted.topic_id, wanted.partition
ON CONFLICT DO NOTHING;

-- name: leaders_of_topics
-- Who leads which partition of these topics.
SELECT topic_id, partition, node_id, leader_epoch
FROM unnest(%(topic_ids)s::uuid[]) AS wanted (topic_id)
JOIN local_leaders USING (topic_id)
ORDER BY topic_id, partition;

-- name: begin_epochs
-- A node that has opened its logs anew: each partition that it leads goes on in the next epoch.
UPDATE local_leaders SET leader_epoch = leader_epoch + 1
WHERE node_id = %(node_id)s
RETURNING topic_id, partition, leader_epoch;
