-- kind: expansion
-- A new incarnation of the catalog changes the version of the topics and of the leaders of local partitions, also if a
-- process of the previous release begins it: a process may have read a version, then a change that is lost now.
CREATE TRIGGER note_topic_change AFTER UPDATE OF incarnation_id ON catalog_incarnation
    FOR EACH ROW EXECUTE FUNCTION note_topic_change();
