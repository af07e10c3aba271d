-- The catalog's schema as it is today, for a database that has none yet.
-- A change goes into a new file under migrations/ and into this file; a test proves that both routes agree.
-- Units: offsets count records, *_ms are milliseconds since the Unix epoch, positions and lengths are bytes.

CREATE TABLE schema_version (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version integer NOT NULL
);

-- The store that holds the objects of all files, by the id that its own marker object has. Without a row, no
-- process has used a store with this catalog yet. The url has no secrets.
CREATE TABLE object_store (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    store_id uuid NOT NULL,
    url text NOT NULL
);

-- A deleted topic keeps its row until its extents are gone; its name is free at once.
CREATE TABLE topics (
    topic_id uuid PRIMARY KEY,
    name text NOT NULL,
    partition_count integer NOT NULL CHECK (partition_count > 0),
    config jsonb NOT NULL,
    created_ms bigint NOT NULL,
    deleted_ms bigint
);
-- Names that differ only by '.' and '_' collide, as in Kafka.
CREATE UNIQUE INDEX topics_name ON topics (translate(name, '.', '_')) WHERE deleted_ms IS NULL;
CREATE INDEX topics_deleted ON topics (deleted_ms) WHERE deleted_ms IS NOT NULL;

-- The rows that commits lock. Nothing but the key is indexed and half of each page stays free, so that an update
-- stays on its page (HOT). From max_timestamp on, each column sums up extents, so that no plan has to scan them; but
-- for producers_from: no producer with that id or a larger one was forgotten, so one that is unknown is new. exactness
-- tells whether keys are there once below first_dirty_offset, or an exact job is owed, or does no more.
CREATE TABLE partitions (
    topic_id uuid NOT NULL REFERENCES topics,
    partition integer NOT NULL CHECK (partition >= 0),
    log_start_offset bigint NOT NULL DEFAULT 0 CHECK (log_start_offset >= 0),
    last_stable_offset bigint NOT NULL DEFAULT 0,
    high_watermark bigint NOT NULL DEFAULT 0,
    log_end_offset bigint NOT NULL DEFAULT 0,
    first_dirty_offset bigint NOT NULL DEFAULT 0,
    leader_epoch integer NOT NULL DEFAULT 0,
    max_timestamp bigint NOT NULL DEFAULT -1,
    live_bytes bigint NOT NULL DEFAULT 0,
    dirty_bytes bigint NOT NULL DEFAULT 0,
    dirty_since_ms bigint,
    ingestion_extents bigint NOT NULL DEFAULT 0,
    compacted_extents bigint NOT NULL DEFAULT 0,
    producers_from bigint NOT NULL DEFAULT 0,
    exactness text NOT NULL DEFAULT 'exact' CHECK (exactness IN ('exact', 'owed', 'out_of_reach')),
    PRIMARY KEY (topic_id, partition),
    CONSTRAINT bounds_ordered CHECK (
        log_start_offset <= last_stable_offset
        AND last_stable_offset <= high_watermark
        AND high_watermark <= log_end_offset
    )
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- Whoever may write below a prefix of the bucket: an agent that runs. From over_ms on it can commit nothing any more;
-- swept_ms is when what it left in the bucket was looked for.
CREATE TABLE sessions (
    session_id uuid PRIMARY KEY,
    description text NOT NULL,
    state text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'ended', 'fenced')),
    started_ms bigint NOT NULL,
    heartbeat_ms bigint NOT NULL,
    node_id integer,
    host text,
    port integer,
    rack text,
    over_ms bigint,
    swept_ms bigint,
    has_local_logs boolean NOT NULL DEFAULT false,
    CONSTRAINT over_since CHECK ((state = 'active') = (over_ms IS NULL)),
    CONSTRAINT broker_has_address CHECK (
        (node_id IS NULL) = (host IS NULL) AND (node_id IS NULL) = (port IS NULL)
    )
) WITH (fillfactor = 50);
CREATE INDEX sessions_active ON sessions (session_id) WHERE state = 'active';
CREATE INDEX sessions_over ON sessions (over_ms) WHERE over_ms IS NOT NULL;
CREATE INDEX sessions_unswept ON sessions (over_ms) WHERE over_ms IS NOT NULL AND swept_ms IS NULL;

