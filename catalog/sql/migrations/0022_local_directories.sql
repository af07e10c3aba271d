-- kind: expansion
-- The log directory of each partition of a local topic, so that a failed disk cannot restart a partition in
-- another directory. Null: an earlier release claimed the partition.
ALTER TABLE local_leaders ADD COLUMN directory_id uuid;
