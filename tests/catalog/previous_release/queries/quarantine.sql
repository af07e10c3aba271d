-- name: add_candidates
-- Make the live files of a failed job quarantine candidates. The only file of a job is quarantined, unless
-- the failure is temporary and has not occurred often enough. Until the back-off has passed, no job takes the
-- files.
INSERT INTO quarantine_candidates AS c (
    file_id, max_files, failures, job_id, reason, failed_ms, not_before_ms, quarantined_ms
)
SELECT file_id, greatest(1, (%(files)s::integer + 1) / 2), 1, %(job_id)s, %(failure)s, %(now_ms)s,
       %(now_ms)s::bigint + %(min_backoff_ms)s::bigint,
       CASE WHEN %(files)s::integer = 1 AND %(max_failures)s::integer <= 1 THEN %(now_ms)s::bigint END
FROM files
WHERE file_id = ANY (%(file_ids)s::uuid[]) AND dead_ms IS NULL
ORDER BY file_id
ON CONFLICT (file_id) DO UPDATE
SET max_files = least(c.max_files, excluded.max_files),
    failures = c.failures + 1,
    job_id = excluded.job_id,
    reason = excluded.reason,
    failed_ms = excluded.failed_ms,
    not_before_ms = %(now_ms)s::bigint
        + least(%(max_backoff_ms)s::bigint, %(min_backoff_ms)s::bigint * (1 << least(c.failures, 20))),
    quarantined_ms = CASE
        WHEN %(files)s::integer = 1 AND c.failures + 1 >= %(max_failures)s::integer THEN %(now_ms)s::bigint
    END;

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
