-- name: acquire
-- Take or renew the lease of a task, unless another process holds it. A lease that ends later than any lease
-- can was taken before the clock stepped back.
INSERT INTO periodic_tasks AS t (name, started_ms, holder_id, lease_end_ms)
VALUES (%(name)s, %(now_ms)s, %(holder_id)s, %(now_ms)s + %(duration_ms)s::bigint)
ON CONFLICT (name) DO UPDATE
SET started_ms = excluded.started_ms, holder_id = excluded.holder_id, lease_end_ms = excluded.lease_end_ms
WHERE t.holder_id IS NULL OR t.holder_id = excluded.holder_id OR t.lease_end_ms <= excluded.started_ms
   OR t.lease_end_ms > excluded.started_ms + 2 * %(duration_ms)s::bigint;

-- name: find_lease
-- Return the holder of a task's lease, and the time of the last success of any process.
SELECT holder_id, succeeded_ms FROM periodic_tasks WHERE name = %(name)s;

-- name: renew
-- Prolong a lease that the process still holds.
UPDATE periodic_tasks SET lease_end_ms = %(now_ms)s + %(duration_ms)s::bigint
WHERE name = %(name)s AND holder_id = %(holder_id)s;

-- name: record_success
-- Record that a round of a task has succeeded.
INSERT INTO periodic_tasks AS t (name, started_ms, succeeded_ms) VALUES (%(name)s, %(now_ms)s, %(now_ms)s)
ON CONFLICT (name) DO UPDATE SET succeeded_ms = greatest(t.succeeded_ms, excluded.succeeded_ms);

-- name: release
-- Give up all leases of a process.
UPDATE periodic_tasks SET holder_id = NULL, lease_end_ms = 0 WHERE holder_id = %(holder_id)s;
