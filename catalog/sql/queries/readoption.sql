-- name: adopt_session
-- Insert a session that the catalog does not know, because its registration was lost. Any other of its objects may be
-- acknowledged, too, so it counts as one whose agent has not reported. No agent waits for it.
INSERT INTO sessions (session_id, description, state, started_ms, heartbeat_ms, closed_ms, unsettled)
VALUES (%(session_id)s, 'lost registration', 'fenced', 0, 0, 0, 'unverified')
ON CONFLICT DO NOTHING;

-- name: lock_unsettled
-- Lock the session if its objects are kept: until the readoption ends, the session is not settled. Return whether the
-- file was readopted before; the result of that may have expired.
SELECT EXISTS (SELECT FROM lost_commits WHERE file_id = %(file_id)s AND outcome = 'readopted') AS is_readopted
FROM sessions
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
