-- name: register_listener
-- Register the buckets of partitions to whose channels a process listens, for some time, and delete expired rows. Return
-- whether the process had no row (is_new), or one that has expired by the catalog's clock (is_expired). A crash may lose
-- the row together with the connection, so nothing waits for the disk.
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
INSERT INTO commit_listeners (listener_id, buckets, is_exact, until_ms)
SELECT %(listener_id)s, %(buckets)s::text::bit(256), %(is_exact)s, now_ms + %(lease_ms)s::bigint FROM clock
ON CONFLICT (listener_id) DO UPDATE
SET buckets = excluded.buckets, is_exact = excluded.is_exact, until_ms = excluded.until_ms
RETURNING xmax = 0 AS is_new, coalesce((
    SELECT l.until_ms < clock.now_ms FROM commit_listeners AS l, clock WHERE l.listener_id = %(listener_id)s
), false) AS is_expired;

-- name: forget_all_partitions
-- Remove all partitions of a process.
DELETE FROM listened_partitions WHERE listener_id = %(listener_id)s;

-- name: forget_partitions
-- Remove partitions of a process.
DELETE FROM listened_partitions AS l
USING (
    SELECT (%(topic_ids)s::uuid[])[i] AS topic_id, partition
    FROM unnest(%(partitions)s::integer[]) WITH ORDINALITY AS given (partition, i)
) AS v
WHERE l.topic_id = v.topic_id AND l.partition = v.partition AND l.listener_id = %(listener_id)s;

-- name: register_partitions
-- Add partitions of whose commits a process is notified.
INSERT INTO listened_partitions (topic_id, partition, listener_id)
SELECT (%(topic_ids)s::uuid[])[i], partition, %(listener_id)s
FROM unnest(%(partitions)s::integer[]) WITH ORDINALITY AS given (partition, i)
ON CONFLICT DO NOTHING;

-- name: listened
-- Return the indexes of the partitions to which a registered process other than the sender listens. The scalar
-- subquery looks each partition up in the index, however many PostgreSQL expects.
WITH active AS MATERIALIZED (
    SELECT l.listener_id, l.buckets, l.is_exact
    FROM commit_listeners AS l
    WHERE l.listener_id <> %(origin)s
      AND l.until_ms >= coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
), coarse AS MATERIALIZED (
    SELECT coalesce(bit_or(buckets), B'0'::bit(256)) AS buckets FROM active WHERE NOT is_exact
)
SELECT given.i::integer - 1 AS index
FROM unnest(%(partitions)s::integer[]) WITH ORDINALITY AS given (partition, i)
CROSS JOIN coarse
WHERE get_bit(coarse.buckets, (%(buckets)s::integer[])[given.i]) = 1
   OR (
       SELECT true FROM listened_partitions AS l
       WHERE l.topic_id = (%(topic_ids)s::uuid[])[given.i] AND l.partition = given.partition
         AND l.listener_id IN (SELECT listener_id FROM active WHERE is_exact)
       LIMIT 1
   );

-- name: notify
-- Send notifications. There is nothing to make durable, so the lock that all notifying transactions share is
-- released without waiting for the disk.
SELECT set_config('synchronous_commit', 'off', true), pg_notify(channel, (%(payloads)s::text[])[i])
FROM unnest(%(channels)s::text[]) WITH ORDINALITY AS given (channel, i);
