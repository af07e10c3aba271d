-- kind: expansion
-- The runs that a lost commit had refused. Agents of earlier releases report none.
ALTER TABLE lost_commits ADD COLUMN refused json NOT NULL DEFAULT '[]';
