-- kind: expansion
-- Transactions. They end in one transaction of the catalog, which writes no object.
LOCK TABLE partitions, sessions, extents, consumer_groups, topics IN ACCESS EXCLUSIVE MODE;
ALTER TABLE partitions ADD COLUMN unstable_offset bigint;
ALTER TABLE partitions ADD COLUMN has_transactions boolean NOT NULL DEFAULT false;
ALTER TABLE sessions ADD COLUMN knows_transactions boolean NOT NULL DEFAULT false;
ALTER TABLE extents ADD COLUMN control_producer_id bigint;
ALTER TABLE extents ADD COLUMN control_producer_epoch smallint;
ALTER TABLE extents ADD COLUMN control_commits boolean;

-- Transactional ids: the state of a producer and of its current or last transaction. A row is all that a
-- coordinator knows, so any agent may serve any id. last_epoch and last_producer_id are those before the last change
-- of the epoch, so that a retry of the request that changed it gets the same response; last_epoch is -1 if there is
-- no such request. bumps_epoch: the last transaction ended with a new epoch (KIP-890).
CREATE TABLE transactional_ids (
    transactional_id text COLLATE "C" PRIMARY KEY,
    producer_id bigint NOT NULL UNIQUE,
    producer_epoch smallint NOT NULL CHECK (producer_epoch >= 0),
    last_producer_id bigint NOT NULL DEFAULT -1,
    last_epoch smallint NOT NULL DEFAULT -1,
    timeout_ms integer NOT NULL,
    state text NOT NULL DEFAULT 'empty' CHECK (state IN ('empty', 'ongoing', 'committed', 'aborted')),
    bumps_epoch boolean NOT NULL DEFAULT false,
    started_ms bigint,
    updated_ms bigint NOT NULL,
    CONSTRAINT ongoing_has_start CHECK (state <> 'ongoing' OR started_ms IS NOT NULL)
) WITH (fillfactor = 50);
CREATE INDEX transactional_ids_timeout ON transactional_ids ((started_ms + timeout_ms)) WHERE state = 'ongoing';
CREATE INDEX transactional_ids_idle ON transactional_ids (updated_ms) WHERE state <> 'ongoing';

-- Partitions of ongoing transactions. first_offset is null until the first batch is committed.
CREATE TABLE transaction_partitions (
    producer_id bigint NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    first_offset bigint,
    PRIMARY KEY (producer_id, topic_id, partition)
);
CREATE INDEX transaction_partitions_open ON transaction_partitions (topic_id, partition, first_offset)
    WHERE first_offset IS NOT NULL;

-- Aborted transactions by partition: the first offset of their batches, the offset of the control batch, and the last
-- stable offset after it. All transactions that ended later began at or after that.
CREATE TABLE aborted_transactions (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    last_offset bigint NOT NULL,
    first_offset bigint NOT NULL,
    last_stable_offset bigint NOT NULL,
    producer_id bigint NOT NULL,
    PRIMARY KEY (topic_id, partition, last_offset)
);

-- Groups of ongoing transactions.
CREATE TABLE transaction_groups (
    producer_id bigint NOT NULL,
    group_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (producer_id, group_id)
);

-- Offsets that ongoing transactions commit when they end.
CREATE TABLE pending_offsets (
    group_id text COLLATE "C" NOT NULL REFERENCES consumer_groups ON DELETE CASCADE,
    topic_id uuid NOT NULL REFERENCES topics ON DELETE CASCADE,
    partition integer NOT NULL,
    producer_id bigint NOT NULL,
    committed_offset bigint NOT NULL,
    leader_epoch integer NOT NULL DEFAULT -1,
    metadata bytea NOT NULL DEFAULT '',
    PRIMARY KEY (group_id, topic_id, partition, producer_id)
);
CREATE INDEX pending_offsets_producer ON pending_offsets (producer_id);
CREATE INDEX pending_offsets_topic ON pending_offsets (topic_id);
