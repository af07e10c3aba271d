-- name: find_broker_configs
-- Return the explicit settings of some brokers.
SELECT broker_name, config FROM broker_configs WHERE broker_name = ANY(%(broker_names)s);

-- name: lock_broker_config
-- Lock the row of one broker until the transaction ends; insert an empty one if there is none.
INSERT INTO broker_configs (broker_name, config) VALUES (%(broker_name)s, '{}')
ON CONFLICT (broker_name) DO UPDATE SET broker_name = EXCLUDED.broker_name
RETURNING config;

-- name: update_broker_config
-- Replace the explicit settings of one broker.
UPDATE broker_configs SET config = %(config)s WHERE broker_name = %(broker_name)s;

-- name: delete_broker_config
-- Delete the row of a broker that has no explicit settings any more.
DELETE FROM broker_configs WHERE broker_name = %(broker_name)s;

-- name: count_broker_configs
-- Count the brokers that have explicit settings.
SELECT count(*) AS brokers FROM broker_configs;

-- name: forget_broker_configs
-- Delete the settings of brokers that do not run and lead no local partition. Their node ids are not used again.
DELETE FROM broker_configs AS config
WHERE broker_name <> ''
  AND NOT EXISTS (SELECT FROM sessions WHERE state = 'active' AND node_id::text = config.broker_name)
  AND NOT EXISTS (SELECT FROM local_leaders WHERE node_id::text = config.broker_name);