-- Topics whose home is an agent's disk: which node leads a partition, for as long as its data lies there.
CREATE TABLE local_leaders (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    node_id integer NOT NULL,
    leader_epoch integer NOT NULL DEFAULT 0,
    PRIMARY KEY (topic_id, partition),
    FOREIGN KEY (topic_id, partition) REFERENCES partitions ON DELETE CASCADE
);
CREATE INDEX local_leaders_node ON local_leaders (node_id);

-- Objects. A file is live while it has live extents and dead from dead_ms on; its row goes once the object is gone.
-- live_bytes sums up the extents, born_bytes those that it had at first: small files and mostly dead ones are found
-- by an index.
CREATE TABLE files (
    file_id uuid PRIMARY KEY,
    object_name text COLLATE "C" NOT NULL UNIQUE,
    kind text NOT NULL CHECK (kind IN ('ingestion', 'compacted')),
    size bigint NOT NULL,
    directory_length bigint NOT NULL,
    owner_id uuid NOT NULL,
    committed_ms bigint NOT NULL,
    sequence bigint GENERATED ALWAYS AS IDENTITY,
    live_extents bigint NOT NULL,
    claimed_extents bigint NOT NULL DEFAULT 0,
    dead_ms bigint,
    born_bytes bigint NOT NULL DEFAULT 0,
    live_bytes bigint NOT NULL DEFAULT 0,
    CONSTRAINT claims_are_live CHECK (claimed_extents BETWEEN 0 AND live_extents),
    CONSTRAINT dead_without_extents CHECK ((dead_ms IS NULL) = (live_extents > 0))
);
CREATE INDEX files_dead ON files (dead_ms, file_id) WHERE dead_ms IS NOT NULL;
CREATE INDEX files_small ON files (live_bytes) WHERE kind = 'compacted' AND dead_ms IS NULL;
CREATE INDEX files_dying ON files ((born_bytes - live_bytes)) WHERE kind = 'compacted' AND dead_ms IS NULL;
CREATE INDEX files_to_compact ON files (sequence) WHERE kind = 'ingestion' AND live_extents > claimed_extents;

-- Which bytes hold which offsets. max_timestamp_so_far is an upper bound of the timestamps up to here in offset
-- order and never falls along the log: a search by timestamp is a bisection over the primary key.
CREATE TABLE extents (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    base_offset bigint NOT NULL CHECK (base_offset >= 0),
    last_offset bigint NOT NULL,
    record_count bigint NOT NULL,
    min_timestamp bigint NOT NULL,
    max_timestamp bigint NOT NULL,
    max_timestamp_so_far bigint NOT NULL,
    file_id uuid NOT NULL,
    position bigint NOT NULL CHECK (position >= 0),
    length bigint NOT NULL CHECK (length >= 0),
    index_position bigint NOT NULL,
    index_length bigint NOT NULL,
    offset_shift bigint NOT NULL,
    leader_epoch integer NOT NULL,
    unique_keys boolean NOT NULL,
    committed_ms bigint NOT NULL,
    job_id uuid,
    PRIMARY KEY (topic_id, partition, base_offset),
    CONSTRAINT count_fits CHECK (record_count BETWEEN 0 AND last_offset - base_offset + 1)
) WITH (fillfactor = 90);
CREATE INDEX extents_file ON extents (file_id);

-- What a commit answered, for a while, so that a retry after a lost answer gets the same.
CREATE TABLE commit_results (
    file_id uuid PRIMARY KEY,
    committed_ms bigint NOT NULL,
    sections bytea NOT NULL
);
ALTER TABLE commit_results ALTER COLUMN sections SET STORAGE EXTERNAL;
CREATE INDEX commit_results_age ON commit_results (committed_ms);

-- Idempotent producers. batches holds the last five, oldest first: base sequence (4 bytes), last sequence (4), base
-- offset (8), big-endian. An array would be easier on the eyes, and costs a commit several times as much.
CREATE TABLE producers (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    producer_id bigint NOT NULL,
    producer_epoch smallint NOT NULL,
    batches bytea NOT NULL CHECK (length(batches) BETWEEN 16 AND 80),
    updated_ms bigint NOT NULL,
    PRIMARY KEY (topic_id, partition, producer_id)
) WITH (fillfactor = 50);

