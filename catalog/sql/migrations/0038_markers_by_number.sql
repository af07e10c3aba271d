-- kind: expansion
-- Earlier code, which looks for markers of all nodes, reads the table instead.
DROP INDEX local_transaction_partitions_pending;
