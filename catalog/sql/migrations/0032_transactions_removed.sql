-- kind: expansion
-- When a job last removed control batches and aborted records of the partition; null if none has.
ALTER TABLE partitions ADD COLUMN transactions_removed_ms bigint;
