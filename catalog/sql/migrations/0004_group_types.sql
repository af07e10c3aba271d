-- kind: expansion
-- Groups of the consumer protocol (KIP-848) in addition to classic ones. generation is the epoch of such a
-- group.
ALTER TABLE consumer_groups
ADD COLUMN group_type text NOT NULL DEFAULT 'classic' CHECK (group_type IN ('classic', 'consumer'));
