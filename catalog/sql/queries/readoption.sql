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
