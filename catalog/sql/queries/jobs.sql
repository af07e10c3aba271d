-- name: insert_job
-- Insert a job; a retry changes nothing.
INSERT INTO jobs (job_id, state, spec, spec_version, created_ms, moved_bytes, nanodollars)
VALUES (%(job_id)s, 'submitted', %(spec)s, %(spec_version)s, %(now_ms)s, %(moved_bytes)s, %(nanodollars)s)
ON CONFLICT (job_id) DO NOTHING;

-- name: recent_work
-- Sum up the bytes and the cost of recently submitted jobs: the actual counts of completed jobs that reported
-- them, and the planner's estimates of all others.
SELECT coalesce(sum(moved_bytes) FILTER (WHERE NOT counted), 0)::bigint AS expected_bytes,
       coalesce(sum(nanodollars) FILTER (WHERE NOT counted), 0)::bigint AS expected_nanodollars,
       coalesce(sum((counts->>'bytes_in')::bigint) FILTER (WHERE counted), 0)::bigint AS bytes_in,
       coalesce(sum((counts->>'bytes_out')::bigint) FILTER (WHERE counted), 0)::bigint AS bytes_out,
       coalesce(sum(coalesce((counts->>'get_requests')::bigint, 0) + coalesce((counts->>'resumes')::bigint, 0)
                    + coalesce((counts->>'retries')::bigint, 0)) FILTER (WHERE counted), 0)::bigint AS get_requests,
       coalesce(sum(coalesce((counts->>'compacted_files')::bigint, 0)) FILTER (WHERE counted), 0)::bigint AS output_files
FROM (
    SELECT *, state = 'completed' AND counts ? 'bytes_in' AND counts ? 'bytes_out' AS counted FROM jobs
) AS j
WHERE created_ms > coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    - %(window_ms)s::bigint;

-- name: recent_amplification
-- Sum up the bytes that the completed jobs of a recent time took from ingestion files and wrote, over all
-- topics and by topic; the largest sums first.
SELECT c.key AS name, sum(c.value::bigint)::bigint AS total
FROM jobs AS j CROSS JOIN LATERAL jsonb_each_text(j.counts) AS c (key, value)
WHERE j.state = 'completed'
    AND j.created_ms > coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
        - %(window_ms)s::bigint
    AND (c.key ~ '^(ingested|rewritten)_bytes(/|$)')
GROUP BY c.key
ORDER BY total DESC
LIMIT %(limit)s;

-- name: find_claimed
-- Return the jobs that an earlier attempt of the same claim took, if its result was lost.
SELECT job_id, state, spec::text AS spec, attempt_id, application_id, heartbeat_ms, attempts, failure, counts, finished_ms,
       not_before_ms
FROM jobs
WHERE state = 'running' AND attempt_id = ANY (%(attempt_ids)s::uuid[])
ORDER BY sequence;

-- name: count_own
-- Count the jobs that a driver runs, and those among them whose processes have died several times.
SELECT count(*) AS jobs, count(*) FILTER (WHERE deaths >= %(min_deaths)s) AS suspects
FROM jobs
WHERE state = 'running' AND application_id = %(application_id)s;

