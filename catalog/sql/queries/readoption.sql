-- name: adopt_session
-- Insert a session that the catalog does not know, because its registration was lost.
INSERT INTO sessions (session_id, description, state, started_ms, heartbeat_ms, closed_ms, unsettled)
SELECT %(session_id)s, 'lost registration', 'fenced', now_ms, now_ms, now_ms, 'reported'
FROM (
    SELECT coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
) AS clock
ON CONFLICT DO NOTHING;

-- name: lock_unsettled
-- Lock the session if its objects are kept: until the readoption ends, the session is not settled.
SELECT session_id FROM sessions
WHERE session_id = %(session_id)s AND unsettled IS NOT NULL
FOR SHARE;

-- name: record_readoption
-- Record that a lost file was committed again.
INSERT INTO lost_commits AS l (
    file_id, epoch, session_id, object_name, number, acknowledged, found_ms, old_offsets, outcome, outcome_ms, new_offsets
)
VALUES (
    %(file_id)s, %(leader_epoch)s, %(session_id)s, %(object_name)s, 0, false, %(now_ms)s, '[]', 'readopted', %(now_ms)s,
    %(new_offsets)s
)
ON CONFLICT (file_id) DO UPDATE
SET outcome = excluded.outcome, outcome_ms = excluded.outcome_ms, new_offsets = excluded.new_offsets, detail = NULL;

-- name: read_gaps
-- Return the gaps that readoptions left in the sequences of a file's producers. `number` is the ordinal (from 1) in the
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
-- Record the gaps that a readoption left.
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
