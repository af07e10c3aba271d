-- Settings of consumer groups (KIP-848), by Kafka's names; only what was set. They do not need the group to be there.
CREATE TABLE group_configs (
    group_id text COLLATE "C" PRIMARY KEY,
    config jsonb NOT NULL
);
