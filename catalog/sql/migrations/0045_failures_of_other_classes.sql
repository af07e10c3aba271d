-- kind: expansion
-- Jobs that have failed with errors of other classes since a job was completed, by class: an environment may fail in
-- several ways. A process of the previous release leaves them as they are.
ALTER TABLE compaction_breaker ADD COLUMN others json NOT NULL DEFAULT '{}';
