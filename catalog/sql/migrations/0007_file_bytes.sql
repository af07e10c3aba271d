-- What the live extents of a file add up to, and what they did when it was committed: which files are small, or mostly
-- dead, is asked of the files alone. What has died of files that are there already is not known; their sizes tell about.
ALTER TABLE files ADD COLUMN born_bytes bigint NOT NULL DEFAULT 0;
ALTER TABLE files ADD COLUMN live_bytes bigint NOT NULL DEFAULT 0;
UPDATE files AS f SET live_bytes = (SELECT coalesce(sum(e.length), 0) FROM extents AS e WHERE e.file_id = f.file_id);
UPDATE files SET born_bytes = greatest(live_bytes, size - directory_length);
CREATE INDEX files_small ON files (live_bytes) WHERE kind = 'compacted' AND dead_ms IS NULL;
CREATE INDEX files_dying ON files ((born_bytes - live_bytes)) WHERE kind = 'compacted' AND dead_ms IS NULL;

-- What the planner expected a job to move and to cost, for its budget.
ALTER TABLE jobs ADD COLUMN moved_bytes bigint NOT NULL DEFAULT 0;
ALTER TABLE jobs ADD COLUMN nanodollars bigint NOT NULL DEFAULT 0;
CREATE INDEX jobs_created ON jobs (created_ms);
