-- kind: online expansion
-- Each heartbeat counts the unsettled sessions, and reads none of the others.
CREATE INDEX CONCURRENTLY sessions_unsettled ON sessions (session_id) WHERE unsettled IS NOT NULL;
