-- kind: expansion
-- The order of offset commits. It decides between an offset of a transaction and one that was committed after the
-- transaction had stored its own. 0: stored by code that does not know the order.
LOCK TABLE committed_offsets, pending_offsets IN ACCESS EXCLUSIVE MODE;
CREATE SEQUENCE offset_commits AS bigint;
ALTER TABLE committed_offsets ADD COLUMN commit_number bigint NOT NULL DEFAULT 0;
ALTER TABLE pending_offsets ADD COLUMN commit_number bigint NOT NULL DEFAULT 0;
