-- name: new_producer_id
-- A producer id that was never given before.
SELECT nextval('producer_ids');

-- name: producers_of
-- The idempotent producers of partitions that are remembered, of each in a bounded number, the latest first.
SELECT wanted.topic_id, wanted.partition, known.producer_id, known.producer_epoch, known.batches, known.updated_ms
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[]) AS wanted (topic_id, partition)
CROSS JOIN LATERAL (
    SELECT p.producer_id, p.producer_epoch, p.batches, p.updated_ms
    FROM producers AS p
    WHERE p.topic_id = wanted.topic_id AND p.partition = wanted.partition
    ORDER BY p.updated_ms DESC, p.producer_id
    LIMIT %(limit)s
) AS known
ORDER BY wanted.topic_id, wanted.partition, known.updated_ms DESC, known.producer_id;

-- name: admit_producers
-- Lets producers that their partitions do not know begin there with any number; only ids that were given.
WITH wanted AS (
    SELECT topic_id, partition, max(producer_id) + 1 AS producers_from
    FROM unnest(
        %(topic_ids)s::uuid[],
        %(partitions)s::integer[],
        %(producer_ids)s::bigint[]
    ) AS named (topic_id, partition, producer_id)
    CROSS JOIN producer_ids AS given
    WHERE producer_id BETWEEN 0 AND given.last_value
      AND NOT EXISTS (
          SELECT FROM producers AS p
          WHERE p.topic_id = named.topic_id AND p.partition = named.partition AND p.producer_id = named.producer_id
      )
    GROUP BY topic_id, partition
),
held AS (
    SELECT topic_id, partition, w.producers_from
    FROM wanted AS w JOIN partitions AS p USING (topic_id, partition)
    WHERE p.producers_from < w.producers_from
    ORDER BY topic_id, partition
    FOR UPDATE OF p
)
UPDATE partitions AS p SET producers_from = greatest(p.producers_from, h.producers_from)
FROM held AS h
WHERE p.topic_id = h.topic_id AND p.partition = h.partition;
