-- kind: expansion
-- A job that takes all live extents of a file claims the file, instead of each extent. claimed_extents is then the
-- number of live extents, so that processes of the previous release see none without a claim. These do not subtract
-- extents that they remove.
ALTER TABLE files
    ADD COLUMN job_id uuid,
    DROP CONSTRAINT claims_are_live,
    ADD CONSTRAINT claims_are_live
        CHECK (claimed_extents >= 0 AND (claimed_extents <= live_extents OR job_id IS NOT NULL)) NOT VALID;

CREATE TRIGGER note_planning_change AFTER UPDATE OF job_id ON files
    FOR EACH STATEMENT EXECUTE FUNCTION note_planning_change();
