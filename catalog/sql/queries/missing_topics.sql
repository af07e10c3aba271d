-- name: missing_topics
-- Return those of some topics that have no row, or fewer partitions than given. With `all_living`, return also topics
-- with enough partitions. Of the deleted topics, return those that can be undeleted, and that were deleted in the epoch
-- of a lost commit or before; if that epoch is not known, in an earlier epoch than the current one. An earlier release
-- did not record the epoch of a deletion: it counts as older than every commit.
SELECT requested.topic_id, t.name, requested.partition_count, t.deleted_ms IS NOT NULL AS is_deleted
FROM unnest(%(topic_ids)s::uuid[], %(partition_counts)s::integer[]) AS requested (topic_id, partition_count)
CROSS JOIN catalog_incarnation AS i
LEFT JOIN topics AS t USING (topic_id)
WHERE CASE
    WHEN t.deleted_ms IS NULL THEN %(all_living)s OR coalesce(t.partition_count, 0) < requested.partition_count
    ELSE t.purged_ms IS NULL AND (
        SELECT count(*) = t.partition_count
            AND coalesce(max((d.state ->> 'deleted_epoch')::integer), -1)
                <= coalesce(%(committed_epoch)s::integer, i.epoch - 1)
        FROM deleted_partitions AS d
        WHERE d.topic_id = t.topic_id
    )
END
ORDER BY requested.topic_id;
