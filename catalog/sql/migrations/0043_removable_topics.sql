-- kind: online expansion
-- Garbage collection finds the next topic to remove, and reads none of the purged local topics whose rows stay for a time.
CREATE INDEX CONCURRENTLY topics_removable ON topics (
    (CASE WHEN config ->> 'storage.mode' = 'local' THEN purged_ms END), deleted_ms
) WHERE deleted_ms IS NOT NULL;
