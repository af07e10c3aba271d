-- name: new_producer_id
-- A producer id that was never given before.
SELECT nextval('producer_ids');

-- name: producers_of
-- The idempotent producers of a partition that are remembered, in a bounded number, the latest first.
SELECT producer_id, producer_epoch, batches, updated_ms
FROM producers
WHERE topic_id = %(topic_id)s AND partition = %(partition)s
ORDER BY updated_ms DESC, producer_id
LIMIT %(limit)s;
