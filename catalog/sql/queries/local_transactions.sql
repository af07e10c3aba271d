-- name: add_partitions
-- Add partitions of local topics to an ongoing transaction whose id is locked. Partitions that do not exist are skipped.
WITH added AS (
    INSERT INTO local_transaction_partitions (producer_id, topic_id, partition)
    SELECT %(producer_id)s, p.topic_id, p.partition
    FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS given (topic_id, partition)
    JOIN partitions AS p USING (topic_id, partition)
    ORDER BY p.topic_id, p.partition
    FOR KEY SHARE OF p
    ON CONFLICT DO NOTHING
)
UPDATE transactional_ids SET has_local_partitions = true
WHERE producer_id = %(producer_id)s AND NOT has_local_partitions;

-- name: pending_of_producer
-- Return the partitions among the given ones with a pending marker of a producer.
SELECT t.topic_id, t.partition
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS given (topic_id, partition)
JOIN local_transaction_partitions AS t USING (topic_id, partition)
WHERE t.producer_id = %(producer_id)s AND t.commits IS NOT NULL;

-- name: find_partition
-- Return whether a marker of a producer is pending in a partition; no row if the producer has not added the partition.
SELECT commits IS NOT NULL AS is_pending, producer_epoch, first_sequence FROM local_transaction_partitions
WHERE producer_id = %(producer_id)s AND topic_id = %(topic_id)s AND partition = %(partition)s;

-- name: set_first_batch
-- Record the first batch of an ongoing transaction in a partition.
UPDATE local_transaction_partitions
SET producer_epoch = %(producer_epoch)s, first_sequence = %(first_sequence)s
WHERE producer_id = %(producer_id)s AND topic_id = %(topic_id)s AND partition = %(partition)s AND commits IS NULL;

-- name: end_partitions
-- End a transaction in its local partitions: leave a pending marker in each that may have a batch, and drop the others.
-- Return the nodes that lead the first ones.
WITH dropped AS (
    DELETE FROM local_transaction_partitions
    WHERE producer_id = %(producer_id)s AND commits IS NULL AND first_sequence IS NULL
),
ended AS (
    UPDATE local_transaction_partitions AS t
    SET commits = %(commits)s, marker_epoch = %(control_epoch)s, coordinator_epoch = %(epoch)s, ended_ms = %(now_ms)s,
        node_id = (
            SELECT l.node_id FROM local_leaders AS l WHERE l.topic_id = t.topic_id AND l.partition = t.partition
        )
    WHERE producer_id = %(producer_id)s AND commits IS NULL AND first_sequence IS NOT NULL
    RETURNING t.node_id
)
SELECT DISTINCT node_id FROM ended WHERE node_id IS NOT NULL;

-- name: pending_markers
-- Return a page of the pending markers of the partitions that a node leads, oldest first. It does not read those of
-- other nodes, which may be away for long. Markers without a node are of code that does not know the column.
SELECT number, topic_id, partition, producer_id, producer_epoch, first_sequence, commits, marker_epoch,
       coordinator_epoch, ended_ms
FROM (
    (
        SELECT * FROM local_transaction_partitions
        WHERE commits IS NOT NULL AND node_id = %(node_id)s AND number > %(after)s
        ORDER BY number
        LIMIT %(limit)s
    )
    UNION ALL
    (
        SELECT t.* FROM local_transaction_partitions AS t JOIN local_leaders AS l USING (topic_id, partition)
        WHERE t.commits IS NOT NULL AND t.node_id IS NULL AND t.number > %(after)s AND l.node_id = %(node_id)s
        ORDER BY t.number
        LIMIT %(limit)s
    )
) AS pending
ORDER BY number
LIMIT %(limit)s;

-- name: complete_markers
-- Delete pending markers that are in their logs.
DELETE FROM local_transaction_partitions AS t
USING unnest(
    %(producer_ids)s::bigint[], %(topic_ids)s::uuid[], %(partitions)s::integer[], %(numbers)s::bigint[]
) AS done (producer_id, topic_id, partition, number)
WHERE t.producer_id = done.producer_id AND t.topic_id = done.topic_id AND t.partition = done.partition
  AND t.number = done.number AND t.commits IS NOT NULL;

-- name: announce
-- Let the leaders of local partitions look for pending markers. The transaction waits for no disk.
SELECT set_config('synchronous_commit', 'off', true), pg_notify(%(channel)s::text, '');

-- name: wrong_partitions
-- Return local partitions of transactions that are not ongoing and have no pending marker, and those of transactions
-- whose end would forget them, a bounded number.
SELECT t.topic_id, t.partition, t.producer_id
FROM local_transaction_partitions AS t
WHERE t.commits IS NULL AND NOT EXISTS (
    SELECT FROM transactional_ids AS i
    WHERE i.producer_id = t.producer_id AND i.state = 'ongoing' AND i.has_local_partitions
)
ORDER BY t.topic_id, t.partition, t.producer_id
LIMIT %(limit)s;
