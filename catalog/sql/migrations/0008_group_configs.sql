-- kind: expansion
-- Explicit settings of consumer groups (KIP-848), by Kafka's names. The group need not exist.
CREATE TABLE group_configs (
    group_id text COLLATE "C" PRIMARY KEY,
    config jsonb NOT NULL
);
