-- kind: expansion
-- Back-off of deletions: a dead file, or the objects that a session or a job left, that could not be deleted is
-- tried again after retry_ms. failures counts its consecutive failures.
LOCK TABLE files, sessions, jobs IN ACCESS EXCLUSIVE MODE;
ALTER TABLE files ADD COLUMN failures integer NOT NULL DEFAULT 0;
ALTER TABLE files ADD COLUMN retry_ms bigint;
ALTER TABLE sessions ADD COLUMN failures integer NOT NULL DEFAULT 0;
ALTER TABLE sessions ADD COLUMN retry_ms bigint;
ALTER TABLE jobs ADD COLUMN failures integer NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN retry_ms bigint;
