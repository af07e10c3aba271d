-- kind: online expansion
-- The planner asks whether there are such partitions. Commits do not change the column, so their updates stay HOT.
CREATE INDEX CONCURRENTLY partitions_with_transactions ON partitions (topic_id, partition) WHERE has_transactions;
