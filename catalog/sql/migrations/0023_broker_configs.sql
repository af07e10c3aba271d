-- kind: expansion
-- Explicit settings of brokers, by Kafka's names. An empty name stands for the default of all brokers.
CREATE TABLE broker_configs (
    broker_name text COLLATE "C" PRIMARY KEY,
    config jsonb NOT NULL
);
