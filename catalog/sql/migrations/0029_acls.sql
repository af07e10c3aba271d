-- kind: expansion
-- Kafka's ACLs, with Kafka's codes of types, patterns, operations and permissions. The key is the SHA-256 of all other
-- columns, because names may be longer than an index entry.
CREATE TABLE acls (
    digest bytea PRIMARY KEY,
    resource_type integer NOT NULL,
    pattern_type integer NOT NULL,
    resource_name text COLLATE "C" NOT NULL,
    principal text COLLATE "C" NOT NULL,
    host text COLLATE "C" NOT NULL,
    operation integer NOT NULL,
    permission integer NOT NULL
);

-- The version of all ACLs together: a new random one with each change. Changes lock this row.
CREATE TABLE acl_state (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version uuid NOT NULL
);
INSERT INTO acl_state (version) VALUES ('00000000-0000-0000-0000-000000000000');
