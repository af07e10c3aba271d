-- kind: expansion
-- The last confirmation that objects may be deleted.
CREATE TABLE deletions (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    confirmed_ms bigint NOT NULL
);
