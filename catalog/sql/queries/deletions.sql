-- name: require_durability
-- Make this transaction wait for its durability, and for synchronous standbys, although the session does not.
SELECT set_config('synchronous_commit', 'on', true)
WHERE current_setting('synchronous_commit') IN ('off', 'local');

-- name: record_confirmation
-- Write that deletions were confirmed. Only a primary can do this.
INSERT INTO deletions (confirmed_ms) VALUES (%(now_ms)s)
ON CONFLICT (only_row) DO UPDATE SET confirmed_ms = greatest(deletions.confirmed_ms, excluded.confirmed_ms);

-- name: lock_dead_files
-- Lock those files that may be deleted, in the order of their ids. The extents decide, not their count.
SELECT f.file_id
FROM files AS f
WHERE f.file_id = ANY (%(file_ids)s::uuid[]) AND f.dead_ms < %(before_ms)s
  AND NOT EXISTS (SELECT FROM job_files AS j WHERE j.file_id = f.file_id)
  AND NOT EXISTS (SELECT FROM extents AS e WHERE e.file_id = f.file_id)
ORDER BY f.file_id
FOR UPDATE OF f;

-- name: lock_ended_session
-- Lock a session that ended before a time. While it is unsettled, its commits may have been lost.
SELECT session_id FROM sessions
WHERE session_id = %(owner_id)s AND closed_ms < %(before_ms)s AND unsettled IS NULL
FOR SHARE;

-- name: lock_finished_job
-- Lock a job that finished before a time, unless a session is unsettled: a publication may have been lost, too.
SELECT job_id FROM jobs
WHERE job_id = %(owner_id)s AND finished_ms < %(before_ms)s
  AND NOT EXISTS (SELECT FROM sessions WHERE unsettled IS NOT NULL)
FOR SHARE;

-- name: find_session
-- Return a session of any state.
SELECT session_id FROM sessions WHERE session_id = %(owner_id)s;

-- name: find_job
-- Return a job of any state.
SELECT job_id FROM jobs WHERE job_id = %(owner_id)s;

-- name: find_files
-- Return those object names that are files, live or dead, and those of lost commits that wait to be made again.
SELECT object_name FROM files WHERE object_name = ANY (%(object_names)s::text[])
UNION ALL
SELECT object_name FROM lost_commits
WHERE session_id = %(owner_id)s AND outcome IS NULL AND object_name = ANY (%(object_names)s::text[]);

-- name: lock_topics
-- Lock topics, existing and deleted, so that none is undeleted before the confirmation is durable.
SELECT topic_id, deleted_ms IS NOT NULL AS is_deleted,
       purged_ms IS NOT NULL OR coalesce(config ->> 'storage.mode', 'object') <> 'local' AS needs_no_log
FROM topics
WHERE topic_id = ANY (%(topic_ids)s::uuid[])
ORDER BY topic_id
FOR SHARE;

-- name: find_purged_topics
-- Return those of the topics that cannot be undeleted any more.
SELECT topic_id FROM topics WHERE topic_id = ANY (%(topic_ids)s::uuid[]) AND purged_ms IS NOT NULL ORDER BY topic_id;

-- name: unknown_local_transactions
-- Return the ordinals (from 1) of open transactions in local logs that the catalog does not know: neither ongoing with
-- that first batch or an earlier one, nor ended with a pending marker. An earlier one may be deleted in the log.
-- Sequence -1: the first batch in the log is not known, so any transaction with that epoch may be it.
-- Those in a deleted topic are left out: its rows are kept until it is undeleted.
SELECT open.number
FROM unnest(
    %(producer_ids)s::bigint[], %(topic_ids)s::uuid[], %(partitions)s::integer[], %(epochs)s::integer[],
    %(first_sequences)s::integer[]
) WITH ORDINALITY AS open (producer_id, topic_id, partition, producer_epoch, first_sequence, number)
WHERE EXISTS (
    SELECT FROM partitions AS p WHERE p.topic_id = open.topic_id AND p.partition = open.partition
) AND NOT EXISTS (
    SELECT FROM local_transaction_partitions AS t
    WHERE t.producer_id = open.producer_id AND t.topic_id = open.topic_id AND t.partition = open.partition
      AND t.producer_epoch = open.producer_epoch AND (t.first_sequence <= open.first_sequence OR open.first_sequence = -1)
)
ORDER BY open.number;
