-- name: missing_topics
-- Return those of some topics that have no row, or fewer partitions than given; deleted topics are left out. With
-- `all_living`, return also topics with enough partitions.
SELECT requested.topic_id, t.name, requested.partition_count
FROM unnest(%(topic_ids)s::uuid[], %(partition_counts)s::integer[]) AS requested (topic_id, partition_count)
LEFT JOIN topics AS t USING (topic_id)
WHERE t.deleted_ms IS NULL AND (%(all_living)s OR coalesce(t.partition_count, 0) < requested.partition_count)
ORDER BY requested.topic_id;
