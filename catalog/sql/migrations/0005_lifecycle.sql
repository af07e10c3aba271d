-- kind: contraction, minimum 5
-- The time at which a session was closed, and at which the objects that it left without a commit were
-- deleted.
ALTER TABLE sessions ADD COLUMN over_ms bigint;
ALTER TABLE sessions ADD COLUMN swept_ms bigint;
UPDATE sessions SET over_ms = heartbeat_ms WHERE state <> 'active';
ALTER TABLE sessions ADD CONSTRAINT over_since CHECK ((state = 'active') = (over_ms IS NULL));
CREATE INDEX sessions_over ON sessions (over_ms) WHERE over_ms IS NOT NULL;
CREATE INDEX sessions_unswept ON sessions (over_ms) WHERE over_ms IS NOT NULL AND swept_ms IS NULL;

-- The time at which the objects of a job's superseded attempts were deleted.
ALTER TABLE jobs ADD COLUMN swept_ms bigint;
CREATE INDEX jobs_over ON jobs (finished_ms) WHERE finished_ms IS NOT NULL;
CREATE INDEX jobs_unswept ON jobs (finished_ms) WHERE finished_ms IS NOT NULL AND swept_ms IS NULL;

-- Live files of failed jobs. A job that takes one of them has at most most_files files, half of those of the
-- failed job, until the faulty file is alone. It is quarantined then, and no job takes it.
CREATE TABLE suspects (
    file_id uuid PRIMARY KEY REFERENCES files ON DELETE CASCADE,
    most_files integer NOT NULL CHECK (most_files > 0),
    failures integer NOT NULL CHECK (failures > 0),
    job_id uuid NOT NULL,
    reason text NOT NULL,
    failed_ms bigint NOT NULL,
    not_before_ms bigint NOT NULL,
    quarantined_ms bigint
);

-- Periodic tasks that one of all processes runs at a time, and their last start.
CREATE TABLE chores (
    name text PRIMARY KEY,
    begun_ms bigint NOT NULL
);
