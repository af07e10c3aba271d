-- kind: expansion
-- The oldest schema version that code must know to use the catalog.
ALTER TABLE schema_version ADD COLUMN min_version integer NOT NULL DEFAULT 11;
ALTER TABLE schema_version ALTER COLUMN min_version DROP DEFAULT;
