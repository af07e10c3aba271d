-- name: register_session
-- Insert a session; a retry changes nothing.
INSERT INTO sessions (
    session_id, description, started_ms, heartbeat_ms, node_id, host, port, endpoints, rack, has_local_logs,
    knows_transactions
)
VALUES (%(session_id)s, %(description)s, %(now_ms)s, %(now_ms)s, %(node_id)s, %(host)s, %(port)s,
        %(endpoints)s::jsonb, %(rack)s, %(has_local_logs)s, true)
ON CONFLICT DO NOTHING;

-- name: fence_older_sessions
-- Fence the older sessions of a node. One process at a time locks a node's disks, so the processes of these
-- sessions have died.
UPDATE sessions SET state = 'fenced', closed_ms = %(now_ms)s
WHERE node_id = %(node_id)s AND session_id <> %(session_id)s AND state = 'active';

-- name: heartbeat_session
-- Record a heartbeat of an active session; return the time since the previous one, and the schema's version.
WITH before AS (
    SELECT session_id, heartbeat_ms FROM sessions
    WHERE session_id = %(session_id)s AND state = 'active'
    FOR NO KEY UPDATE
)
UPDATE sessions SET heartbeat_ms = greatest(before.heartbeat_ms, %(now_ms)s), suspected_ms = NULL
FROM before
WHERE sessions.session_id = before.session_id
RETURNING sessions.heartbeat_ms - before.heartbeat_ms AS silence_ms,
    (SELECT version FROM schema_version) AS version, (SELECT min_version FROM schema_version) AS min_version;

-- name: schema_version
-- Return the version of the schema, and the oldest version that code must know.
SELECT version, min_version FROM schema_version;

-- name: end_session
-- End a session whose agent shuts down, unless the server continues on another history: then its commits may be
-- lost, and it must be unsettled.
UPDATE sessions SET state = 'ended', closed_ms = %(now_ms)s WHERE session_id = %(session_id)s AND state = 'active'
  AND (SELECT is_current FROM current_incarnation);

-- name: fence_session
-- Fence a session, so that it cannot commit; wait for its running commits.
UPDATE sessions SET state = 'fenced', closed_ms = %(now_ms)s WHERE session_id = %(session_id)s AND state = 'active';

-- name: mark_silent_sessions
-- Mark the sessions without a recent heartbeat. Rows that another transaction has locked wait for the next time.
UPDATE sessions AS s SET suspected_ms = l.now_ms
FROM (
    SELECT session_id, now_ms
    FROM sessions, (
        SELECT coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
    ) AS clock
    WHERE state = 'active' AND heartbeat_ms < now_ms - %(silence_ms)s::bigint
      AND (suspected_ms IS NULL OR suspected_ms <= heartbeat_ms)
    ORDER BY session_id
    FOR UPDATE OF sessions SKIP LOCKED
) AS l
WHERE s.session_id = l.session_id;

-- name: fence_suspected_sessions
-- Fence the sessions that sent no heartbeat since they were marked, if the catalog was reachable for long enough
-- since then; none if the server continues on another history.
UPDATE sessions AS s
SET state = 'fenced', closed_ms = coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
FROM (
    SELECT session_id
    FROM sessions, reachability
    WHERE state = 'active' AND suspected_ms > heartbeat_ms AND (SELECT is_current FROM current_incarnation)
      AND seen_ms - greatest(suspected_ms, since_ms) >= %(confirm_ms)s::bigint
    ORDER BY session_id
    FOR UPDATE OF sessions SKIP LOCKED
) AS l
WHERE s.session_id = l.session_id
RETURNING s.session_id;

-- name: find_session
-- Return one session.
SELECT session_id, description, state, started_ms, heartbeat_ms, closed_ms, unsettled IS NOT NULL AS is_unsettled
FROM sessions
WHERE session_id = %(session_id)s;

-- name: active_sessions
-- Return the active sessions.
SELECT session_id, description, state, started_ms, heartbeat_ms, closed_ms, unsettled IS NOT NULL AS is_unsettled
FROM sessions
WHERE state = 'active'
ORDER BY session_id;

-- name: new_node_id
-- Return a new node id.
SELECT nextval('broker_ids')::integer AS node_id;

-- name: live_brokers
-- Return the agents that serve the Kafka protocol and sent a heartbeat recently. Silence counts only while the
-- catalog was reachable.
SELECT node_id, host, port, endpoints, rack, has_local_logs
FROM sessions, reachability
WHERE state = 'active' AND node_id IS NOT NULL
  AND seen_ms - greatest(heartbeat_ms, since_ms) <= %(silent_ms)s::bigint
ORDER BY node_id;

-- name: cluster_id
-- Return the cluster id for Kafka clients.
SELECT cluster_id FROM cluster;
