-- kind: expansion
-- A deleted topic can be undeleted until garbage collection begins to remove its extents, at purged_ms.
ALTER TABLE topics ADD COLUMN purged_ms bigint;

-- The rows of the partitions of deleted topics, as they were at the deletion, and the first offsets of their
-- leader epochs.
CREATE TABLE deleted_partitions (
    topic_id uuid NOT NULL REFERENCES topics ON DELETE CASCADE,
    partition integer NOT NULL,
    state jsonb NOT NULL,
    leader_epochs jsonb NOT NULL,
    PRIMARY KEY (topic_id, partition)
);
