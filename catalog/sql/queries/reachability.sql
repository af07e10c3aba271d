-- name: observe
-- Record that the catalog is reachable now. After a gap, or if the clock stepped back, silence counts from now
-- on. A row that another process locks, or that is recent, stays as it is.
UPDATE reachability AS r
SET seen_ms = l.now_ms, since_ms = CASE WHEN l.unbroken THEN r.since_ms ELSE l.now_ms END
FROM (
    SELECT only_row, now_ms, now_ms - seen_ms BETWEEN 0 AND %(max_gap_ms)s::bigint AS unbroken
    FROM reachability, (
        SELECT coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms
    ) AS clock
    WHERE now_ms - seen_ms NOT BETWEEN -(%(max_gap_ms)s::bigint) AND %(min_step_ms)s::bigint - 1
    FOR UPDATE OF reachability SKIP LOCKED
) AS l
WHERE r.only_row = l.only_row;
