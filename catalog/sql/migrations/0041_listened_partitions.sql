-- kind: expansion
-- The partitions of whose commits a process is notified, if they are few. Otherwise, and for a process of the previous
-- release, the buckets decide.
ALTER TABLE commit_listeners ADD COLUMN is_exact boolean NOT NULL DEFAULT false;
CREATE TABLE listened_partitions (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    listener_id uuid NOT NULL REFERENCES commit_listeners ON DELETE CASCADE,
    PRIMARY KEY (topic_id, partition, listener_id)
);
CREATE INDEX listened_partitions_listener ON listened_partitions (listener_id);
