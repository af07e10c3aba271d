-- kind: expansion
-- Processes that are notified of commits, and to which partitions.
CREATE TABLE commit_listeners (
    listener_id uuid PRIMARY KEY,
    buckets bit(256) NOT NULL,
    until_ms bigint NOT NULL
) WITH (fillfactor = 50);
