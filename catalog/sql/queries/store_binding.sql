-- name: find_home
-- The one object store that holds this catalog's objects; no row before it is known.
SELECT store_id, url FROM object_store;

-- name: bind_home
-- Notes the object store unless one is noted. A second transaction waits for the first, and then does nothing.
INSERT INTO object_store (store_id, url) VALUES (%(store_id)s, %(url)s) ON CONFLICT DO NOTHING;

-- name: move_home
-- Notes where that same object store is found now.
UPDATE object_store SET url = %(url)s WHERE store_id = %(store_id)s AND url <> %(url)s;
