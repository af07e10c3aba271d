-- kind: expansion
-- The bytes of a file's live extents, now and at its commit, so that the planner finds small and mostly dead
-- files without
-- reading extents. The bytes at the commit of existing files are not known; their sizes are an estimate.
ALTER TABLE files ADD COLUMN born_bytes bigint NOT NULL DEFAULT 0;
ALTER TABLE files ADD COLUMN live_bytes bigint NOT NULL DEFAULT 0;
UPDATE files AS f SET live_bytes = (SELECT coalesce(sum(e.length), 0) FROM extents AS e WHERE e.file_id = f.file_id);
UPDATE files SET born_bytes = greatest(live_bytes, size - directory_length);
CREATE INDEX files_small ON files (live_bytes) WHERE kind = 'compacted' AND dead_ms IS NULL;
CREATE INDEX files_dying ON files ((born_bytes - live_bytes)) WHERE kind = 'compacted' AND dead_ms IS NULL;

-- The planner's estimates of a job's bytes and cost, which count against its budget.
ALTER TABLE jobs ADD COLUMN moved_bytes bigint NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN nanodollars bigint NOT NULL DEFAULT 0;
CREATE INDEX jobs_created ON jobs (created_ms);
