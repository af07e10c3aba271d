-- name: unknown_commits
-- Return those of some files that the catalog knows neither as files nor by the result of their commit or of their
-- readoption, and whether they were committed so long ago that it may have deleted that.
SELECT requested.file_id,
       (%(committed_ms)s::bigint[])[requested.number]
       < coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) - %(max_age_ms)s::bigint
           AS is_old
FROM unnest(%(file_ids)s::uuid[]) WITH ORDINALITY AS requested (file_id, number)
WHERE NOT EXISTS (SELECT FROM files AS f WHERE f.file_id = requested.file_id)
  AND NOT EXISTS (SELECT FROM commit_results AS r WHERE r.file_id = requested.file_id)
  AND NOT EXISTS (SELECT FROM lost_commits AS l WHERE l.file_id = requested.file_id AND l.outcome = 'readopted');

-- name: report_lost_commits
-- Record lost commits; those that are recorded already get the agent's knowledge. An unreadable one is tried again.
INSERT INTO lost_commits AS l (
    file_id, epoch, session_id, object_name, number, acknowledged, found_ms, old_offsets, committed_epoch, refused
)
SELECT (%(file_ids)s::uuid[])[i], %(epoch)s, (%(session_ids)s::uuid[])[i], (%(object_names)s::text[])[i],
       (%(numbers)s::bigint[])[i], true, %(now_ms)s, (%(old_offsets)s::text[])[i]::json,
       nullif((%(committed_epochs)s::integer[])[i], -1), (%(refused)s::text[])[i]::json
FROM generate_subscripts(%(numbers)s::bigint[], 1) AS i
ON CONFLICT (file_id) DO UPDATE
SET acknowledged = true, number = excluded.number, old_offsets = excluded.old_offsets,
    committed_epoch = coalesce(excluded.committed_epoch, l.committed_epoch), refused = excluded.refused,
    outcome = CASE WHEN l.outcome = 'unreadable' AND NOT l.given_up THEN NULL ELSE l.outcome END;

-- name: adopt_sessions
-- Insert sessions that the catalog does not know, because their registration was lost. They have no heartbeat: one of
-- now would make other agents look dead, which could send none during the outage.
INSERT INTO sessions (session_id, description, state, started_ms, heartbeat_ms, closed_ms, unsettled)
SELECT session_id, 'lost registration', 'fenced', %(now_ms)s, 0, %(now_ms)s, 'reported'
FROM unnest(%(session_ids)s::uuid[]) AS session_id
ON CONFLICT DO NOTHING;

-- name: mark_reported
-- Record that the agent of some sessions has compared its commits with the catalog.
UPDATE sessions SET unsettled = 'reported'
WHERE session_id = ANY (%(session_ids)s::uuid[]) AND unsettled = 'unverified';

-- name: keep_sessions
-- Keep the objects of the sessions of lost commits, although an operator may have settled them meanwhile.
UPDATE sessions SET unsettled = 'reported'
WHERE session_id = ANY (%(session_ids)s::uuid[]) AND state <> 'active' AND unsettled IS NULL;

-- name: heartbeats
-- Return the times of the last heartbeats of some sessions; 0 for a time that has not come yet.
SELECT session_id,
       CASE WHEN heartbeat_ms
                 <= coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
            THEN heartbeat_ms ELSE 0 END AS heartbeat_ms
FROM sessions
WHERE session_id = ANY (%(session_ids)s::uuid[]);

-- name: settle
-- Settle sessions without lost commits that wait, or that are acknowledged, unreadable and not given up: garbage
-- collection may delete their orphans.
UPDATE sessions AS s SET unsettled = NULL, closed_ms = greatest(closed_ms, %(now_ms)s)
WHERE s.session_id = ANY (%(session_ids)s::uuid[]) AND s.unsettled IS NOT NULL
  AND NOT EXISTS (SELECT FROM lost_commits AS l WHERE l.session_id = s.session_id AND l.outcome IS NULL)
  AND NOT EXISTS (
      SELECT FROM lost_commits AS l
      WHERE l.session_id = s.session_id AND l.outcome = 'unreadable' AND l.acknowledged AND NOT l.given_up
  );

