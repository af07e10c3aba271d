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
-- Notify the watchers of changed partitions, and return the bytes of each notification. Channels without a registered
-- watcher other than the sender get none. There is nothing to make durable, so the lock that all notifying
-- transactions share is released without waiting for the disk.
SELECT set_config('synchronous_commit', 'off', true), pg_notify(%(channel)s::text || '_' || v.bucket, v.payload),
       octet_length(v.payload) AS bytes
FROM (
    SELECT bit_or(l.buckets) AS buckets
    FROM commit_listeners AS l
    WHERE l.listener_id <> %(origin)s
      AND l.until_ms >= coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
) AS listened
JOIN unnest(%(buckets)s::integer[], %(payloads)s::text[]) AS v (bucket, payload)
    ON get_bit(listened.buckets, v.bucket) = 1;
