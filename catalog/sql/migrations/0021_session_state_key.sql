-- kind: online expansion
-- A change of the state waits for commits that lock the session FOR KEY SHARE; a heartbeat does not.
CREATE UNIQUE INDEX CONCURRENTLY sessions_state ON sessions (session_id, state);
