-- Agents that speak the Kafka protocol are brokers: a node id for the life of the process, and an address.
ALTER TABLE sessions
    ADD COLUMN node_id integer,
    ADD COLUMN host text,
    ADD COLUMN port integer,
    ADD COLUMN rack text,
    ADD CONSTRAINT broker_has_address CHECK (
        (node_id IS NULL) = (host IS NULL) AND (node_id IS NULL) = (port IS NULL)
    );
CREATE SEQUENCE broker_ids AS integer MINVALUE 1 CYCLE;

-- What idempotent producers are called; never given twice.
CREATE SEQUENCE producer_ids AS bigint MINVALUE 0;

-- What clients know this catalog by.
CREATE TABLE cluster (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    cluster_id uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO cluster DEFAULT VALUES;
