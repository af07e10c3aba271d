-- name: insert_job
-- Adds a job; a second try changes nothing.
INSERT INTO jobs (job_id, state, spec, created_ms, moved_bytes, nanodollars)
VALUES (%(job_id)s, 'submitted', %(spec)s, %(now_ms)s, %(moved_bytes)s, %(nanodollars)s)
ON CONFLICT (job_id) DO NOTHING;

-- name: planned_since
-- What the jobs that were submitted lately move and cost: what was expected of them and, of those that are done and
-- have counted it, what they did.
SELECT coalesce(sum(moved_bytes) FILTER (WHERE NOT known), 0)::bigint,
       coalesce(sum(nanodollars) FILTER (WHERE NOT known), 0)::bigint,
       coalesce(sum((counts->>'bytes_in')::bigint) FILTER (WHERE known), 0)::bigint,
       coalesce(sum((counts->>'bytes_out')::bigint) FILTER (WHERE known), 0)::bigint,
       coalesce(sum(coalesce((counts->>'get_requests')::bigint, 0) + coalesce((counts->>'resumes')::bigint, 0)
                    + coalesce((counts->>'retries')::bigint, 0)) FILTER (WHERE known), 0)::bigint,
       coalesce(sum(coalesce((counts->>'compacted_files')::bigint, 0)) FILTER (WHERE known), 0)::bigint
FROM (
    SELECT *, state = 'completed' AND counts ? 'bytes_in' AND counts ? 'bytes_out' AS known FROM jobs
) AS j
WHERE created_ms > coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
    - %(before_now_ms)s::bigint;

-- name: lock_inputs
-- Locks a new job's extents in the order of the key, and says which of them it may have: they are as the planner
-- saw them, nobody has claimed them, and their partition exists.
SELECT e.topic_id, e.partition, e.base_offset
FROM unnest(
    %(topic_ids)s::uuid[],
    %(partitions)s::integer[],
    %(base_offsets)s::bigint[],
    %(last_offsets)s::bigint[],
    %(file_ids)s::uuid[]
) AS wanted (topic_id, partition, base_offset, last_offset, file_id)
JOIN extents AS e USING (topic_id, partition, base_offset, last_offset, file_id)
JOIN partitions AS p USING (topic_id, partition)
WHERE e.job_id IS NULL
ORDER BY e.topic_id, e.partition, e.base_offset
FOR UPDATE OF e;

-- name: claim_inputs
-- Marks a job's extents as taken.
UPDATE extents AS e
SET job_id = %(job_id)s
FROM unnest(
    %(topic_ids)s::uuid[],
    %(partitions)s::integer[],
    %(base_offsets)s::bigint[]
) AS wanted (topic_id, partition, base_offset)
WHERE e.topic_id = wanted.topic_id AND e.partition = wanted.partition AND e.base_offset = wanted.base_offset;

-- name: lock_files
-- Locks files in the order of their identifiers, as every transaction does that changes their counts.
SELECT file_id FROM files WHERE file_id = ANY (%(file_ids)s::uuid[]) ORDER BY file_id FOR UPDATE;

-- name: add_claims
-- Counts claimed extents in their files, or takes them off again.
UPDATE files AS f
SET claimed_extents = f.claimed_extents + v.claims
FROM unnest(%(file_ids)s::uuid[], %(claims)s::bigint[]) AS v (file_id, claims)
WHERE f.file_id = v.file_id;

-- name: insert_job_files
-- Keeps a job's files from garbage collection until the job is over.
INSERT INTO job_files (file_id, job_id)
SELECT file_id, %(job_id)s FROM unnest(%(file_ids)s::uuid[]) AS file_id
ON CONFLICT DO NOTHING;

-- name: claimed_before
-- The jobs that an earlier try of the same claim took, when its answer was lost.
SELECT job_id, state, spec::text, attempt_id, application_id, heartbeat_ms, attempts, failure, counts, finished_ms
FROM jobs
WHERE state = 'running' AND attempt_id = ANY (%(attempt_ids)s::uuid[])
ORDER BY sequence;

