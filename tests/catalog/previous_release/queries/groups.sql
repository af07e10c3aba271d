-- name: claim_new_group
-- Claim a group for one coordinator, which fences the previous one; insert the group if it does not exist.
INSERT INTO consumer_groups (group_id, claim_id, state_ms)
VALUES (
    %(group_id)s, %(claim_id)s, coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
)
ON CONFLICT (group_id) DO UPDATE SET claim_id = EXCLUDED.claim_id
RETURNING group_id, generation, protocol_type, member_count, subscribed_topics, state, group_type,
          coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
              - consumer_groups.state_ms AS state_age_ms;

-- name: claim_group
-- Claim a group that exists; the result is that of `claim_new_group`.
UPDATE consumer_groups SET claim_id = %(claim_id)s
WHERE group_id = %(group_id)s
RETURNING group_id, generation, protocol_type, member_count, subscribed_topics, state, group_type,
          coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint)
              - consumer_groups.state_ms AS state_age_ms;

-- name: save_group
-- Store a group's state, unless another coordinator has claimed the group.
UPDATE consumer_groups
SET group_type = %(group_type)s, generation = %(generation)s, protocol_type = %(protocol_type)s,
    member_count = %(member_count)s, subscribed_topics = %(subscribed_topics)s, state = %(state)s,
    state_ms = coalesce(%(now_ms)s::bigint, (extract(epoch FROM clock_timestamp()) * 1000)::bigint) - %(state_age_ms)s
WHERE group_id = %(group_id)s AND claim_id = %(claim_id)s;

-- name: delete_group
-- Delete a group with its offsets, unless another coordinator has claimed the group.
DELETE FROM consumer_groups WHERE group_id = %(group_id)s AND claim_id = %(claim_id)s;

-- name: list_groups
-- Return a page of groups by name.
SELECT group_id, group_type, protocol_type, member_count
FROM consumer_groups
WHERE group_id > %(after)s
ORDER BY group_id
LIMIT %(page)s;
