-- name: suspect_files
-- Notes that some live files were in a job that failed. Files of a job that had no other are quarantined, unless the
-- failure may pass and has not come often enough; until it is worth another try, they are in no job either way.
INSERT INTO suspects AS s (
    file_id, most_files, failures, job_id, reason, failed_ms, not_before_ms, quarantined_ms
)
SELECT file_id, greatest(1, (%(files)s::integer + 1) / 2), 1, %(job_id)s, %(failure)s, %(now_ms)s,
       %(now_ms)s::bigint + %(first_wait_ms)s::bigint,
       CASE WHEN %(files)s::integer = 1 AND %(patience)s::integer <= 1 THEN %(now_ms)s::bigint END
FROM files
WHERE file_id = ANY (%(file_ids)s::uuid[]) AND dead_ms IS NULL
ORDER BY file_id
ON CONFLICT (file_id) DO UPDATE
SET most_files = least(s.most_files, excluded.most_files),
    failures = s.failures + 1,
    job_id = excluded.job_id,
    reason = excluded.reason,
    failed_ms = excluded.failed_ms,
    not_before_ms = %(now_ms)s::bigint
        + least(%(longest_wait_ms)s::bigint, %(first_wait_ms)s::bigint * (1 << least(s.failures, 20))),
    quarantined_ms = CASE
        WHEN %(files)s::integer = 1 AND s.failures + 1 >= %(patience)s::integer THEN %(now_ms)s::bigint
    END;

-- name: list_suspects
-- A bounded number of the files that were in a job that failed, those in quarantine first, in commit order.
SELECT s.file_id, f.object_name, f.kind, f.size, f.committed_ms, s.most_files, s.failures, s.job_id, s.reason,
       s.failed_ms, s.not_before_ms, s.quarantined_ms
FROM suspects AS s
JOIN files AS f USING (file_id)
WHERE f.dead_ms IS NULL AND (s.quarantined_ms IS NOT NULL OR NOT %(quarantined)s)
ORDER BY s.quarantined_ms IS NULL, f.sequence
LIMIT %(limit)s;

-- name: forgive
-- Lets some files, or all, be taken again as if nothing had happened.
DELETE FROM suspects WHERE %(file_ids)s::uuid[] IS NULL OR file_id = ANY (%(file_ids)s::uuid[]);
