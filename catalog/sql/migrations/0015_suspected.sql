-- kind: expansion
-- When a session or a running job was found silent. A later heartbeat voids the mark.
LOCK TABLE sessions, jobs IN ACCESS EXCLUSIVE MODE;
ALTER TABLE sessions ADD COLUMN suspected_ms bigint;
ALTER TABLE jobs ADD COLUMN suspected_ms bigint;

-- When a process last found the catalog reachable, and since when without a gap of more than some seconds.
-- Silence counts only within that time, because no process can send a heartbeat during an outage.
CREATE TABLE reachability (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    since_ms bigint NOT NULL DEFAULT 0,
    seen_ms bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO reachability DEFAULT VALUES;
