-- Since when a session can commit nothing any more, and when what it left in the bucket was looked for.
ALTER TABLE sessions ADD COLUMN over_ms bigint;
ALTER TABLE sessions ADD COLUMN swept_ms bigint;
UPDATE sessions SET over_ms = heartbeat_ms WHERE state <> 'active';
ALTER TABLE sessions ADD CONSTRAINT over_since CHECK ((state = 'active') = (over_ms IS NULL));
CREATE INDEX sessions_over ON sessions (over_ms) WHERE over_ms IS NOT NULL;
CREATE INDEX sessions_unswept ON sessions (over_ms) WHERE over_ms IS NOT NULL AND swept_ms IS NULL;

-- When what a job's attempts left in the bucket was looked for.
ALTER TABLE jobs ADD COLUMN swept_ms bigint;
CREATE INDEX jobs_over ON jobs (finished_ms) WHERE finished_ms IS NOT NULL;
CREATE INDEX jobs_unswept ON jobs (finished_ms) WHERE finished_ms IS NOT NULL AND swept_ms IS NULL;

-- Live files that were in a job that failed for good. A job that takes one may take most_files in all, half of what
-- the failed one had, until the file that spoils them is alone; then it is quarantined, and in no job any more.
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

-- When a chore that all processes share was last begun.
CREATE TABLE chores (
    name text PRIMARY KEY,
    begun_ms bigint NOT NULL
);
