-- name: read_gaps
-- Return the recorded gaps in the sequences of a file's producers. `number` is the ordinal (from 1) in the
-- parameters, as in `read_producers`.
SELECT requested.number, g.producer_id, g.producer_epoch, g.first_sequence, g.last_sequence
FROM unnest(
    %(topic_ids)s::uuid[],
    %(partitions)s::integer[],
    %(producer_ids)s::bigint[]
) WITH ORDINALITY AS requested (topic_id, partition, producer_id, number)
JOIN sequence_gaps AS g USING (topic_id, partition, producer_id);

-- name: delete_gaps
-- Delete gaps that were filled, at least in part.
DELETE FROM sequence_gaps AS g
USING unnest(
    %(topic_ids)s::uuid[], %(partitions)s::integer[], %(producer_ids)s::bigint[], %(producer_epochs)s::integer[],
    %(first_sequences)s::integer[]
) AS v (topic_id, partition, producer_id, producer_epoch, first_sequence)
WHERE g.topic_id = v.topic_id AND g.partition = v.partition AND g.producer_id = v.producer_id
  AND g.producer_epoch = v.producer_epoch AND g.first_sequence = v.first_sequence;

-- name: insert_gaps
-- Record gaps.
INSERT INTO sequence_gaps (
    topic_id, partition, producer_id, producer_epoch, first_sequence, last_sequence, found_ms
)
SELECT v.*, %(now_ms)s
FROM unnest(
    %(topic_ids)s::uuid[], %(partitions)s::integer[], %(producer_ids)s::bigint[], %(producer_epochs)s::integer[],
    %(first_sequences)s::integer[], %(last_sequences)s::integer[]
) AS v
ON CONFLICT (topic_id, partition, producer_id, producer_epoch, first_sequence) DO UPDATE
SET last_sequence = excluded.last_sequence, found_ms = excluded.found_ms;
