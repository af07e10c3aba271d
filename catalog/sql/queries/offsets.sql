-- name: lock_claimed_group
-- Lock a group against changes and against commits of offsets until the transaction ends; no row if another
-- coordinator has claimed it.
SELECT generation FROM consumer_groups
WHERE group_id = %(group_id)s AND claim_id = %(claim_id)s
FOR UPDATE;

-- name: lock_group_to_commit
-- Lock a group against changes until the transaction ends, and return the topics that do not exist; no row if another
-- coordinator has claimed it. A topic that is deleted after this statement counts as deleted after the commit.
SELECT generation, ARRAY(
    SELECT DISTINCT topic_id FROM unnest(%(topic_ids)s::uuid[]) AS given (topic_id)
    WHERE NOT EXISTS (SELECT FROM topics AS t WHERE t.topic_id = given.topic_id AND t.deleted_ms IS NULL)
) AS deleted_topic_ids
FROM consumer_groups
WHERE group_id = %(group_id)s AND claim_id = %(claim_id)s
FOR SHARE;

-- name: commit_offsets
-- Store offsets of partitions whose topics exist.
INSERT INTO committed_offsets (
    group_id, topic_id, partition, committed_offset, leader_epoch, metadata, committed_ms, expires_ms, commit_number
)
SELECT %(group_id)s, topic_id, partition, committed_offset, leader_epoch, metadata, now_ms,
       now_ms + %(retention_ms)s::bigint, (SELECT nextval('offset_commits'))
FROM (
    SELECT coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
) AS clock, unnest(
    %(topic_ids)s::uuid[], %(partitions)s::integer[], %(offsets)s::bigint[], %(leader_epochs)s::integer[],
    %(metadata)s::bytea[]
) AS given (topic_id, partition, committed_offset, leader_epoch, metadata)
JOIN topics USING (topic_id)
WHERE deleted_ms IS NULL
ORDER BY topic_id, partition
ON CONFLICT (group_id, topic_id, partition) DO UPDATE
SET committed_offset = EXCLUDED.committed_offset, leader_epoch = EXCLUDED.leader_epoch,
    metadata = EXCLUDED.metadata, committed_ms = EXCLUDED.committed_ms, expires_ms = EXCLUDED.expires_ms,
    commit_number = EXCLUDED.commit_number;

-- name: fetch_offsets
-- Return the offsets of the given pairs of group and partition, and whether a transaction may change them. One
-- statement reads one snapshot, so a transaction either is open or has changed the offset.
-- The scalar subquery makes PostgreSQL look each pair up. For EXISTS it may read the pending offsets of all groups.
SELECT *
FROM (
    SELECT topic_id, partition, coalesce(o.committed_offset, -1) AS committed_offset,
           coalesce(o.leader_epoch, -1) AS leader_epoch, coalesce(o.metadata, '') AS metadata, group_id,
           (
               SELECT true FROM pending_offsets AS p
               WHERE p.group_id = requested.group_id AND p.topic_id = requested.topic_id
                 AND p.partition = requested.partition
               LIMIT 1
           ) IS NOT NULL AS is_unstable
    FROM unnest(%(group_ids)s::text[], %(topic_ids)s::uuid[], %(partitions)s::integer[])
        AS requested (group_id, topic_id, partition)
    LEFT JOIN committed_offsets AS o USING (group_id, topic_id, partition)
) AS found
WHERE committed_offset >= 0 OR is_unstable;

-- name: fetch_all_offsets
-- Return all offsets of some groups with the names of their topics, as `fetch_offsets` does.
SELECT o.topic_id, o.partition, o.committed_offset, o.leader_epoch, o.metadata, o.group_id, t.name AS topic_name,
       (
           SELECT true FROM pending_offsets AS p
           WHERE p.group_id = o.group_id AND p.topic_id = o.topic_id AND p.partition = o.partition
           LIMIT 1
       ) IS NOT NULL AS is_unstable
