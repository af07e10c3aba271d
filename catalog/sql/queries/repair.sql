-- name: check_files
-- Return the files of a page with wrong counts, or with extents that finished or unknown jobs claim, and the
-- page's last file in any case. One statement reads one snapshot.
WITH page AS (
    SELECT file_id, object_name, live_extents, claimed_extents, live_bytes, dead_ms, job_id,
           row_number() OVER (ORDER BY file_id DESC) = 1 AS last
    FROM (SELECT * FROM files WHERE file_id > %(after)s ORDER BY file_id LIMIT %(limit)s) AS f
),
counted AS (
    SELECT f.file_id, f.object_name, f.live_extents, f.claimed_extents, f.live_bytes, f.dead_ms IS NOT NULL AS is_dead,
           count(e.file_id) AS extents, count(coalesce(f.job_id, e.job_id)) FILTER (WHERE e.file_id IS NOT NULL) AS claims,
           coalesce(sum(e.length), 0)::bigint AS bytes,
           count(coalesce(f.job_id, e.job_id)) FILTER (WHERE NOT EXISTS (
               SELECT FROM jobs AS j
               WHERE j.job_id = coalesce(f.job_id, e.job_id) AND j.state IN ('submitted', 'running')
           )) AS stale_claims, f.last
    FROM page AS f
    LEFT JOIN extents AS e USING (file_id)
    GROUP BY f.file_id, f.object_name, f.live_extents, f.claimed_extents, f.live_bytes, f.dead_ms, f.last
)
SELECT file_id, object_name, live_extents, claimed_extents, live_bytes, is_dead, extents, claims, bytes, stale_claims
FROM counted
WHERE last OR stale_claims > 0 OR (live_extents, claimed_extents, live_bytes) <> (extents, claims, bytes)
   OR is_dead <> (extents = 0)
ORDER BY file_id;

-- name: release_stale_claims
-- Release extents of a file that finished or unknown jobs claim.
WITH locked AS (
    SELECT e.topic_id, e.partition, e.base_offset
    FROM extents AS e
    WHERE e.file_id = %(file_id)s AND e.job_id IS NOT NULL
      AND NOT EXISTS (SELECT FROM jobs AS j WHERE j.job_id = e.job_id AND j.state IN ('submitted', 'running'))
    ORDER BY e.topic_id, e.partition, e.base_offset
    FOR UPDATE
)
UPDATE extents AS e SET job_id = NULL FROM locked AS l
WHERE e.topic_id = l.topic_id AND e.partition = l.partition AND e.base_offset = l.base_offset;

-- name: lock_file
-- Lock a file, as every transaction does that changes its counts.
SELECT file_id FROM files WHERE file_id = %(file_id)s FOR UPDATE;

-- name: release_stale_file
-- Release a file that a finished or unknown job claims as a whole.
UPDATE files AS f SET job_id = NULL, claimed_extents = 0
WHERE f.file_id = %(file_id)s AND f.job_id IS NOT NULL
  AND NOT EXISTS (SELECT FROM jobs AS j WHERE j.job_id = f.job_id AND j.state IN ('submitted', 'running'));

-- name: recount_file
-- Set a file's counts, and whether it is dead, from its extents.
UPDATE files AS f
SET live_extents = v.extents, claimed_extents = CASE WHEN f.job_id IS NULL THEN v.claims ELSE v.extents END,
    live_bytes = v.bytes,
    dead_ms = CASE WHEN v.extents = 0 THEN coalesce(f.dead_ms, %(now_ms)s::bigint) END
FROM (
    SELECT count(*) AS extents, count(job_id) AS claims, coalesce(sum(length), 0)::bigint AS bytes
    FROM extents WHERE file_id = %(file_id)s
) AS v
WHERE f.file_id = %(file_id)s;

-- name: lock_partition
-- Lock a partition, as every transaction does that adds or removes extents.
SELECT partition FROM partitions WHERE topic_id = %(topic_id)s AND partition = %(partition)s FOR UPDATE;

-- name: recount_partition
-- Set a partition's totals from its extents.
UPDATE partitions AS p
SET live_bytes = v.live_bytes, dirty_bytes = v.dirty_bytes, dirty_since_ms = v.dirty_since_ms,
    ingestion_extents = v.ingestion_extents, compacted_extents = v.compacted_extents
FROM (
    SELECT coalesce(sum(e.length), 0)::bigint AS live_bytes,
           coalesce(sum(e.length) FILTER (WHERE e.last_offset >= o.first_dirty_offset), 0)::bigint AS dirty_bytes,
           (array_agg(e.committed_ms ORDER BY e.base_offset)
               FILTER (WHERE e.last_offset >= o.first_dirty_offset AND f.kind IS NOT NULL))[1] AS dirty_since_ms,
           count(*) FILTER (WHERE f.kind = 'ingestion') AS ingestion_extents,
           count(*) FILTER (WHERE f.kind = 'compacted') AS compacted_extents
    FROM partitions AS o
    LEFT JOIN extents AS e USING (topic_id, partition)
    LEFT JOIN files AS f USING (file_id)
    WHERE o.topic_id = %(topic_id)s AND o.partition = %(partition)s
) AS v
WHERE p.topic_id = %(topic_id)s AND p.partition = %(partition)s;

-- name: clear_unique_keys
-- Record that an extent has keys that occur twice. lock_partition precedes it.
UPDATE extents SET unique_keys = false
WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND base_offset = %(base_offset)s
  AND file_id = %(file_id)s AND unique_keys
RETURNING base_offset;

-- name: require_deduplication
-- Record that the clean part of a partition has keys that occur twice, so that an exact job is planned.
UPDATE partitions SET exactness = 'dedup_incomplete'
WHERE topic_id = %(topic_id)s AND partition = %(partition)s AND first_dirty_offset > %(base_offset)s;
