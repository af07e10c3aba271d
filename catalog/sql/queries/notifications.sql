-- name: register_listener
-- Register the buckets of partitions to whose channels a process listens, for some time, and delete expired rows. A
-- crash may lose the row together with the connection, so nothing waits for the disk.
WITH clock AS (
    SELECT coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) AS now_ms,
           set_config('synchronous_commit', 'off', true) AS setting
), expired AS (
    DELETE FROM commit_listeners
    WHERE listener_id IN (
        SELECT l.listener_id FROM commit_listeners AS l, clock
        WHERE l.until_ms < clock.now_ms AND l.listener_id <> %(listener_id)s
        FOR UPDATE OF l SKIP LOCKED
    )
)
INSERT INTO commit_listeners (listener_id, buckets, until_ms)
SELECT %(listener_id)s, %(buckets)s::text::bit(256), now_ms + %(lease_ms)s::bigint FROM clock
ON CONFLICT (listener_id) DO UPDATE SET buckets = excluded.buckets, until_ms = excluded.until_ms;

-- name: notify
-- Notify the watchers of changed partitions, and return the bytes of each notification. Buckets without a registered
-- watcher other than the sender are left out. There is nothing to make durable, so the lock that all notifying
-- transactions share is released without waiting for the disk.
WITH listened AS (
    SELECT bit_or(l.buckets) AS buckets
    FROM commit_listeners AS l
    WHERE l.listener_id <> %(origin)s
      AND l.until_ms >= coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
), wanted AS (
    SELECT v.bucket, v.payload, count(*) OVER () AS channels,
           sum(octet_length(v.payload) + 1) OVER (ORDER BY v.bucket) - octet_length(v.payload) - 1 AS bytes_before
    FROM listened
    JOIN unnest(%(buckets)s::integer[], %(payloads)s::text[]) AS v (bucket, payload)
        ON get_bit(listened.buckets, v.bucket) = 1
), notifications AS (
    SELECT %(channel)s::text || '_' || bucket AS channel, payload
    FROM wanted
    WHERE channels <= %(max_channels)s
    UNION ALL
    SELECT %(channel)s::text, string_agg(payload, ';')
    FROM wanted
    WHERE channels > %(max_channels)s
    GROUP BY bytes_before / %(bytes)s::bigint
)
SELECT set_config('synchronous_commit', 'off', true), pg_notify(channel, %(prefix)s::text || payload),
       octet_length(%(prefix)s::text || payload) AS bytes
FROM notifications;
