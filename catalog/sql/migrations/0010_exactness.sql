-- Whether a partition's keys may be there twice below its first dirty offset, since a job had no memory for more.
ALTER TABLE partitions ADD COLUMN exactness text NOT NULL DEFAULT 'exact'
    CHECK (exactness IN ('exact', 'owed', 'out_of_reach'));
