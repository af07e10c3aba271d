-- kind: expansion
LOCK TABLE topics, local_leaders IN SHARE ROW EXCLUSIVE MODE;

-- The version of the topics and of the leaders of local partitions: the set of these ids. It differs from every earlier
-- one once a transaction that changed some of them is committed, and after a failover. So processes read them again
-- only when something has changed.
CREATE TABLE topic_changes (
    change_id uuid PRIMARY KEY DEFAULT gen_random_uuid()
);

-- Record a change once in its transaction, and delete the records of earlier changes. A record that another transaction
-- has locked stays for the next change, so no transaction waits for another. The setting has the transaction that has
-- recorded its change; a rollback to a savepoint takes back both.
CREATE FUNCTION note_topic_change() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF current_setting('siltstone.topic_change', true) IS DISTINCT FROM pg_current_xact_id()::text THEN
        DELETE FROM topic_changes
        WHERE change_id IN (SELECT change_id FROM topic_changes FOR UPDATE SKIP LOCKED);
        INSERT INTO topic_changes DEFAULT VALUES;
        PERFORM set_config('siltstone.topic_change', pg_current_xact_id()::text, true);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER note_topic_change AFTER INSERT OR UPDATE OR DELETE ON topics
    FOR EACH ROW EXECUTE FUNCTION note_topic_change();
CREATE TRIGGER note_topic_change AFTER INSERT OR UPDATE OR DELETE ON local_leaders
    FOR EACH ROW EXECUTE FUNCTION note_topic_change();
