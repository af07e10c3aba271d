-- name: check_files
-- Of a page of files those whose counts are not what their extents add up to, or whose extents are claimed by jobs that
-- are over; and the page's last one, whatever it is like. One statement, so all of it is of one moment.
WITH page AS (
    SELECT file_id, object_name, live_extents, claimed_extents, live_bytes, dead_ms,
           row_number() OVER (ORDER BY file_id DESC) = 1 AS last
    FROM (SELECT * FROM files WHERE file_id > %(after)s ORDER BY file_id LIMIT %(limit)s) AS f
),
counted AS (
    SELECT f.file_id, f.object_name, f.live_extents, f.claimed_extents, f.live_bytes, f.dead_ms IS NOT NULL AS dead,
           count(e.file_id) AS extents, count(e.job_id) AS claims, coalesce(sum(e.length), 0)::bigint AS bytes,
           count(e.job_id) FILTER (WHERE NOT EXISTS (
               SELECT FROM jobs AS j WHERE j.job_id = e.job_id AND j.state IN ('submitted', 'running')
           )) AS stale, f.last
    FROM page AS f
    LEFT JOIN extents AS e USING (file_id)
    GROUP BY f.file_id, f.object_name, f.live_extents, f.claimed_extents, f.live_bytes, f.dead_ms, f.last
)
SELECT file_id, object_name, live_extents, claimed_extents, live_bytes, dead, extents, claims, bytes, stale
FROM counted
WHERE last OR stale > 0 OR (live_extents, claimed_extents, live_bytes) <> (extents, claims, bytes) OR dead <> (extents = 0)
ORDER BY file_id;

-- name: release_stale
-- Frees extents of a file that jobs claim which are over, or unknown.
WITH held AS (
    SELECT e.topic_id, e.partition, e.base_offset
    FROM extents AS e
    WHERE e.file_id = %(file_id)s AND e.job_id IS NOT NULL
      AND NOT EXISTS (SELECT FROM jobs AS j WHERE j.job_id = e.job_id AND j.state IN ('submitted', 'running'))
    ORDER BY e.topic_id, e.partition, e.base_offset
    FOR UPDATE
)
UPDATE extents AS e SET job_id = NULL FROM held AS h
WHERE e.topic_id = h.topic_id AND e.partition = h.partition AND e.base_offset = h.base_offset;

-- name: lock_file
-- Locks a file, as every transaction does that changes its counts.
SELECT file_id FROM files WHERE file_id = %(file_id)s FOR UPDATE;

-- name: recount_file
-- Sets a file's counts, and whether it is dead, to what its extents say.
UPDATE files AS f
SET live_extents = v.extents, claimed_extents = v.claims, live_bytes = v.bytes,
    dead_ms = CASE WHEN v.extents = 0 THEN coalesce(f.dead_ms, %(now_ms)s::bigint) END
FROM (
    SELECT count(*) AS extents, count(job_id) AS claims, coalesce(sum(length), 0)::bigint AS bytes
    FROM extents WHERE file_id = %(file_id)s
) AS v
WHERE f.file_id = %(file_id)s;

-- name: lock_partition
-- Locks a partition, as every transaction does that adds extents to it or removes some.
SELECT partition FROM partitions WHERE topic_id = %(topic_id)s AND partition = %(partition)s FOR UPDATE;

-- name: recount_partition
-- Sets a partition's sums to what its extents add up to.
UPDATE partitions AS p
SET live_bytes = v.live_bytes, dirty_bytes = v.dirty_bytes, dirty_since_ms = v.dirty_since_ms,
    ingestion_extents = v.ingestion_extents, compacted_extents = v.compacted_extents
FROM (
    SELECT coalesce(sum(e.length), 0)::bigint AS live_bytes,
           coalesce(sum(e.length) FILTER (WHERE e.last_offset >= o.first_dirty_offset), 0)::bigint AS dirty_bytes,
           (array_agg(e.committed_ms ORDER BY e.base_offset)
               FILTER (WHERE e.last_offset >= o.first_dirty_offset))[1] AS dirty_since_ms,
           count(*) FILTER (WHERE f.kind = 'ingestion') AS ingestion_extents,
           count(*) FILTER (WHERE f.kind = 'compacted') AS compacted_extents
    FROM partitions AS o
    LEFT JOIN extents AS e USING (topic_id, partition)
    LEFT JOIN files AS f USING (file_id)
    WHERE o.topic_id = %(topic_id)s AND o.partition = %(partition)s
) AS v
WHERE p.topic_id = %(topic_id)s AND p.partition = %(partition)s;

-- name: free_open_claims
-- Frees every extent that an open job claims, and counts its file as unclaimed.
WITH held AS (
    SELECT e.topic_id, e.partition, e.base_offset
    FROM job_files AS j
    JOIN extents AS e ON e.file_id = j.file_id AND e.job_id = j.job_id
    ORDER BY e.topic_id, e.partition, e.base_offset
    FOR UPDATE OF e
),
freed AS (
    UPDATE extents AS e SET job_id = NULL FROM held AS h
    WHERE e.topic_id = h.topic_id AND e.partition = h.partition AND e.base_offset = h.base_offset
    RETURNING e.file_id
)
UPDATE files AS f SET claimed_extents = f.claimed_extents - v.extents
FROM (SELECT file_id, count(*) AS extents FROM freed GROUP BY file_id) AS v
WHERE f.file_id = v.file_id;

-- name: forget_job_files
-- No job that is open reads anything any more.
DELETE FROM job_files;

-- name: forget_open_jobs
-- Forgets the jobs that are not over.
DELETE FROM jobs WHERE state IN ('submitted', 'running') RETURNING job_id, heartbeat_ms;

-- name: forget_active_sessions
-- Forgets the sessions that are not over.
DELETE FROM sessions WHERE state = 'active' RETURNING session_id, heartbeat_ms;
