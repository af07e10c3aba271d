-- kind: expansion
-- What verifies the passwords of users, by name and SCRAM mechanism (1: SCRAM-SHA-256, 2: SCRAM-SHA-512). No
-- password can be computed from it.
CREATE TABLE scram_credentials (
    user_name text COLLATE "C" NOT NULL,
    mechanism smallint NOT NULL CHECK (mechanism IN (1, 2)),
    salt bytea NOT NULL,
    iterations integer NOT NULL CHECK (iterations BETWEEN 4096 AND 16384),
    stored_key bytea NOT NULL,
    server_key bytea NOT NULL,
    PRIMARY KEY (user_name, mechanism)
);
CREATE INDEX scram_credentials_mechanism ON scram_credentials (mechanism, user_name);

-- The secret from which agents simulate credentials of unknown users, so that all of them simulate the same.
CREATE TABLE user_simulation (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    secret bytea NOT NULL
);
INSERT INTO user_simulation (secret)
VALUES (decode(replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', ''), 'hex'));
