-- name: sessions_over
-- Sessions that have been over for long, and which nobody has cleared up after if wanted so; the oldest first.
SELECT session_id, over_ms FROM sessions
WHERE over_ms < %(before_ms)s AND (swept_ms IS NULL OR NOT %(unswept)s)
ORDER BY over_ms
LIMIT %(limit)s;

-- name: jobs_over
-- The same of jobs.
SELECT job_id, finished_ms FROM jobs
WHERE finished_ms < %(before_ms)s AND (swept_ms IS NULL OR NOT %(unswept)s)
ORDER BY finished_ms
LIMIT %(limit)s;

-- name: sessions_swept
-- Notes that what some sessions left in the bucket is gone.
UPDATE sessions SET swept_ms = %(now_ms)s WHERE session_id = ANY (%(owner_ids)s::uuid[]) AND over_ms IS NOT NULL;

-- name: jobs_swept
-- Notes that what some jobs left in the bucket is gone.
UPDATE jobs SET swept_ms = %(now_ms)s WHERE job_id = ANY (%(owner_ids)s::uuid[]) AND finished_ms IS NOT NULL;

-- name: forget_sessions
-- Forgets sessions that are over.
DELETE FROM sessions WHERE session_id = ANY (%(owner_ids)s::uuid[]) AND over_ms IS NOT NULL;

-- name: forget_jobs
-- Forgets jobs that are over.
DELETE FROM jobs WHERE job_id = ANY (%(owner_ids)s::uuid[]) AND finished_ms IS NOT NULL;

-- name: take_chore
-- Begins a chore unless somebody has begun it lately.
INSERT INTO chores AS c (name, begun_ms) VALUES (%(name)s, %(now_ms)s)
ON CONFLICT (name) DO UPDATE SET begun_ms = excluded.begun_ms
WHERE c.begun_ms <= excluded.begun_ms - %(every_ms)s::bigint
RETURNING c.name;

-- name: admit_idle_producers
-- Notes in the partitions of a page of producers that those who were idle for long may come with any number again.
-- Locks partitions before producers, and in their order, as commits do.
WITH page AS (
    SELECT topic_id, partition, producer_id, updated_ms
    FROM producers
    WHERE (topic_id, partition, producer_id) > (%(after_topic)s, %(after_partition)s, %(after_producer)s)
    ORDER BY topic_id, partition, producer_id
    LIMIT %(limit)s
),
idle AS (
    SELECT topic_id, partition, max(producer_id) + 1 AS producers_from
    FROM page WHERE updated_ms < %(before_ms)s
    GROUP BY topic_id, partition
),
held AS (
    SELECT p.topic_id, p.partition, i.producers_from
    FROM idle AS i JOIN partitions AS p USING (topic_id, partition)
    WHERE p.producers_from < i.producers_from
    ORDER BY p.topic_id, p.partition
    FOR UPDATE OF p
)
UPDATE partitions AS p SET producers_from = greatest(p.producers_from, h.producers_from)
FROM held AS h
WHERE p.topic_id = h.topic_id AND p.partition = h.partition;

-- name: forget_producers
-- Looks at a page of producers in key order and forgets those that were idle for long and may come with any number
-- again; passes over what a commit just writes. Gives the page's last key and how many were forgotten.
WITH page AS (
    SELECT topic_id, partition, producer_id, updated_ms
    FROM producers
    WHERE (topic_id, partition, producer_id) > (%(after_topic)s, %(after_partition)s, %(after_producer)s)
    ORDER BY topic_id, partition, producer_id
    LIMIT %(limit)s
),
held AS (
    SELECT p.topic_id, p.partition, p.producer_id
    FROM page
    JOIN producers AS p USING (topic_id, partition, producer_id)
    LEFT JOIN partitions AS log USING (topic_id, partition)
    WHERE page.updated_ms < %(before_ms)s AND p.updated_ms < %(before_ms)s
      AND (log.topic_id IS NULL OR p.producer_id < log.producers_from)
    FOR UPDATE OF p SKIP LOCKED
),
gone AS (
    DELETE FROM producers AS p USING held AS h
    WHERE p.topic_id = h.topic_id AND p.partition = h.partition AND p.producer_id = h.producer_id
    RETURNING p.producer_id
)
SELECT topic_id, partition, producer_id, (SELECT count(*) FROM gone)
FROM page
ORDER BY topic_id DESC, partition DESC, producer_id DESC
LIMIT 1;

-- name: forget_answers
-- Forgets a bounded number of answers to commits that are too old for a retry.
DELETE FROM commit_results
WHERE file_id IN (
    SELECT file_id FROM commit_results
    WHERE committed_ms < %(before_ms)s
    ORDER BY committed_ms
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
);

-- name: forget_past_topics
-- Forgets a bounded number of names of topics that were deleted long ago.
DELETE FROM past_topics
WHERE name IN (
    SELECT name FROM past_topics
    WHERE deleted_ms < %(before_ms)s
    ORDER BY deleted_ms
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
);
