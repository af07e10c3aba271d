-- name: add_candidates
-- Make live files of a failed job quarantine candidates. Quarantine them if the job had no other file, and has failed
-- repeatedly or they were candidates before.
INSERT INTO quarantine_candidates AS c (
    file_id, max_files, failures, job_id, reason, failed_ms, not_before_ms, quarantined_ms
)
SELECT file_id, %(max_files)s, 1, %(job_id)s, %(failure)s, %(now_ms)s, %(now_ms)s,
       CASE WHEN %(alone)s AND %(repeatedly)s THEN %(now_ms)s::bigint END
FROM files
WHERE file_id = ANY (%(file_ids)s::uuid[]) AND dead_ms IS NULL
ORDER BY file_id
ON CONFLICT (file_id) DO UPDATE
SET max_files = least(c.max_files, excluded.max_files),
    failures = c.failures + 1,
    job_id = excluded.job_id,
    reason = excluded.reason,
    failed_ms = excluded.failed_ms,
    not_before_ms = excluded.not_before_ms,
    quarantined_ms = CASE WHEN %(alone)s THEN %(now_ms)s::bigint ELSE c.quarantined_ms END;

-- name: list_candidates
-- Return a bounded number of quarantine candidates in commit order, quarantined files first.
SELECT c.file_id, f.object_name, f.kind, f.size, f.committed_ms, c.max_files, c.failures, c.job_id, c.reason,
       c.failed_ms, c.not_before_ms, c.quarantined_ms
FROM quarantine_candidates AS c
JOIN files AS f USING (file_id)
WHERE f.dead_ms IS NULL AND (c.quarantined_ms IS NOT NULL OR NOT %(quarantined)s)
ORDER BY c.quarantined_ms IS NULL, f.sequence
LIMIT %(limit)s;

-- name: release_candidates
-- Delete some candidates, or all, so that jobs take their files again.
DELETE FROM quarantine_candidates WHERE %(file_ids)s::uuid[] IS NULL OR file_id = ANY (%(file_ids)s::uuid[]);
