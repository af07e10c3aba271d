-- kind: expansion
-- Readoptions: their order, and what is missing behind them.

-- The epoch in which a lost commit was made. Commits that agents of earlier releases report have none.
ALTER TABLE lost_commits ADD COLUMN committed_epoch integer;
-- An operator has given an unreadable file up. Until then, its session stays unsettled, so that its object is kept.
ALTER TABLE lost_commits ADD COLUMN given_up boolean NOT NULL DEFAULT false;

-- Sequence numbers that a readoption skipped (catalog/commit/sequence_gaps.py).
CREATE TABLE sequence_gaps (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    producer_id bigint NOT NULL,
    producer_epoch smallint NOT NULL,
    first_sequence integer NOT NULL,
    last_sequence integer NOT NULL,
    found_ms bigint NOT NULL,
    PRIMARY KEY (topic_id, partition, producer_id, producer_epoch, first_sequence)
);
CREATE INDEX sequence_gaps_age ON sequence_gaps (found_ms);
