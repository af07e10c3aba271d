-- kind: expansion
-- Faults of jobs: deaths of their workers, faults of the environment, and when they may be claimed again. The
-- circuit breaker pauses compaction while unrelated jobs fail alike.
ALTER TABLE jobs
    ADD COLUMN deaths integer NOT NULL DEFAULT 0,
    ADD COLUMN faults integer NOT NULL DEFAULT 0,
    ADD COLUMN not_before_ms bigint NOT NULL DEFAULT 0;
CREATE TABLE compaction_breaker (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    error text NOT NULL,
    message text NOT NULL,
    job_ids uuid[] NOT NULL,
    failed_ms bigint NOT NULL,
    pauses integer NOT NULL DEFAULT 0,
    paused_ms bigint,
    not_before_ms bigint,
    probe_attempt_id uuid
);
