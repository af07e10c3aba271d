-- name: find
-- Return the failures since the last success, and the pause that they caused.
SELECT error, message, job_ids, others, failed_ms, pauses, paused_ms, not_before_ms, probe_attempt_id,
       EXISTS (SELECT FROM jobs AS j WHERE j.attempt_id = b.probe_attempt_id AND j.state = 'running') AS is_probing
FROM compaction_breaker AS b;

-- name: insert
-- Record the first of several failures in a row, unless there is one.
INSERT INTO compaction_breaker (error, message, job_ids, failed_ms)
VALUES (%(error)s, %(message)s, '{}', %(now_ms)s)
ON CONFLICT DO NOTHING;

-- name: lock
-- Lock the row, and return it as `find` does.
SELECT error, message, job_ids, others, failed_ms, pauses, paused_ms, not_before_ms, probe_attempt_id,
       EXISTS (SELECT FROM jobs AS j WHERE j.attempt_id = b.probe_attempt_id AND j.state = 'running') AS is_probing
FROM compaction_breaker AS b
FOR UPDATE OF b;

-- name: shares_input
-- Return a row if a job is one of the given jobs, or reads a file of one of them.
SELECT 1 WHERE %(job_id)s = ANY (%(job_ids)s::uuid[]) OR EXISTS (
    SELECT FROM job_files AS mine
    JOIN job_files AS theirs USING (file_id)
    WHERE mine.job_id = %(job_id)s AND theirs.job_id = ANY (%(job_ids)s::uuid[])
);

-- name: update
-- Record a failure, and the pause if there is one.
UPDATE compaction_breaker
SET error = %(error)s, message = %(message)s, job_ids = %(job_ids)s::uuid[], others = %(others)s,
    failed_ms = %(now_ms)s, pauses = %(pauses)s, paused_ms = %(paused_ms)s, not_before_ms = %(not_before_ms)s,
    probe_attempt_id = NULL;

-- name: set_probe
-- Record the only attempt that may run during a pause.
UPDATE compaction_breaker SET probe_attempt_id = %(attempt_id)s;

-- name: delete
-- Forget all failures; return their class, and the number of pauses that they had caused.
DELETE FROM compaction_breaker RETURNING error, pauses;

-- name: end_back_off
-- Make waiting jobs claimable at once, except those that have failed often, and forget deaths unless they may be theirs.
-- After a reset by an operator, forget everything.
UPDATE jobs
SET not_before_ms = 0, faults = CASE WHEN %(is_reset)s THEN 0 ELSE faults END,
    deaths = CASE WHEN %(keeps_deaths)s THEN deaths ELSE 0 END
WHERE job_id IN (
    SELECT job_id FROM jobs
    WHERE state = 'submitted' AND (not_before_ms > 0 OR deaths > 0 OR faults > 0)
      AND (faults < %(own_faults)s OR %(is_reset)s)
    ORDER BY sequence
    FOR UPDATE SKIP LOCKED
);
