-- kind: online expansion
-- Each node looks for its pending markers, and reads none of nodes that are away.
CREATE INDEX CONCURRENTLY local_transaction_partitions_of_node ON local_transaction_partitions (node_id, number)
    WHERE commits IS NOT NULL;
