-- kind: contraction, minimum 1
-- The initial schema.
-- Units: offsets count records, *_ms are milliseconds since the Unix epoch, positions and lengths are bytes.

CREATE TABLE schema_version (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version integer NOT NULL
);

-- The object store of all files, identified by the id in its marker object. There is no row until a process
-- first uses a store with this catalog. The url has no secrets.
CREATE TABLE object_store (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    store_id uuid NOT NULL,
    url text NOT NULL
);

-- Topics. A deleted topic keeps its row until its extents are removed; its name is free at once.
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

-- Partitions: the rows that commits lock. Only the key is indexed, and half of each page stays free, so that
-- an updated row stays on its page (HOT). The columns from max_timestamp on are totals of the extents, so
-- that the planner need not read extents.
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
    PRIMARY KEY (topic_id, partition),
    CONSTRAINT bounds_ordered CHECK (
        log_start_offset <= last_stable_offset
        AND last_stable_offset <= high_watermark
        AND high_watermark <= log_end_offset
    )
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);

-- Sessions of agents. A session may commit files below its own object prefix.
CREATE TABLE sessions (
    session_id uuid PRIMARY KEY,
    description text NOT NULL,
    state text NOT NULL DEFAULT 'active' CHECK (state IN ('active', 'ended', 'fenced')),
    started_ms bigint NOT NULL,
    heartbeat_ms bigint NOT NULL
) WITH (fillfactor = 50);
CREATE INDEX sessions_active ON sessions (session_id) WHERE state = 'active';

-- Files: objects with sections. A file is live while it has live extents, and dead from dead_ms on; its row
-- is deleted after its object.
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
    CONSTRAINT claims_are_live CHECK (claimed_extents BETWEEN 0 AND live_extents),
    CONSTRAINT dead_without_extents CHECK ((dead_ms IS NULL) = (live_extents > 0))
);
CREATE INDEX files_dead ON files (dead_ms, file_id) WHERE dead_ms IS NOT NULL;
CREATE INDEX files_to_compact ON files (sequence) WHERE kind = 'ingestion' AND live_extents > claimed_extents;

-- Extents: the offsets of one section of a file. max_timestamp_so_far is an upper bound of all timestamps up
-- to this extent in offset order. It never decreases along the log, so a search by timestamp is a binary
-- search over the key.
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

-- Outcomes of recent commits, so that a retry after a lost response gets the same outcome.
CREATE TABLE commit_results (
    file_id uuid PRIMARY KEY,
    committed_ms bigint NOT NULL,
    sections bytea NOT NULL
);
ALTER TABLE commit_results ALTER COLUMN sections SET STORAGE EXTERNAL;
CREATE INDEX commit_results_age ON commit_results (committed_ms);

-- Idempotent producers. batches has the last five batches, oldest first, big-endian: base sequence (4 bytes),
-- last sequence (4), base offset (8). An array would be more readable, but costs a commit several times as
-- much.
CREATE TABLE producers (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    producer_id bigint NOT NULL,
    producer_epoch smallint NOT NULL,
    batches bytea NOT NULL CHECK (length(batches) BETWEEN 16 AND 80),
    updated_ms bigint NOT NULL,
    PRIMARY KEY (topic_id, partition, producer_id)
) WITH (fillfactor = 50);

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
    CONSTRAINT running_has_attempt CHECK (
        state <> 'running' OR (attempt_id IS NOT NULL AND heartbeat_ms IS NOT NULL)
    )
) WITH (fillfactor = 50);
CREATE INDEX jobs_submitted ON jobs (sequence) WHERE state = 'submitted';
CREATE INDEX jobs_running ON jobs (sequence) WHERE state = 'running';
CREATE INDEX jobs_sequence ON jobs (sequence);

-- Input files of open jobs, which garbage collection does not delete.
CREATE TABLE job_files (
    file_id uuid NOT NULL,
    job_id uuid NOT NULL REFERENCES jobs,
    PRIMARY KEY (file_id, job_id)
);
CREATE INDEX job_files_job ON job_files (job_id);
