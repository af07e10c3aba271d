-- kind: expansion
-- Incarnations: the catalog notices that its server continues on another history (failover, restore).

CREATE TABLE catalog_incarnation (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    epoch integer NOT NULL DEFAULT 0 CHECK (epoch >= 0),
    incarnation_id uuid NOT NULL DEFAULT gen_random_uuid(),
    server text,
    started_ms bigint NOT NULL DEFAULT 0,
    reason text NOT NULL DEFAULT 'the catalog was created'
);
INSERT INTO catalog_incarnation DEFAULT VALUES;

CREATE VIEW current_incarnation AS
SELECT i.epoch, i.incarnation_id, i.started_ms, i.reason, i.server, s.server AS found_server,
       coalesce(i.server = s.server, false) AS is_current, s.inserted, s.flushed
FROM catalog_incarnation AS i
CROSS JOIN LATERAL (
    SELECT CASE WHEN NOT pg_is_in_recovery() THEN concat_ws(
               '/',
               (SELECT system_identifier FROM pg_control_system()),
               left(pg_walfile_name(pg_current_wal_insert_lsn()), 8),
               (SELECT oid FROM pg_database WHERE datname = current_database()),
               i.tableoid
           ) END AS server,
           CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_insert_lsn() - '0/0')::bigint END AS inserted,
           CASE WHEN NOT pg_is_in_recovery() THEN (pg_current_wal_flush_lsn() - '0/0')::bigint END AS flushed
) AS s;

CREATE TABLE leader_epochs (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    leader_epoch integer NOT NULL,
    start_offset bigint NOT NULL CHECK (start_offset >= 0),
    PRIMARY KEY (topic_id, partition, leader_epoch),
    FOREIGN KEY (topic_id, partition) REFERENCES partitions ON DELETE CASCADE
);

ALTER TABLE sessions ADD COLUMN unsettled text;

CREATE TABLE lost_commits (
    file_id uuid PRIMARY KEY,
    epoch integer NOT NULL,
    session_id uuid NOT NULL,
    object_name text COLLATE "C" NOT NULL,
    number bigint NOT NULL,
    acknowledged boolean NOT NULL,
    found_ms bigint NOT NULL,
    old_offsets json NOT NULL,
    outcome text CHECK (outcome IN ('readopted', 'unreadable')),
    outcome_ms bigint,
    new_offsets json,
    detail text
);
CREATE INDEX lost_commits_open ON lost_commits (session_id, number) WHERE outcome IS NULL;
