-- name: find_store
-- Return the object store that has this catalog's objects; no row before a store was recorded.
SELECT store_id, url FROM object_store;

-- name: bind_store
-- Record the object store unless one is recorded. A concurrent transaction waits for the first and then does
-- nothing.
INSERT INTO object_store (store_id, url) VALUES (%(store_id)s, %(url)s) ON CONFLICT DO NOTHING;

-- name: update_store_url
-- Record the new URL of the recorded object store.
UPDATE object_store SET url = %(url)s WHERE store_id = %(store_id)s AND url <> %(url)s;
