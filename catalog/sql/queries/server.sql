-- name: end_silent_transactions
-- End transactions of Siltstone that have locks and whose client neither sends the rest of a statement nor reads
-- results; return them. A server process that executes, waits for a lock, for the disk or for a standby does not
-- wait for its client, and one that is idle has a time limit. The list is complete before the first one is ended,
-- because conditions are evaluated in any order.
WITH silent AS MATERIALIZED (
    SELECT pid, state || ', ' || wait_event AS waits
    FROM pg_stat_activity
    WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid()
      AND (application_name = current_setting('application_name') OR application_name LIKE 'siltstone%%')
      AND backend_xid IS NOT NULL AND state = 'active' AND wait_event_type = 'Client'
      AND greatest(state_change, query_start) < clock_timestamp() - make_interval(secs => %(seconds)s)
)
SELECT pid, waits FROM silent WHERE pg_terminate_backend(pid);

-- name: pin_durability
-- Make the found synchronous_commit that of the session, and return the settings that decide about durability.
SELECT set_config('synchronous_commit', current_setting('synchronous_commit'), false),
       current_setting('fsync'), current_setting('full_page_writes');

-- name: replication
-- Return the numbers of standbys and of synchronous ones, and the largest lag in bytes; no row if the role may not
-- see them.
SELECT count(*)::integer AS standbys,
       (count(*) FILTER (WHERE sync_state IN ('sync', 'quorum')))::integer AS synchronous_standbys,
       coalesce(max(pg_wal_lsn_diff(pg_current_wal_lsn(), coalesce(replay_lsn, sent_lsn))), 0)::bigint AS lag_bytes
FROM pg_stat_replication
HAVING pg_has_role('pg_monitor', 'USAGE');
