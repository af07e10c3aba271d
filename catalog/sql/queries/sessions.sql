-- name: register_session
-- Makes a session known; a second try changes nothing.
INSERT INTO sessions (session_id, description, started_ms, heartbeat_ms, node_id, host, port, rack, has_local_logs)
VALUES (%(session_id)s, %(description)s, %(now_ms)s, %(now_ms)s, %(node_id)s, %(host)s, %(port)s, %(rack)s,
        %(has_local_logs)s)
ON CONFLICT DO NOTHING;

-- name: fence_namesakes
-- A node lives once: its disks are locked by one process, so an older session of it is a dead one's.
UPDATE sessions SET state = 'fenced', over_ms = %(now_ms)s
WHERE node_id = %(node_id)s AND session_id <> %(session_id)s AND state = 'active';

-- name: heartbeat_session
-- Notes that a session lives, unless it may no longer; gives how long nothing had been heard of it.
WITH before AS (
    SELECT session_id, heartbeat_ms FROM sessions
    WHERE session_id = %(session_id)s AND state = 'active'
    FOR UPDATE
)
UPDATE sessions SET heartbeat_ms = greatest(before.heartbeat_ms, %(now_ms)s)
FROM before
WHERE sessions.session_id = before.session_id
RETURNING sessions.heartbeat_ms - before.heartbeat_ms;

-- name: end_session
-- Ends a session that stops in an orderly way.
UPDATE sessions SET state = 'ended', over_ms = %(now_ms)s WHERE session_id = %(session_id)s AND state = 'active';

-- name: fence_session
-- Makes sure that a session cannot commit any more; waits for a commit of it that is under way.
UPDATE sessions SET state = 'fenced', over_ms = %(now_ms)s WHERE session_id = %(session_id)s AND state = 'active';

-- name: fence_silent_sessions
-- Fences the sessions that have not been heard of for long.
UPDATE sessions SET state = 'fenced', over_ms = %(now_ms)s
WHERE state = 'active' AND heartbeat_ms < %(before_ms)s
RETURNING session_id;

-- name: find_session
-- One session.
SELECT session_id, description, state, started_ms, heartbeat_ms, over_ms FROM sessions WHERE session_id = %(session_id)s;

-- name: list_sessions
-- The sessions that may commit.
SELECT session_id, description, state, started_ms, heartbeat_ms, over_ms
FROM sessions
WHERE state = 'active'
ORDER BY session_id;
