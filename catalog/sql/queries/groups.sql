-- name: claim_new_group
-- Claims a group, which is made if there is none, for one coordinator: whoever claimed it before is fenced.
-- Gives how long ago its state has changed.
INSERT INTO consumer_groups (group_id, claim_id, state_ms)
VALUES (%(group_id)s, %(claim_id)s, coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint))
ON CONFLICT (group_id) DO UPDATE SET claim_id = EXCLUDED.claim_id
RETURNING group_id, generation, protocol_type, member_count, subscribed_topics, state,
          coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) - consumer_groups.state_ms, group_type;

-- name: claim_group
-- Claims a group that exists; gives what `claim_new_group` gives.
UPDATE consumer_groups SET claim_id = %(claim_id)s
WHERE group_id = %(group_id)s
RETURNING group_id, generation, protocol_type, member_count, subscribed_topics, state,
          coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) - consumer_groups.state_ms, group_type;

-- name: save_group
-- Keeps a group's present state, unless another coordinator has claimed the group.
UPDATE consumer_groups
SET group_type = %(group_type)s, generation = %(generation)s, protocol_type = %(protocol_type)s, member_count = %(member_count)s,
    subscribed_topics = %(subscribed_topics)s, state = %(state)s,
    state_ms = coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) - %(state_age_ms)s
WHERE group_id = %(group_id)s AND claim_id = %(claim_id)s;

-- name: delete_group
-- Deletes a group, and with it its offsets, unless another coordinator has claimed it.
DELETE FROM consumer_groups WHERE group_id = %(group_id)s AND claim_id = %(claim_id)s;

-- name: list_groups
-- A page of groups by name.
SELECT group_id, group_type, protocol_type, member_count
FROM consumer_groups
WHERE group_id > %(after)s
ORDER BY group_id
LIMIT %(page)s;
