-- kind: contraction, minimum 11
-- Rename tables, columns, values, indexes and constraints. No other data changes.

-- Idempotent producers: an unknown producer with this id or a larger one is new.
ALTER TABLE partitions RENAME COLUMN producers_from TO first_new_producer_id;
ALTER TABLE past_topics RENAME TO deleted_topics;
ALTER TABLE deleted_topics RENAME COLUMN producers_from TO first_new_producer_id;
ALTER INDEX past_topics_pkey RENAME TO deleted_topics_pkey;
ALTER INDEX past_topics_age RENAME TO deleted_topics_age;

-- Exactness of deduplication.
ALTER TABLE partitions DROP CONSTRAINT partitions_exactness_check;
UPDATE partitions
SET exactness = CASE exactness WHEN 'owed' THEN 'dedup_incomplete' ELSE 'dedup_impossible' END
WHERE exactness <> 'exact';
ALTER TABLE partitions ADD CONSTRAINT partitions_exactness_check
    CHECK (exactness IN ('exact', 'dedup_incomplete', 'dedup_impossible'));

-- Sessions that ended or were fenced.
ALTER TABLE sessions RENAME COLUMN over_ms TO closed_ms;
ALTER TABLE sessions RENAME CONSTRAINT over_since TO closed_has_time;
ALTER INDEX sessions_over RENAME TO sessions_closed;
ALTER INDEX jobs_over RENAME TO jobs_finished;

-- Bytes of a file's extents at its commit.
ALTER TABLE files RENAME COLUMN born_bytes TO initial_bytes;
ALTER INDEX files_dying RENAME TO files_dead_bytes;

-- Files of failed jobs.
ALTER TABLE suspects RENAME TO quarantine_candidates;
ALTER TABLE quarantine_candidates RENAME COLUMN most_files TO max_files;
ALTER TABLE quarantine_candidates RENAME CONSTRAINT suspects_most_files_check TO quarantine_candidates_max_files_check;
ALTER TABLE quarantine_candidates RENAME CONSTRAINT suspects_failures_check TO quarantine_candidates_failures_check;
ALTER TABLE quarantine_candidates RENAME CONSTRAINT suspects_file_id_fkey TO quarantine_candidates_file_id_fkey;
ALTER INDEX suspects_pkey RENAME TO quarantine_candidates_pkey;

-- Tasks that one of all processes runs at a time.
ALTER TABLE chores RENAME TO periodic_tasks;
ALTER TABLE periodic_tasks RENAME COLUMN begun_ms TO started_ms;
ALTER INDEX chores_pkey RENAME TO periodic_tasks_pkey;

-- Since PostgreSQL 18, NOT NULL constraints have names, which do not follow a renamed table or column.
DO $$
DECLARE
    old record;
BEGIN
    FOR old IN
        SELECT c.conrelid::regclass AS table_name, c.conname, r.relname || '_' || a.attname || '_not_null' AS new_name
        FROM pg_constraint AS c
        JOIN pg_class AS r ON r.oid = c.conrelid
        JOIN pg_attribute AS a ON a.attrelid = c.conrelid AND a.attnum = c.conkey[1]
        WHERE c.contype = 'n' AND c.connamespace = current_schema()::regnamespace
          AND c.conname <> r.relname || '_' || a.attname || '_not_null'
    LOOP
        EXECUTE format('ALTER TABLE %s RENAME CONSTRAINT %I TO %I', old.table_name, old.conname, old.new_name);
    END LOOP;
END
$$;
