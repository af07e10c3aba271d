-- kind: expansion
-- Whether a partition may have duplicate keys below its first dirty offset, because a job ran out of memory.
ALTER TABLE partitions ADD COLUMN exactness text NOT NULL DEFAULT 'exact'
    CHECK (exactness IN ('exact', 'owed', 'out_of_reach'));
