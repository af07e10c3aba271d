-- name: lock_incarnation
-- Lock the incarnation, so that only one process at a time may start a new one.
SELECT epoch FROM catalog_incarnation FOR UPDATE;

-- name: hold_incarnation
-- Let no new incarnation begin before the end of the transaction.
SELECT epoch FROM catalog_incarnation FOR SHARE;

-- name: read_incarnation
-- Return the incarnation, the server's identity and WAL positions, whether the catalog knows a commit (true without
-- one), the time before which a commit may have been forgotten, and the numbers of unsettled sessions and of lost
-- commits that wait to be readopted.
SELECT epoch, incarnation_id, started_ms, reason, server, found_server, is_current, inserted, flushed,
       %(file_id)s::uuid IS NULL
       OR EXISTS (SELECT FROM commit_results AS r WHERE r.file_id = %(file_id)s::uuid)
       OR EXISTS (SELECT FROM files AS f WHERE f.file_id = %(file_id)s::uuid) AS knows_commit,
       coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) - %(max_age_ms)s::bigint
           AS oldest_commit_ms,
       (SELECT count(*) FROM sessions WHERE unsettled IS NOT NULL) AS unsettled_sessions,
       (SELECT count(*) FROM lost_commits WHERE outcome IS NULL) AS waiting_commits
FROM current_incarnation;

-- name: record_server
-- Record the server of the first incarnation.
UPDATE catalog_incarnation AS i SET server = c.found_server
FROM current_incarnation AS c
WHERE i.server IS NULL;

-- name: begin_incarnation
-- Begin a new incarnation on the server that this runs on.
UPDATE catalog_incarnation AS i
SET epoch = %(epoch)s, incarnation_id = %(incarnation_id)s, server = c.found_server, started_ms = %(now_ms)s,
    reason = %(reason)s
FROM current_incarnation AS c;

-- name: fence_all_sessions
-- Fence every active session. The objects that it left are kept until the session is settled. The loss may
-- include the end of a session, but no commit of a session whose end is known.
UPDATE sessions SET state = 'fenced', closed_ms = %(now_ms)s, unsettled = 'unverified'
WHERE state = 'active';

-- name: skip_producer_ids
-- Skip the producer ids that the lost history may have assigned.
SELECT setval('producer_ids', greatest(last_value + %(margin)s::bigint, %(first)s::bigint)) FROM producer_ids;

-- name: fence_transactional_ids
-- Let every transactional producer begin again, because the end of its last transaction may be lost, and let ongoing
-- transactions time out at once. After the largest epoch, a producer gets another id, which the lost history has never
-- used. The last known producer of an id may continue (KIP-360): its identity is kept, also if no producer has
-- continued since an earlier loss.
UPDATE transactional_ids
SET last_producer_id = CASE WHEN producer_epoch = 32767 THEN last_producer_id ELSE producer_id END,
    last_epoch = CASE WHEN producer_epoch = 32767 THEN last_epoch ELSE producer_epoch END,
    bumps_epoch = false, producer_epoch = 32767, started_ms = CASE WHEN state = 'ongoing' THEN 0 END;

-- name: skip_node_ids
-- Skip the node ids that the lost history may have assigned.
SELECT setval('broker_ids', greatest(
    CASE WHEN last_value > 2000000000 THEN 1 ELSE last_value + %(margin)s::integer END, %(first)s::bigint
))
FROM broker_ids;

-- name: skip_local_epochs
-- Skip the leader epochs of local partitions that the lost history may have used.
UPDATE local_leaders SET leader_epoch = greatest(leader_epoch + %(margin)s::integer, %(first)s::integer);

-- name: supersede_attempts
-- Supersede every running attempt at a job; the job keeps its extents.
UPDATE jobs
SET state = 'submitted', attempt_id = NULL, application_id = NULL, heartbeat_ms = NULL
WHERE state = 'running';

-- name: void_group_claims
-- Void the claims of all group coordinators, so that they read their groups again.
UPDATE consumer_groups SET claim_id = gen_random_uuid();

-- name: release_open_claims
-- Release all extents that open jobs claim, and subtract them from the counts of their files.
WITH locked AS (
    SELECT e.topic_id, e.partition, e.base_offset
    FROM job_files AS j
    JOIN extents AS e ON e.file_id = j.file_id AND e.job_id = j.job_id
    ORDER BY e.topic_id, e.partition, e.base_offset
    FOR UPDATE OF e
),
released AS (
    UPDATE extents AS e SET job_id = NULL FROM locked AS l
    WHERE e.topic_id = l.topic_id AND e.partition = l.partition AND e.base_offset = l.base_offset
    RETURNING e.file_id
)
UPDATE files AS f SET claimed_extents = f.claimed_extents - v.extents
FROM (SELECT file_id, count(*) AS extents FROM released GROUP BY file_id) AS v
WHERE f.file_id = v.file_id;

-- name: release_claimed_files
-- Release all files that jobs claim as a whole, after the extents.
UPDATE files AS f SET job_id = NULL, claimed_extents = 0
FROM job_files AS j
WHERE f.file_id = j.file_id AND f.job_id = j.job_id;

-- name: delete_job_files
-- Delete all records of files that open jobs read.
DELETE FROM job_files;

-- name: delete_open_jobs
-- Delete the open jobs.
DELETE FROM jobs WHERE state IN ('submitted', 'running');
