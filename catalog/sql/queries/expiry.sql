-- name: closed_sessions
-- Return a page of the sessions that were closed before a time, oldest first; if requested, only those that were not
-- swept. Those whose objects could not be deleted a short time ago are left out, and so are unsettled ones.
SELECT session_id AS owner_id, closed_ms AS closed_ms FROM sessions
WHERE closed_ms < %(before_ms)s AND (swept_ms IS NULL OR NOT %(unswept)s) AND unsettled IS NULL
  AND (closed_ms, session_id) > (%(after_ms)s, %(after_id)s)
  AND (retry_ms IS NULL
       OR retry_ms <= coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint))
ORDER BY closed_ms, session_id
LIMIT %(limit)s;

-- name: finished_jobs
-- Return a page of the jobs that finished before a time, oldest first; if requested, only those that were not
-- swept. Those whose objects could not be deleted a short time ago are left out. No job is returned while any session
-- is unsettled, because a lost publication may have to be examined.
SELECT job_id AS owner_id, finished_ms AS closed_ms FROM jobs
WHERE finished_ms < %(before_ms)s AND (swept_ms IS NULL OR NOT %(unswept)s)
  AND NOT EXISTS (SELECT FROM sessions WHERE unsettled IS NOT NULL)
  AND (finished_ms, job_id) > (%(after_ms)s, %(after_id)s)
  AND (retry_ms IS NULL
       OR retry_ms <= coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint))
ORDER BY finished_ms, job_id
LIMIT %(limit)s;

-- name: postpone_sessions
-- Record that objects of closed sessions could not be deleted, as `postpone_files` does.
UPDATE sessions
SET failures = failures + 1,
    retry_ms = %(now_ms)s + least(%(max_pause_ms)s, %(first_pause_ms)s * 2::bigint ^ least(failures, 30))::bigint
WHERE session_id = ANY (%(owner_ids)s::uuid[]) AND closed_ms IS NOT NULL;

-- name: postpone_jobs
-- Record that objects of finished jobs could not be deleted, as `postpone_files` does.
UPDATE jobs
SET failures = failures + 1,
    retry_ms = %(now_ms)s + least(%(max_pause_ms)s, %(first_pause_ms)s * 2::bigint ^ least(failures, 30))::bigint
WHERE job_id = ANY (%(owner_ids)s::uuid[]) AND finished_ms IS NOT NULL;

-- name: mark_sessions_swept
-- Record that the leftover objects of some sessions were deleted.
UPDATE sessions SET swept_ms = %(now_ms)s, failures = 0, retry_ms = NULL
WHERE session_id = ANY (%(owner_ids)s::uuid[]) AND closed_ms IS NOT NULL AND unsettled IS NULL;

-- name: mark_jobs_swept
-- Record that the leftover objects of some jobs were deleted.
UPDATE jobs SET swept_ms = %(now_ms)s, failures = 0, retry_ms = NULL
WHERE job_id = ANY (%(owner_ids)s::uuid[]) AND finished_ms IS NOT NULL;

-- name: delete_sessions
-- Delete closed sessions, except those that are unsettled.
DELETE FROM sessions
WHERE session_id = ANY (%(owner_ids)s::uuid[]) AND closed_ms IS NOT NULL AND unsettled IS NULL;

-- name: delete_jobs
-- Delete finished jobs.
DELETE FROM jobs WHERE job_id = ANY (%(owner_ids)s::uuid[]) AND finished_ms IS NOT NULL;

-- name: claim_periodic_task
-- Claim a periodic task, unless another process has started it within the interval.
INSERT INTO periodic_tasks AS t (name, started_ms) VALUES (%(name)s, %(now_ms)s)
ON CONFLICT (name) DO UPDATE SET started_ms = excluded.started_ms
WHERE t.started_ms <= excluded.started_ms - %(interval_ms)s::bigint
RETURNING t.name;

-- name: accept_any_sequence_of_idle_producers
-- Let the idle producers of a page continue later with any sequence number. Partitions are locked before
-- producers, and in their order, as commits do.
WITH page AS (
    SELECT topic_id, partition, producer_id, updated_ms
    FROM producers
    WHERE (topic_id, partition, producer_id) > (%(after_topic)s, %(after_partition)s, %(after_producer)s)
    ORDER BY topic_id, partition, producer_id
    LIMIT %(limit)s
),
idle AS (
    SELECT topic_id, partition, max(producer_id) + 1 AS first_new_producer_id
    FROM page WHERE updated_ms < %(before_ms)s
    GROUP BY topic_id, partition
),
locked AS (
    SELECT p.topic_id, p.partition, i.first_new_producer_id
    FROM idle AS i JOIN partitions AS p USING (topic_id, partition)
    WHERE p.first_new_producer_id < i.first_new_producer_id
    ORDER BY p.topic_id, p.partition
    FOR UPDATE OF p
)
UPDATE partitions AS p
SET first_new_producer_id = greatest(p.first_new_producer_id, l.first_new_producer_id)
FROM locked AS l
WHERE p.topic_id = l.topic_id AND p.partition = l.partition;

-- name: delete_idle_producers
-- Delete the idle producers of a page, in key order, that may continue with any sequence number. Producers of
-- deleted topics stay as long as these, and rows that a commit has locked are skipped. Return the page's last key and the number of deleted rows.
WITH page AS (
    SELECT topic_id, partition, producer_id, updated_ms
    FROM producers
    WHERE (topic_id, partition, producer_id) > (%(after_topic)s, %(after_partition)s, %(after_producer)s)
    ORDER BY topic_id, partition, producer_id
    LIMIT %(limit)s
),
locked AS (
    SELECT p.topic_id, p.partition, p.producer_id
    FROM page
    JOIN producers AS p USING (topic_id, partition, producer_id)
    JOIN partitions AS log USING (topic_id, partition)
    WHERE page.updated_ms < %(before_ms)s AND p.updated_ms < %(before_ms)s
      AND p.producer_id < log.first_new_producer_id
    FOR UPDATE OF p SKIP LOCKED
),
deleted AS (
    DELETE FROM producers AS p USING locked AS l
    WHERE p.topic_id = l.topic_id AND p.partition = l.partition AND p.producer_id = l.producer_id
    RETURNING p.producer_id
)
SELECT topic_id, partition, producer_id, (SELECT count(*) FROM deleted) AS deleted
FROM page
ORDER BY topic_id DESC, partition DESC, producer_id DESC
LIMIT 1;

-- name: expire_commit_results
-- Delete a bounded number of commit results that are too old for a retry.
DELETE FROM commit_results
WHERE file_id IN (
    SELECT file_id FROM commit_results
    WHERE committed_ms < %(before_ms)s
    ORDER BY committed_ms
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
);

-- name: expire_deleted_topics
-- Delete a bounded number of records of topics that were deleted long ago.
DELETE FROM deleted_topics
WHERE name IN (
    SELECT name FROM deleted_topics
    WHERE deleted_ms < %(before_ms)s
    ORDER BY deleted_ms
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
);