FROM committed_offsets AS o
JOIN topics AS t USING (topic_id)
WHERE o.group_id = ANY(%(group_ids)s::text[]) AND t.deleted_ms IS NULL
ORDER BY o.group_id, t.name, o.partition;

-- name: lag_page
-- Return the next committed offsets by key with the high watermarks of their partitions. The name is NULL for
-- a deleted topic, the high watermark for a local topic, whose log ends on a disk.
WITH page AS (
    SELECT group_id, topic_id, partition, committed_offset
    FROM committed_offsets
    WHERE (group_id, topic_id, partition)
        > (%(group_id)s::text, %(topic_id)s::uuid, %(partition)s::integer)
    ORDER BY group_id, topic_id, partition
    LIMIT %(limit)s
)
SELECT
    page.group_id, page.topic_id, page.partition, page.committed_offset, t.name AS topic_name,
    CASE WHEN t.config ->> 'storage.mode' = 'local' THEN NULL ELSE p.high_watermark END AS high_watermark
FROM page
LEFT JOIN topics AS t ON t.topic_id = page.topic_id AND t.deleted_ms IS NULL
LEFT JOIN partitions AS p ON p.topic_id = page.topic_id AND p.partition = page.partition
ORDER BY page.group_id, page.topic_id, page.partition;

-- name: delete_offsets
-- Delete the offsets of a group in these partitions, also those that ongoing transactions would commit.
WITH unwanted AS (
    SELECT topic_id, partition
    FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS given (topic_id, partition)
),
pending AS (
    DELETE FROM pending_offsets AS o USING unwanted
    WHERE o.group_id = %(group_id)s AND o.topic_id = unwanted.topic_id AND o.partition = unwanted.partition
)
DELETE FROM committed_offsets AS o USING unwanted
WHERE o.group_id = %(group_id)s AND o.topic_id = unwanted.topic_id AND o.partition = unwanted.partition;

-- name: expire_offsets
-- Delete the expired offsets of some groups. Offsets of a deleted topic stay until its row is removed, and those that
-- an ongoing transaction may change until it ends. A group with members keeps the offsets of the topics that they
-- subscribe to, or all if these are unknown. An explicit expiry time of the commit applies to all other offsets.
-- Without one, the age counts from when the last member left a classic group that had members, otherwise from the
-- commit.
DELETE FROM committed_offsets AS o
USING consumer_groups AS g, topics AS t
WHERE o.group_id = ANY(%(group_ids)s)
    AND g.group_id = o.group_id
    AND t.topic_id = o.topic_id
    AND t.deleted_ms IS NULL
    AND (
        g.member_count = 0
        OR g.subscribed_topics IS NOT NULL AND t.name <> ALL(g.subscribed_topics)
    )
    AND CASE
        WHEN o.expires_ms IS NOT NULL THEN o.expires_ms <= %(now_ms)s
        WHEN g.group_type = 'classic' AND g.member_count = 0 AND g.protocol_type IS NOT NULL
            THEN g.state_ms <= %(before_ms)s
        ELSE o.committed_ms <= %(before_ms)s
    END
    AND NOT EXISTS (
        SELECT FROM pending_offsets AS p
        WHERE p.group_id = o.group_id AND p.topic_id = o.topic_id AND p.partition = o.partition
    );

-- name: lock_unused_groups
-- Lock those of some groups that have had no members for long; skip rows that another transaction has locked.
SELECT group_id FROM consumer_groups
WHERE group_id = ANY(%(group_ids)s) AND member_count = 0 AND state_ms <= %(before_ms)s
FOR UPDATE SKIP LOCKED;

-- name: delete_empty_groups
-- Delete those of some groups that have no offsets, and return them. An earlier statement has locked them, so
-- this one sees all offsets that were committed before.
DELETE FROM consumer_groups AS g
WHERE g.group_id = ANY(%(group_ids)s)
    AND NOT EXISTS (SELECT FROM committed_offsets AS o WHERE o.group_id = g.group_id)
    AND NOT EXISTS (SELECT FROM pending_offsets AS o WHERE o.group_id = g.group_id)
RETURNING g.group_id;
