-- name: load_acls
-- Return the version of the ACLs, with all ACLs unless it is the known one. One row without an ACL stands for none.
SELECT state.version, acl.resource_type, acl.pattern_type, acl.resource_name, acl.principal, acl.host, acl.operation,
       acl.permission
FROM acl_state AS state
LEFT JOIN acls AS acl ON state.version IS DISTINCT FROM %(known)s::uuid;

-- name: lock_acl_state
-- Let no other change of ACLs begin until the transaction ends.
SELECT version FROM acl_state FOR UPDATE;

-- name: add_acls
-- Add the ACLs that do not exist, and return a row for each.
INSERT INTO acls (digest, resource_type, pattern_type, resource_name, principal, host, operation, permission)
SELECT * FROM unnest(
    %(digests)s::bytea[], %(resource_types)s::integer[], %(pattern_types)s::integer[], %(resource_names)s::text[],
    %(principals)s::text[], %(hosts)s::text[], %(operations)s::integer[], %(permissions)s::integer[]
)
ON CONFLICT (digest) DO NOTHING
RETURNING 1 AS added;

-- name: remove_acls
-- Remove some ACLs.
DELETE FROM acls WHERE digest = ANY(%(digests)s::bytea[]);

-- name: change_acl_state
-- Give the ACLs a new version, notify all agents when the transaction commits, and return the number of ACLs.
WITH changed AS (
    UPDATE acl_state SET version = %(version)s RETURNING version
)
SELECT (SELECT count(*) FROM acls) AS acls, pg_notify(%(channel)s::text, '') FROM changed;