-- name: claim
-- Claim submitted jobs, oldest first; skip jobs that another driver has locked, that have to wait, or whose
-- specification this process cannot read. A job that would have to wait longer than any job does failed before the clock
-- stepped back, and need not wait. Jobs whose processes have died several times are claimed separately, by the
-- number of deaths; with `lets_others_run`, the only job that has failed since a job was completed is left out. A
-- probe is the job with the fewest faults, and need not wait. The specifications that the process knows are left out.
WITH picked AS (
    SELECT job_id, row_number() OVER (ORDER BY sequence) AS number
    FROM (
        SELECT job_id, sequence FROM jobs
        WHERE state = 'submitted'
            AND (not_before_ms NOT BETWEEN %(now_ms)s + 1 AND %(now_ms)s + %(max_backoff_ms)s::bigint OR %(is_probe)s)
            AND coalesce(spec_version, (spec ->> 'version')::integer) <= %(spec_version)s
            AND (%(is_probe)s OR %(is_suspected)s = (deaths >= %(min_deaths)s))
            AND NOT (%(lets_others_run)s AND EXISTS (SELECT FROM compaction_breaker AS b WHERE b.job_ids = ARRAY[job_id]))
        ORDER BY CASE WHEN %(is_probe)s THEN faults WHEN %(is_suspected)s THEN deaths ELSE 0 END, sequence
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS unclaimed
),
attempt AS (
    SELECT attempt_id, number FROM unnest(%(attempt_ids)s::uuid[]) WITH ORDINALITY AS v (attempt_id, number)
),
claimed AS (
    UPDATE jobs AS j
    SET state = 'running', application_id = %(application_id)s, attempt_id = attempt.attempt_id,
        heartbeat_ms = %(now_ms)s, suspected_ms = NULL, attempts = j.attempts + 1
    FROM picked JOIN attempt USING (number)
    WHERE j.job_id = picked.job_id
    RETURNING j.*
)
SELECT job_id, state, CASE WHEN job_id = ANY (%(known)s::uuid[]) THEN NULL ELSE spec::text END AS spec, attempt_id,
       application_id, heartbeat_ms, attempts, failure, counts, finished_ms, not_before_ms
FROM claimed
ORDER BY sequence;

-- name: heartbeat
-- Record a heartbeat of an attempt, unless it has lost the job.
UPDATE jobs
SET heartbeat_ms = greatest(heartbeat_ms, %(now_ms)s), suspected_ms = NULL
WHERE job_id = %(job_id)s AND state = 'running' AND attempt_id = %(attempt_id)s;

-- name: resubmit
-- Make a running job claimable again; it keeps its extents.
UPDATE jobs
SET state = 'submitted', attempt_id = NULL, application_id = NULL, heartbeat_ms = NULL, suspected_ms = NULL
WHERE job_id = %(job_id)s AND state = 'running' AND attempt_id = %(attempt_id)s;

-- name: resubmit_all
-- Make all running jobs of a driver claimable again; they keep their extents.
UPDATE jobs
SET state = 'submitted', attempt_id = NULL, application_id = NULL, heartbeat_ms = NULL, suspected_ms = NULL
WHERE state = 'running' AND application_id = %(application_id)s;

-- name: back_off
-- Make a running job claimable again after a pause that doubles with each fault.
UPDATE jobs
SET state = 'submitted', attempt_id = NULL, application_id = NULL, heartbeat_ms = NULL, suspected_ms = NULL,
    failure = %(failure)s, deaths = %(deaths)s, faults = faults + 1,
    not_before_ms = %(now_ms)s::bigint
        + least(%(max_backoff_ms)s::bigint, %(min_backoff_ms)s::bigint * (1 << least(faults, 20)))
WHERE job_id = %(job_id)s AND state = 'running' AND attempt_id = %(attempt_id)s;

-- name: count_deaths
-- Return how many attempts of a running job ended with the death of a process, and how many with a fault; lock the job.
SELECT deaths, faults, spec::text AS spec FROM jobs
WHERE job_id = %(job_id)s AND state = 'running' AND attempt_id = %(attempt_id)s
FOR UPDATE;

-- name: count_claimable
-- Count the jobs that `claim` would find.
SELECT count(*) AS jobs FROM jobs
WHERE state = 'submitted'
  AND (not_before_ms NOT BETWEEN %(now_ms)s + 1 AND %(now_ms)s + %(max_backoff_ms)s::bigint OR %(is_probe)s)
  AND coalesce(spec_version, (spec ->> 'version')::integer) <= %(spec_version)s;

-- name: mark_silent_jobs
-- Mark the running jobs without a recent heartbeat. Rows that another transaction has locked wait for the next
-- time.
UPDATE jobs AS j SET suspected_ms = l.now_ms
FROM (
    SELECT job_id, now_ms
    FROM jobs, (
        SELECT coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
    ) AS clock
    WHERE state = 'running' AND heartbeat_ms < now_ms - %(silence_ms)s::bigint
      AND (suspected_ms IS NULL OR suspected_ms <= heartbeat_ms)
    ORDER BY sequence
    FOR UPDATE OF jobs SKIP LOCKED
) AS l
WHERE j.job_id = l.job_id;

-- name: resubmit_suspected
-- Make the running jobs claimable again that sent no heartbeat since they were marked, if the catalog was
-- reachable for long enough since then, unless their processes have died too often. During a pause of compaction, a
-- silence is no death: the environment may be its cause. Return the attempts that ended, by driver.
WITH silent AS (
    SELECT job_id, attempt_id, application_id, is_paused
    FROM jobs, reachability, (SELECT EXISTS (SELECT FROM compaction_breaker WHERE pauses > 0) AS is_paused) AS breaker
    WHERE state = 'running' AND (deaths + 1 < %(max_deaths)s OR is_paused) AND suspected_ms > heartbeat_ms
      AND seen_ms - greatest(suspected_ms, since_ms) >= %(confirm_ms)s::bigint
    ORDER BY sequence
    FOR UPDATE OF jobs SKIP LOCKED
),
released AS (
    UPDATE jobs AS j
    SET state = 'submitted', attempt_id = NULL, application_id = NULL, heartbeat_ms = NULL, suspected_ms = NULL,
        deaths = j.deaths + (NOT s.is_paused)::integer, faults = j.faults + 1
    FROM silent AS s
    WHERE j.job_id = s.job_id
    RETURNING j.job_id, j.sequence, s.attempt_id, s.application_id
)
SELECT job_id, attempt_id, application_id FROM released ORDER BY application_id, sequence;

-- name: count_suspected
-- Count the running jobs that sent no heartbeat since they were marked.
SELECT count(*) AS jobs FROM jobs WHERE state = 'running' AND suspected_ms > heartbeat_ms;

-- name: find_exhausted
-- Return the running jobs that `resubmit_suspected` left because their processes have died too often, and whose
-- specification this process can read.
SELECT job_id FROM jobs, reachability
WHERE state = 'running' AND deaths + 1 >= %(max_deaths)s AND suspected_ms > heartbeat_ms
  AND seen_ms - greatest(suspected_ms, since_ms) >= %(confirm_ms)s::bigint
  AND NOT EXISTS (SELECT FROM compaction_breaker WHERE pauses > 0)
  AND coalesce(spec_version, (spec ->> 'version')::integer) <= %(spec_version)s
ORDER BY sequence;

-- name: lock_exhausted
-- Lock one of these jobs, if the condition still holds.
SELECT deaths, attempt_id, spec::text AS spec FROM jobs, reachability
WHERE job_id = %(job_id)s AND state = 'running' AND deaths + 1 >= %(max_deaths)s AND suspected_ms > heartbeat_ms
  AND seen_ms - greatest(suspected_ms, since_ms) >= %(confirm_ms)s::bigint
  AND NOT EXISTS (SELECT FROM compaction_breaker WHERE pauses > 0)
FOR UPDATE OF jobs SKIP LOCKED;

-- name: lock_job
-- Lock a job; return its state and specification.
SELECT state, attempt_id, spec::text AS spec FROM jobs WHERE job_id = %(job_id)s FOR UPDATE;

-- name: lock_owner
-- Lock a job; return its state and its attempt.
SELECT state, attempt_id FROM jobs WHERE job_id = %(job_id)s FOR UPDATE;

-- name: finish_job
-- Finish a job with the reason of its failure, or with its counts.
UPDATE jobs
SET state = %(state)s, attempt_id = coalesce(%(attempt_id)s, attempt_id), finished_ms = %(now_ms)s,
    failure = %(failure)s, counts = %(counts)s
WHERE job_id = %(job_id)s;

-- name: find_job
-- Return one job.
SELECT job_id, state, spec::text AS spec, attempt_id, application_id, heartbeat_ms, attempts, failure, counts, finished_ms,
       not_before_ms
FROM jobs
WHERE job_id = %(job_id)s;

-- name: find_job_state
-- Return the state of one job, and when it finished.
SELECT state, finished_ms FROM jobs WHERE job_id = %(job_id)s;

-- name: list_jobs
-- Return the newest jobs in one of the given states whose specification this process can read.
SELECT job_id, state, spec::text AS spec, attempt_id, application_id, heartbeat_ms, attempts, failure, counts, finished_ms,
       not_before_ms
FROM jobs
WHERE state = ANY (%(states)s::text[]) AND coalesce(spec_version, (spec ->> 'version')::integer) <= %(spec_version)s
ORDER BY sequence DESC
LIMIT %(limit)s;

-- name: count_jobs
-- Count the jobs in each state.
SELECT state, count(*) AS jobs FROM jobs GROUP BY state;
