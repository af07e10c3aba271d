-- kind: online expansion
-- Rows of earlier releases have the default, so they satisfy the constraint.
ALTER TABLE transactional_ids VALIDATE CONSTRAINT only_ongoing_has_local_partitions;
