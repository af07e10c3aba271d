-- name: list_group_configs
-- All groups that have settings of their own; there is a bound to how many may.
SELECT group_id, config FROM group_configs ORDER BY group_id;

-- name: find_group_config
-- What was set for one group.
SELECT config FROM group_configs WHERE group_id = %(group_id)s;

-- name: lock_group_config
-- What was set for one group, made where nothing was, and nobody else's to change until the transaction ends.
INSERT INTO group_configs (group_id, config) VALUES (%(group_id)s, '{}')
ON CONFLICT (group_id) DO UPDATE SET group_id = EXCLUDED.group_id
RETURNING config;

-- name: keep_group_config
-- Keeps what is set for one group now.
UPDATE group_configs SET config = %(config)s WHERE group_id = %(group_id)s;

-- name: drop_group_config
-- Nothing is set for this group any more.
DELETE FROM group_configs WHERE group_id = %(group_id)s;

-- name: count_group_configs
-- How many groups have settings of their own.
SELECT count(*) FROM group_configs;
