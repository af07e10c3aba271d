-- name: lock_inputs
-- Lock a new job's extents in the order of the key. Return those that it may claim: unchanged since the
-- planner read them, unclaimed, and of an existing partition. The extents of a file that another job claims are not
-- locked, because that job may remove them in another order.
SELECT e.topic_id, e.partition, e.base_offset
FROM unnest(
    %(topic_ids)s::uuid[],
    %(partitions)s::integer[],
    %(base_offsets)s::bigint[],
    %(last_offsets)s::bigint[],
    %(file_ids)s::uuid[]
) AS requested (topic_id, partition, base_offset, last_offset, file_id)
JOIN extents AS e USING (topic_id, partition, base_offset, last_offset, file_id)
JOIN partitions AS p USING (topic_id, partition)
JOIN files AS f USING (file_id)
WHERE e.job_id IS NULL AND f.job_id IS NULL
ORDER BY e.topic_id, e.partition, e.base_offset
FOR UPDATE OF e;

-- name: aborted_in_inputs
-- Return what a job must agree with in the partitions with transactions, after its inputs are claimed: the last stable
-- offset, whether a control batch of the range aborts records before it that are still in the log, and the aborted
-- transactions that overlap the range, as arrays. Only ingestion files have records of aborted transactions.
SELECT p.topic_id, p.partition, p.last_stable_offset,
       coalesce(found.producer_ids, '{}') AS producer_ids, coalesce(found.last_offsets, '{}') AS last_offsets,
       coalesce(found.splits, false) AS splits
FROM unnest(%(topic_ids)s::uuid[], %(partitions)s::integer[], %(base_offsets)s::bigint[], %(upper_offsets)s::bigint[])
    AS requested (topic_id, partition, base_offset, upper_offset)
JOIN partitions AS p USING (topic_id, partition)
CROSS JOIN LATERAL (
    SELECT array_agg(a.producer_id) AS producer_ids, array_agg(a.last_offset) AS last_offsets,
           bool_or(a.last_offset < requested.upper_offset AND a.first_offset < requested.base_offset AND EXISTS (
               SELECT FROM extents AS e JOIN files AS f USING (file_id)
               WHERE e.topic_id = a.topic_id AND e.partition = a.partition AND f.kind = 'ingestion'
                 AND e.base_offset < requested.base_offset AND e.last_offset >= a.first_offset
                 AND e.base_offset >= coalesce((
                     SELECT max(x.base_offset) FROM extents AS x
                     WHERE x.topic_id = a.topic_id AND x.partition = a.partition AND x.base_offset <= a.first_offset
                 ), 0)
           )) AS splits
    FROM aborted_transactions AS a
    WHERE a.topic_id = p.topic_id AND a.partition = p.partition
      AND a.last_offset >= requested.base_offset AND a.first_offset < requested.upper_offset
) AS found
WHERE p.has_transactions;

-- name: claim_inputs
-- Mark extents as claimed by a job.
UPDATE extents AS e
SET job_id = %(job_id)s
FROM unnest(
    %(topic_ids)s::uuid[],
    %(partitions)s::integer[],
    %(base_offsets)s::bigint[]
) AS requested (topic_id, partition, base_offset)
WHERE e.topic_id = requested.topic_id AND e.partition = requested.partition AND e.base_offset = requested.base_offset;

-- name: add_claims
-- Add claimed extents to the counts of their files; negative numbers subtract. Return the files, without those that a
-- job claims as a whole.
UPDATE files AS f
SET claimed_extents = f.claimed_extents + v.claims
FROM unnest(%(file_ids)s::uuid[], %(claims)s::bigint[]) AS v (file_id, claims)
WHERE f.file_id = v.file_id AND f.job_id IS NULL
RETURNING f.file_id;

-- name: claim_files
-- Claim files with all of their live extents; return the claimed files. No extent is added to a file after its commit,
-- so a file has exactly the extents that the planner read if their number is the same.
UPDATE files AS f
SET job_id = %(job_id)s, claimed_extents = f.live_extents
FROM unnest(%(file_ids)s::uuid[], %(claims)s::bigint[]) AS v (file_id, claims)
WHERE f.file_id = v.file_id AND f.live_extents = v.claims AND f.claimed_extents = 0 AND f.job_id IS NULL
RETURNING f.file_id;

-- name: claimed_files
-- Return the files that a job claims as a whole.
SELECT f.file_id FROM job_files AS j JOIN files AS f ON f.file_id = j.file_id AND f.job_id = j.job_id
WHERE j.job_id = %(job_id)s
ORDER BY f.file_id;

-- name: release_files
-- Release files that a job claims as a whole. A planner of the previous release may have claimed extents of them.
UPDATE files AS f
SET job_id = NULL,
    claimed_extents = (SELECT count(*) FROM extents AS e WHERE e.file_id = f.file_id AND e.job_id IS NOT NULL)
WHERE f.file_id = ANY (%(file_ids)s::uuid[]);

-- name: insert_job_files
-- Protect a job's input files from garbage collection until the job has finished.
INSERT INTO job_files (file_id, job_id)
SELECT file_id, %(job_id)s FROM unnest(%(file_ids)s::uuid[]) AS file_id
ON CONFLICT DO NOTHING;

-- name: release_extents
-- Release the extents that a job still claims; return their number by file.
WITH locked AS (
    SELECT e.topic_id, e.partition, e.base_offset
    FROM job_files AS j
    JOIN extents AS e ON e.file_id = j.file_id AND e.job_id = j.job_id
    WHERE j.job_id = %(job_id)s
    ORDER BY e.topic_id, e.partition, e.base_offset
    FOR UPDATE OF e
),
released AS (
    UPDATE extents AS e SET job_id = NULL FROM locked AS l
    WHERE e.topic_id = l.topic_id AND e.partition = l.partition AND e.base_offset = l.base_offset
    RETURNING e.file_id
)
SELECT file_id, count(*) AS extents FROM released GROUP BY file_id ORDER BY file_id;

-- name: delete_job_files
-- End the protection of a job's input files from garbage collection.
DELETE FROM job_files WHERE job_id = %(job_id)s;