-- name: mark_unreadable
-- Record that a lost file cannot be committed again; if requested, it is given up.
INSERT INTO lost_commits AS l (
    file_id, epoch, session_id, object_name, number, acknowledged, found_ms, old_offsets, outcome, outcome_ms, detail
)
SELECT %(file_id)s, i.epoch, %(session_id)s, %(object_name)s, 0, false, %(now_ms)s, '[]', 'unreadable', %(now_ms)s,
       %(detail)s
FROM catalog_incarnation AS i
ON CONFLICT (file_id) DO UPDATE
SET outcome = excluded.outcome, outcome_ms = excluded.outcome_ms, detail = excluded.detail, given_up = %(gives_up)s
WHERE l.outcome IS NULL OR (l.outcome = 'unreadable' AND %(gives_up)s);

-- name: keep_waiting
-- Record a lost file that waits, although no agent reported it; one that was reported keeps its row.
INSERT INTO lost_commits (
    file_id, epoch, session_id, object_name, number, acknowledged, found_ms, old_offsets
)
VALUES (%(file_id)s, %(epoch)s, %(session_id)s, %(object_name)s, 0, false, %(now_ms)s, '[]')
ON CONFLICT DO NOTHING;

-- name: discard
-- Remove the record of a lost file that waits, and that no agent reported.
DELETE FROM lost_commits WHERE file_id = %(file_id)s AND outcome IS NULL AND NOT acknowledged;

-- name: unsettled_sessions
-- Return a page of the unsettled sessions.
SELECT session_id, closed_ms, unsettled = 'reported' AS is_reported
FROM sessions
WHERE unsettled IS NOT NULL AND session_id > %(after)s
ORDER BY session_id
LIMIT %(limit)s;

-- name: count_unverified
-- Count the sessions whose agent lived when the incarnation began a moment ago, and has not compared its commits. An
-- agent lived if its last heartbeat was about as recent as that of any other: there were none during the outage. A
-- heartbeat in the future shows only that the clock was ahead: its agent may have lived, and it is not compared.
WITH fenced AS (
    SELECT unsettled, heartbeat_ms, heartbeat_ms > now_ms AS is_in_future
    FROM sessions, coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
    WHERE state = 'fenced' AND closed_ms > now_ms - %(wait_ms)s::bigint
)
SELECT count(*) AS sessions FROM fenced
WHERE unsettled = 'unverified'
  AND (is_in_future
       OR heartbeat_ms > (SELECT max(heartbeat_ms) FROM fenced WHERE NOT is_in_future) - %(silent_ms)s::bigint);

-- name: lost_commits
-- Return a page of the lost commits in the order of their files; if requested, only those that wait, or those and the
-- unreadable ones that were acknowledged and are not given up.
SELECT file_id, epoch, session_id, object_name, number, acknowledged, found_ms, old_offsets::text AS old_offsets,
       outcome, new_offsets::text AS new_offsets, detail, committed_epoch, refused::text AS refused
FROM lost_commits
WHERE (session_id, number, file_id) > (%(after_session)s, %(after_number)s, %(after_file)s)
  AND (outcome IS NULL OR NOT %(waiting)s
       OR (%(unreadable)s AND outcome = 'unreadable' AND acknowledged AND NOT given_up))
ORDER BY session_id, number, file_id
LIMIT %(limit)s;

-- name: expire_gaps
-- Delete a bounded number of gaps that were left long ago.
DELETE FROM sequence_gaps
WHERE (topic_id, partition, producer_id, producer_epoch, first_sequence) IN (
    SELECT topic_id, partition, producer_id, producer_epoch, first_sequence FROM sequence_gaps
    WHERE found_ms < %(before_ms)s
    ORDER BY found_ms
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
);

-- name: expire_lost_commits
-- Delete a bounded number of records of lost commits that were settled long ago.
DELETE FROM lost_commits
WHERE file_id IN (
    SELECT file_id FROM lost_commits
    WHERE outcome IS NOT NULL AND outcome_ms < %(before_ms)s
    LIMIT %(limit)s
    FOR UPDATE SKIP LOCKED
);
