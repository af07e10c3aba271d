-- kind: expansion
-- Transactions in local topics. The end of a transaction decides about its local partitions, too, and leaves a pending
-- marker for each; code that does not know has_local_partitions cannot end such a transaction.
ALTER TABLE transactional_ids ADD COLUMN has_local_partitions boolean NOT NULL DEFAULT false;
ALTER TABLE transactional_ids ADD CONSTRAINT only_ongoing_has_local_partitions
    CHECK (NOT has_local_partitions OR state = 'ongoing') NOT VALID;

-- Partitions of local topics in transactions. While commits is null, the transaction is ongoing. Afterwards the row is
-- a pending marker: the leader appends it to its log, makes it durable, and deletes the row. producer_epoch and
-- first_sequence are those of the transaction's first batch in the partition, by which the leader recognizes the
-- transaction in its log; null until the leader has verified that batch. number distinguishes the rows of one producer
-- and partition.
CREATE TABLE local_transaction_partitions (
    producer_id bigint NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    number bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    producer_epoch smallint,
    first_sequence integer,
    commits boolean,
    marker_epoch smallint,
    coordinator_epoch integer,
    ended_ms bigint,
    PRIMARY KEY (producer_id, topic_id, partition),
    FOREIGN KEY (topic_id, partition) REFERENCES partitions ON DELETE CASCADE
);
CREATE INDEX local_transaction_partitions_partition ON local_transaction_partitions (topic_id, partition);
CREATE INDEX local_transaction_partitions_pending ON local_transaction_partitions (number) WHERE commits IS NOT NULL;
