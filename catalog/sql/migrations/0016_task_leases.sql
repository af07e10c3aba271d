-- kind: expansion
-- The process that runs a periodic task, until when by the catalog's clock, and the last success of any process.
ALTER TABLE periodic_tasks ADD COLUMN holder_id uuid;
ALTER TABLE periodic_tasks ADD COLUMN lease_end_ms bigint NOT NULL DEFAULT 0;
ALTER TABLE periodic_tasks ADD COLUMN succeeded_ms bigint;
