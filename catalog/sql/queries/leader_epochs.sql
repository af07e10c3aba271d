-- name: epochs_of_partitions
-- Return the leader epochs of some partitions with their first offsets.
SELECT topic_id, partition, leader_epoch, start_offset
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS requested (topic_id, partition)
JOIN leader_epochs USING (topic_id, partition)
ORDER BY topic_id, partition, leader_epoch;
