-- name: new_producer_id
-- Return a producer id that was never assigned before; no row if the server continues on another history.
SELECT nextval('producer_ids') AS producer_id FROM current_incarnation WHERE is_current;

-- name: producers_of_partitions
-- Return the idempotent producers of some partitions, a bounded number each, the most recent first.
SELECT requested.topic_id, requested.partition, known.producer_id, known.producer_epoch, known.batches, known.updated_ms
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS requested (topic_id, partition)
CROSS JOIN LATERAL (
    SELECT p.producer_id, p.producer_epoch, p.batches, p.updated_ms
    FROM producers AS p
    WHERE p.topic_id = requested.topic_id AND p.partition = requested.partition
    ORDER BY p.updated_ms DESC, p.producer_id
    LIMIT %(limit)s
) AS known
ORDER BY requested.topic_id, requested.partition, known.updated_ms DESC, known.producer_id;

-- name: accept_any_sequence
-- Let producers without state in a partition begin there with any sequence number. Unassigned ids are
-- ignored.
WITH requested AS (
    SELECT topic_id, partition, max(producer_id) + 1 AS first_new_producer_id
    FROM unnest(
        %(topic_ids)s::uuid[],
        %(partitions)s::integer[],
        %(producer_ids)s::bigint[]
    ) AS given (topic_id, partition, producer_id)
    CROSS JOIN producer_ids AS assigned
    WHERE producer_id BETWEEN 0 AND assigned.last_value
      AND NOT EXISTS (
          SELECT FROM producers AS p
          WHERE p.topic_id = given.topic_id AND p.partition = given.partition AND p.producer_id = given.producer_id
      )
    GROUP BY topic_id, partition
),
locked AS (
    SELECT topic_id, partition, w.first_new_producer_id
    FROM requested AS w JOIN partitions AS p USING (topic_id, partition)
    WHERE p.first_new_producer_id < w.first_new_producer_id
    ORDER BY topic_id, partition
    FOR UPDATE OF p
)
UPDATE partitions AS p
SET first_new_producer_id = greatest(p.first_new_producer_id, l.first_new_producer_id)
FROM locked AS l
WHERE p.topic_id = l.topic_id AND p.partition = l.partition;
