-- name: new_node_id
-- A node id that no agent has now.
SELECT nextval('broker_ids')::integer;

-- name: live_brokers
-- Agents that speak the Kafka protocol and were heard of lately.
SELECT node_id, host, port, rack, has_local_logs
FROM sessions
WHERE state = 'active' AND node_id IS NOT NULL
  AND heartbeat_ms >= coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
                      - %(silent_ms)s::bigint
ORDER BY node_id;

-- name: cluster_id
-- What clients know this catalog by.
SELECT cluster_id FROM cluster;