-- moved_bytes and nanodollars are what the planner expected of a job; its budget counts them.
CREATE TABLE jobs (
    job_id uuid PRIMARY KEY,
    sequence bigint GENERATED ALWAYS AS IDENTITY,
    state text NOT NULL CHECK (state IN ('submitted', 'running', 'completed', 'failed')),
    spec json NOT NULL,
    created_ms bigint NOT NULL,
    attempt_id uuid,
    application_id text,
    heartbeat_ms bigint,
    attempts integer NOT NULL DEFAULT 0,
    finished_ms bigint,
    failure text,
    counts jsonb NOT NULL DEFAULT '{}',
    swept_ms bigint,
    moved_bytes bigint NOT NULL DEFAULT 0,
    nanodollars bigint NOT NULL DEFAULT 0,
    CONSTRAINT running_has_attempt CHECK (
        state <> 'running' OR (attempt_id IS NOT NULL AND heartbeat_ms IS NOT NULL)
    )
) WITH (fillfactor = 50);
CREATE INDEX jobs_submitted ON jobs (sequence) WHERE state = 'submitted';
CREATE INDEX jobs_running ON jobs (sequence) WHERE state = 'running';
CREATE INDEX jobs_sequence ON jobs (sequence);
CREATE INDEX jobs_created ON jobs (created_ms);
CREATE INDEX jobs_over ON jobs (finished_ms) WHERE finished_ms IS NOT NULL;
CREATE INDEX jobs_unswept ON jobs (finished_ms) WHERE finished_ms IS NOT NULL AND swept_ms IS NULL;

-- The files that a submitted or running job reads: garbage collection leaves them alone.
CREATE TABLE job_files (
    file_id uuid NOT NULL,
    job_id uuid NOT NULL REFERENCES jobs,
    PRIMARY KEY (file_id, job_id)
);
CREATE INDEX job_files_job ON job_files (job_id);

-- Live files that were in a job that failed for good. A job that takes one may take most_files in all, half of what
-- the failed one had, until the file that spoils them is alone; then it is quarantined, and in no job any more.
CREATE TABLE suspects (
    file_id uuid PRIMARY KEY REFERENCES files ON DELETE CASCADE,
    most_files integer NOT NULL CHECK (most_files > 0),
    failures integer NOT NULL CHECK (failures > 0),
    job_id uuid NOT NULL,
    reason text NOT NULL,
    failed_ms bigint NOT NULL,
    not_before_ms bigint NOT NULL,
    quarantined_ms bigint
);

-- When a chore that all processes share was last begun.
CREATE TABLE chores (
    name text PRIMARY KEY,
    begun_ms bigint NOT NULL
);

-- The node ids of agents that speak the Kafka protocol.
CREATE SEQUENCE broker_ids AS integer MINVALUE 1 CYCLE;

-- What idempotent producers are called; never given twice.
CREATE SEQUENCE producer_ids AS bigint MINVALUE 0;

-- Deleted topics by name, and the first producer id that none of their producers had: a client that outlives a topic
-- goes on counting in the next one of that name.
CREATE TABLE past_topics (
    name text COLLATE "C" PRIMARY KEY,
    producers_from bigint NOT NULL,
    deleted_ms bigint NOT NULL
);
CREATE INDEX past_topics_age ON past_topics (deleted_ms);

-- What clients know this catalog by.
CREATE TABLE cluster (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    cluster_id uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO cluster DEFAULT VALUES;

-- Consumer groups. Whoever coordinates one has claimed its row: state and offsets are written under that claim alone.
-- state is the coordinator's own form of the members; the columns beside it are what queries decide on. generation is
-- the epoch of a group of the consumer protocol.
CREATE TABLE consumer_groups (
    group_id text COLLATE "C" PRIMARY KEY,
    claim_id uuid NOT NULL,
    generation integer NOT NULL DEFAULT 0,
    protocol_type text,
    member_count integer NOT NULL DEFAULT 0,
    subscribed_topics text[],
    state bytea,
    state_ms bigint NOT NULL,
    group_type text NOT NULL DEFAULT 'classic' CHECK (group_type IN ('classic', 'consumer'))
) WITH (fillfactor = 50);

-- Where the consumers of a group are. metadata is the client's own text in UTF-8, which may hold any character.
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

-- Settings of consumer groups, by Kafka's names; only what was set. They do not need the group to be there.
CREATE TABLE group_configs (
    group_id text COLLATE "C" PRIMARY KEY,
    config jsonb NOT NULL
);
