-- kind: expansion
-- Consumer groups. A coordinator claims a group's row and writes its state and offsets under that claim.
-- state is the
-- coordinator's own encoding of the members; queries use the other columns.
CREATE TABLE consumer_groups (
    group_id text COLLATE "C" PRIMARY KEY,
    claim_id uuid NOT NULL,
    generation integer NOT NULL DEFAULT 0,
    protocol_type text,
    member_count integer NOT NULL DEFAULT 0,
    subscribed_topics text[],
    state bytea,
    state_ms bigint NOT NULL
) WITH (fillfactor = 50);

-- Committed offsets of groups. metadata is the client's text in UTF-8, which may contain any character.
CREATE TABLE committed_offsets (
    group_id text COLLATE "C" NOT NULL REFERENCES consumer_groups ON DELETE CASCADE,
    topic_id uuid NOT NULL REFERENCES topics ON DELETE CASCADE,
    partition integer NOT NULL,
    committed_offset bigint NOT NULL,
    leader_epoch integer NOT NULL DEFAULT -1,
    metadata bytea NOT NULL DEFAULT '',
    committed_ms bigint NOT NULL,
    expires_ms bigint,
    PRIMARY KEY (group_id, topic_id, partition)
) WITH (fillfactor = 50);
CREATE INDEX committed_offsets_topic ON committed_offsets (topic_id);
