-- kind: expansion
-- Leaders of the partitions of local topics (storage.mode=local), whose records are on an agent's disk, and
-- their leader
-- epochs. Sessions record whether an agent has such disks.
ALTER TABLE sessions ADD COLUMN has_local_logs boolean NOT NULL DEFAULT false;

CREATE TABLE local_leaders (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    node_id integer NOT NULL,
    leader_epoch integer NOT NULL DEFAULT 0,
    PRIMARY KEY (topic_id, partition),
    FOREIGN KEY (topic_id, partition) REFERENCES partitions ON DELETE CASCADE
);
CREATE INDEX local_leaders_node ON local_leaders (node_id);
