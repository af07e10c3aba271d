-- kind: expansion
-- Quotas of users, client ids and IP addresses (KIP-546). An entity has its types as keys and names as values; an empty
-- name stands for the default of its type.
CREATE TABLE client_quotas (
    entity jsonb PRIMARY KEY,
    quotas jsonb NOT NULL
);

-- The version of all client quotas: random, so that it also differs after commits were lost. Agents read the quotas when
-- it changes. There is no row before the first change.
CREATE TABLE client_quota_version (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    version uuid NOT NULL
);
