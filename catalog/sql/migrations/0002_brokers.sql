-- kind: expansion
-- Agents that serve the Kafka protocol are brokers, with a node id and an address.
ALTER TABLE sessions
    ADD COLUMN node_id integer,
    ADD COLUMN host text,
    ADD COLUMN port integer,
    ADD COLUMN rack text,
    ADD CONSTRAINT broker_has_address CHECK (
        (node_id IS NULL) = (host IS NULL) AND (node_id IS NULL) = (port IS NULL)
    );
CREATE SEQUENCE broker_ids AS integer MINVALUE 1 CYCLE;

-- Ids of idempotent producers; never assigned twice.
CREATE SEQUENCE producer_ids AS bigint MINVALUE 0;

-- The cluster id for Kafka clients.
CREATE TABLE cluster (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    cluster_id uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO cluster DEFAULT VALUES;
