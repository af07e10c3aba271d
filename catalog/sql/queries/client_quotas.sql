-- name: read_client_quotas
-- Return the version of the quotas and all of them, one row without an entity if there are none. Return nothing if the
-- version is the known one.
SELECT v.version, q.entity, q.quotas
FROM (SELECT (SELECT version FROM client_quota_version) AS version) AS v
LEFT JOIN client_quotas AS q ON true
WHERE v.version IS DISTINCT FROM %(known)s::uuid
LIMIT %(limit)s;

-- name: change_version
-- Set a new version of the quotas, and thereby lock them until the transaction ends.
INSERT INTO client_quota_version (version) VALUES (%(version)s)
ON CONFLICT (is_only) DO UPDATE SET version = EXCLUDED.version;

-- name: find_client_quotas
-- Return the quotas of some entities.
SELECT entity, quotas FROM client_quotas WHERE entity = ANY(%(entities)s::jsonb[]);

-- name: put_client_quotas
-- Insert or replace the quotas of some entities.
INSERT INTO client_quotas (entity, quotas)
SELECT entity, quotas FROM unnest(%(entities)s::jsonb[], %(quotas)s::jsonb[]) AS new (entity, quotas)
ON CONFLICT (entity) DO UPDATE SET quotas = EXCLUDED.quotas;

-- name: delete_client_quotas
-- Delete the rows of entities without quotas.
DELETE FROM client_quotas WHERE entity = ANY(%(entities)s::jsonb[]);

-- name: count_client_quotas
-- Count the entities that have quotas.
SELECT count(*) AS entities FROM client_quotas;
