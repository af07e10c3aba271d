-- name: find_look
-- Return the last look, and whether another one is due at once: its time has come, something has changed, the
-- settings differ, or the clock stepped back.
SELECT l.look_id, n.now_ms, l.lease_end_ms BETWEEN n.now_ms + 1 AND n.now_ms + 2 * %(duration_ms)s::bigint AS is_running,
       l.next_ms <= n.now_ms OR l.looked_ms > n.now_ms OR l.settings <> %(settings)s
           OR EXISTS (SELECT FROM planning_changes) AS is_due
FROM planning_look AS l, (
    SELECT coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
) AS n;

-- name: begin_look
-- Begin a look, unless another one has begun since the last known look.
UPDATE planning_look
SET look_id = %(look_id)s, settings = %(settings)s, looked_ms = %(now_ms)s,
    lease_end_ms = %(now_ms)s + %(duration_ms)s::bigint, next_ms = 0
WHERE look_id IS NOT DISTINCT FROM %(last_id)s OR look_id = %(look_id)s;

-- name: consume_changes
-- Delete the changes that the look will see. A row that a transaction has locked stands for its change, too, and
-- stays.
DELETE FROM planning_changes
WHERE change_id IN (SELECT change_id FROM planning_changes FOR UPDATE SKIP LOCKED);

-- name: finish_look
-- Finish a look, unless another one has begun.
UPDATE planning_look SET lease_end_ms = 0, next_ms = %(next_ms)s WHERE look_id = %(look_id)s;
