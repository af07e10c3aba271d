-- name: list_group_configs
-- Return the configuration of all groups that have explicit settings. Their number is limited.
SELECT group_id, config FROM group_configs ORDER BY group_id;

-- name: find_group_config
-- Return the explicit settings of one group.
SELECT config FROM group_configs WHERE group_id = %(group_id)s;

-- name: lock_group_config
-- Lock the row of one group until the transaction ends; insert an empty one if there is none.
INSERT INTO group_configs (group_id, config) VALUES (%(group_id)s, '{}')
ON CONFLICT (group_id) DO UPDATE SET group_id = EXCLUDED.group_id
RETURNING config;

-- name: update_group_config
-- Replace the explicit settings of one group.
UPDATE group_configs SET config = %(config)s WHERE group_id = %(group_id)s;

-- name: delete_group_config
-- Delete the row of a group that has no explicit settings any more.
DELETE FROM group_configs WHERE group_id = %(group_id)s;

-- name: count_group_configs
-- Count the groups that have explicit settings.
SELECT count(*) AS groups FROM group_configs;
