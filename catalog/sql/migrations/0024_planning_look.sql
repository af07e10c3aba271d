-- kind: expansion
-- The last look of a planner, so that all planners of one catalog look as often together as one would. A look that
-- planned nothing need not be repeated before next_ms, unless there is a row in planning_changes or a watcher has
-- other settings. The look look_id runs until lease_end_ms.
CREATE TABLE planning_look (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    look_id uuid,
    settings text NOT NULL DEFAULT '',
    looked_ms bigint NOT NULL DEFAULT 0,
    lease_end_ms bigint NOT NULL DEFAULT 0,
    next_ms bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO planning_look DEFAULT VALUES;

-- Not empty if something has changed since the last look that a plan depends on. New ingestion files do not count:
-- a look asks for them.
CREATE TABLE planning_changes (
    change_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY
);

-- Record in its own transaction that something changes. A row of an earlier change does as well, if it stays until
-- this transaction ends: a look deletes only rows that no transaction has locked. So there are never many.
CREATE FUNCTION note_planning_change() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM FROM planning_changes LIMIT 1 FOR KEY SHARE SKIP LOCKED;
    IF NOT FOUND THEN
        INSERT INTO planning_changes DEFAULT VALUES;
    END IF;
    RETURN NULL;
END
$$;

-- Commits of ingestion files fire none of these.
CREATE TRIGGER note_planning_change AFTER UPDATE OF job_id OR DELETE ON extents
    FOR EACH STATEMENT EXECUTE FUNCTION note_planning_change();
CREATE TRIGGER note_planning_change
    AFTER UPDATE OF log_start_offset, first_dirty_offset, compacted_extents, exactness ON partitions
    FOR EACH STATEMENT EXECUTE FUNCTION note_planning_change();
CREATE TRIGGER note_planning_change AFTER UPDATE OR DELETE ON topics
    FOR EACH ROW EXECUTE FUNCTION note_planning_change();
CREATE TRIGGER note_planning_change AFTER INSERT OR UPDATE OR DELETE ON quarantine_candidates
    FOR EACH ROW EXECUTE FUNCTION note_planning_change();
