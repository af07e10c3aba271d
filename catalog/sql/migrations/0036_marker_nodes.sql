-- kind: expansion
-- The node that must write a pending marker. It is null if code that does not know the column has ended the transaction.
ALTER TABLE local_transaction_partitions ADD COLUMN node_id integer;