-- name: claim
-- Takes submitted jobs, oldest first, passing over those that another driver is just taking.
WITH picked AS (
    SELECT job_id, row_number() OVER (ORDER BY sequence) AS number
    FROM (
        SELECT job_id, sequence FROM jobs
        WHERE state = 'submitted'
        ORDER BY sequence
        LIMIT %(limit)s
        FOR UPDATE SKIP LOCKED
    ) AS free
),
fresh AS (
    SELECT attempt_id, number FROM unnest(%(attempt_ids)s::uuid[]) WITH ORDINALITY AS v (attempt_id, number)
),
taken AS (
    UPDATE jobs AS j
    SET state = 'running', application_id = %(application_id)s, attempt_id = fresh.attempt_id,
        heartbeat_ms = %(now_ms)s, attempts = j.attempts + 1
    FROM picked JOIN fresh USING (number)
    WHERE j.job_id = picked.job_id
    RETURNING j.*
)
SELECT job_id, state, spec::text, attempt_id, application_id, heartbeat_ms, attempts, failure, counts, finished_ms
FROM taken
ORDER BY sequence;

-- name: heartbeat
-- Notes that an attempt lives, unless it has lost the job.
UPDATE jobs
SET heartbeat_ms = greatest(heartbeat_ms, %(now_ms)s)
WHERE job_id = %(job_id)s AND state = 'running' AND attempt_id = %(attempt_id)s;

-- name: resubmit
-- Gives a running job back to whoever comes next; it keeps its extents.
UPDATE jobs
SET state = 'submitted', attempt_id = NULL, application_id = NULL, heartbeat_ms = NULL
WHERE job_id = %(job_id)s AND state = 'running' AND attempt_id = %(attempt_id)s;

-- name: resubmit_expired
-- Gives back the running jobs whose attempt has not been heard of for long, unless they had attempts enough.
UPDATE jobs
SET state = 'submitted', attempt_id = NULL, application_id = NULL, heartbeat_ms = NULL
WHERE job_id IN (
    SELECT job_id FROM jobs
    WHERE state = 'running' AND heartbeat_ms < %(before_ms)s AND attempts < %(most_attempts)s
    ORDER BY sequence
    FOR UPDATE SKIP LOCKED
)
RETURNING job_id;

-- name: find_exhausted
-- The running jobs that have not been heard of for long and had attempts enough.
SELECT job_id FROM jobs
WHERE state = 'running' AND heartbeat_ms < %(before_ms)s AND attempts >= %(most_attempts)s
ORDER BY sequence;

-- name: lock_exhausted
-- Locks one of them, if it still is one.
SELECT attempts, spec::text FROM jobs
WHERE job_id = %(job_id)s AND state = 'running' AND heartbeat_ms < %(before_ms)s
  AND attempts >= %(most_attempts)s
FOR UPDATE SKIP LOCKED;

-- name: lock_job
-- A job's state and specification, locked.
SELECT state, attempt_id, spec::text FROM jobs WHERE job_id = %(job_id)s FOR UPDATE;

-- name: finish_job
-- Ends a job; why it failed, or what it counted.
UPDATE jobs
SET state = %(state)s, attempt_id = coalesce(%(attempt_id)s, attempt_id), finished_ms = %(now_ms)s,
    failure = %(failure)s, counts = %(counts)s
WHERE job_id = %(job_id)s;

-- name: release_extents
-- Frees the extents that a job still claims, and says how many of which files.
WITH held AS (
    SELECT e.topic_id, e.partition, e.base_offset
    FROM job_files AS j
    JOIN extents AS e ON e.file_id = j.file_id AND e.job_id = j.job_id
    WHERE j.job_id = %(job_id)s
    ORDER BY e.topic_id, e.partition, e.base_offset
    FOR UPDATE OF e
),
freed AS (
    UPDATE extents AS e SET job_id = NULL FROM held AS h
    WHERE e.topic_id = h.topic_id AND e.partition = h.partition AND e.base_offset = h.base_offset
    RETURNING e.file_id
)
SELECT file_id, count(*) FROM freed GROUP BY file_id ORDER BY file_id;

-- name: delete_job_files
-- Lets garbage collection have a job's files once they are dead.
DELETE FROM job_files WHERE job_id = %(job_id)s;

-- name: find_job
-- One job.
SELECT job_id, state, spec::text, attempt_id, application_id, heartbeat_ms, attempts, failure, counts, finished_ms
FROM jobs
WHERE job_id = %(job_id)s;

-- name: list_jobs
-- The newest jobs in one of the given states.
SELECT job_id, state, spec::text, attempt_id, application_id, heartbeat_ms, attempts, failure, counts, finished_ms
FROM jobs
WHERE state = ANY (%(states)s::text[])
ORDER BY sequence DESC
LIMIT %(limit)s;

-- name: count_jobs
-- How many jobs are in each state.
SELECT state, count(*) FROM jobs GROUP BY state;
