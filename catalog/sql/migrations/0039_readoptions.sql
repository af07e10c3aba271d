-- kind: expansion
-- The epoch in which a lost commit was made. Commits that agents of earlier releases report have none.
ALTER TABLE lost_commits ADD COLUMN committed_epoch integer;
