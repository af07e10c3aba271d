-- kind: expansion
-- The version of a job's specification, which has megabytes. It is null in jobs of the previous release.
ALTER TABLE jobs ADD COLUMN spec_version integer;
