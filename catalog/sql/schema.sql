-- The current schema of the catalog, for an empty database.
-- A change goes into a new file under migrations/ and into this file. A test checks that both routes give one
-- schema.
-- Units: offsets count records, *_ms are milliseconds since the Unix epoch, positions and lengths are bytes.

-- The number of the last migration, and the oldest schema version that code must know to use the catalog.
CREATE TABLE schema_version (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    version integer NOT NULL,
    min_version integer NOT NULL
);

-- The object store of all files, identified by the id in its marker object. There is no row until a process
-- first uses a store with this catalog. The url has no secrets.
CREATE TABLE object_store (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    store_id uuid NOT NULL,
    url text NOT NULL
);

-- The incarnation of the catalog: one history of commits on one server. A failover or a restore may continue on
-- a history that lacks the last commits, and starts a new incarnation. epoch is the leader epoch of every
-- partition in the object store. server identifies the server and its history (see current_incarnation); it is
-- null until the first session.
CREATE TABLE catalog_incarnation (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    epoch integer NOT NULL DEFAULT 0 CHECK (epoch >= 0),
    incarnation_id uuid NOT NULL DEFAULT gen_random_uuid(),
    server text,
    started_ms bigint NOT NULL DEFAULT 0,
    reason text NOT NULL DEFAULT 'the catalog was created'
);
INSERT INTO catalog_incarnation DEFAULT VALUES;

-- The incarnation, and the server that this query runs on: system identifier, timeline, database and table.
-- inserted and flushed are the positions of its WAL in bytes. All of it is null on a standby.
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

-- Topics. A deleted topic keeps its row until its extents are removed; its name is free at once. It can be
-- undeleted until garbage collection begins to remove its extents, at purged_ms.
CREATE TABLE topics (
    topic_id uuid PRIMARY KEY,
    name text NOT NULL,
    partition_count integer NOT NULL CHECK (partition_count > 0),
    config jsonb NOT NULL,
    created_ms bigint NOT NULL,
    deleted_ms bigint,
    purged_ms bigint
);
-- Names that differ only by '.' and '_' collide, as in Kafka.
CREATE UNIQUE INDEX topics_name ON topics (translate(name, '.', '_')) WHERE deleted_ms IS NULL;
CREATE INDEX topics_deleted ON topics (deleted_ms) WHERE deleted_ms IS NOT NULL;
-- A local topic stays for a time after purged_ms. Any other deleted topic may be removed, or marked as purged.
CREATE INDEX topics_removable ON topics (
    (CASE WHEN config ->> 'storage.mode' = 'local' THEN purged_ms END), deleted_ms
) WHERE deleted_ms IS NOT NULL;

-- The version of the topics and of the leaders of local partitions: the set of these ids. It differs from every earlier
-- one once a transaction that changed some of them is committed, and after a failover. So processes read them again
-- only when something has changed.
CREATE TABLE topic_changes (
    change_id uuid PRIMARY KEY DEFAULT gen_random_uuid()
);

-- Record a change once in its transaction, and delete the records of earlier changes. A record that another transaction
-- has locked stays for the next change, so no transaction waits for another. The setting has the transaction that has
-- recorded its change; a rollback to a savepoint takes back both.
CREATE FUNCTION note_topic_change() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    IF current_setting('siltstone.topic_change', true) IS DISTINCT FROM pg_current_xact_id()::text THEN
        DELETE FROM topic_changes
        WHERE change_id IN (SELECT change_id FROM topic_changes FOR UPDATE SKIP LOCKED);
        INSERT INTO topic_changes DEFAULT VALUES;
        PERFORM set_config('siltstone.topic_change', pg_current_xact_id()::text, true);
    END IF;
    RETURN NULL;
END
$$;
CREATE TRIGGER note_topic_change AFTER INSERT OR UPDATE OR DELETE ON topics
    FOR EACH ROW EXECUTE FUNCTION note_topic_change();
-- A new incarnation changes the version, too: a process may have read a version, then a change that is lost now.
CREATE TRIGGER note_topic_change AFTER UPDATE OF incarnation_id ON catalog_incarnation
    FOR EACH ROW EXECUTE FUNCTION note_topic_change();

-- Partitions: the rows that commits lock. Only columns that commits do not change are indexed, and half of each page stays free, so that
-- an updated row stays on its page (HOT). The columns from max_timestamp to compacted_extents are totals of
-- the extents, so that the planner need not read extents. No producer with an id of at least
-- first_new_producer_id has expired, so an unknown one is new. exactness: each key is unique below
-- first_dirty_offset ('exact'), or an exact job is needed to make it so ('dedup_incomplete'), or exact jobs
-- are of no use ('dedup_impossible'). unstable_offset is the least first offset of the open transactions, null
-- without any; last_stable_offset follows from it. has_transactions: some batch was transactional. It is
-- false again some time after a job has removed the last control batch and aborted record, at transactions_removed_ms.
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
    first_new_producer_id bigint NOT NULL DEFAULT 0,
    exactness text NOT NULL DEFAULT 'exact' CHECK (exactness IN ('exact', 'dedup_incomplete', 'dedup_impossible')),
    unstable_offset bigint,
    has_transactions boolean NOT NULL DEFAULT false,
    transactions_removed_ms bigint,
    PRIMARY KEY (topic_id, partition),
    CONSTRAINT bounds_ordered CHECK (
        log_start_offset <= last_stable_offset
        AND last_stable_offset <= high_watermark
        AND high_watermark <= log_end_offset
    )
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0.05);
CREATE INDEX partitions_with_transactions ON partitions (topic_id, partition) WHERE has_transactions;

-- First offsets of leader epochs, for those in which the partition received records. Before the first of them,
-- the epoch is 0.
CREATE TABLE leader_epochs (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    leader_epoch integer NOT NULL,
    start_offset bigint NOT NULL CHECK (start_offset >= 0),
    PRIMARY KEY (topic_id, partition, leader_epoch),
    FOREIGN KEY (topic_id, partition) REFERENCES partitions ON DELETE CASCADE
);

-- The rows of the partitions of deleted topics, as they were at the deletion, and the first offsets of their
-- leader epochs.
CREATE TABLE deleted_partitions (
    topic_id uuid NOT NULL REFERENCES topics ON DELETE CASCADE,
    partition integer NOT NULL,
    state jsonb NOT NULL,
    leader_epochs jsonb NOT NULL,
    PRIMARY KEY (topic_id, partition)
);

-- Sessions of agents. A session may commit files below its own object prefix until closed_ms, when it ends or
-- is fenced. swept_ms is when the objects that it left without a commit were deleted. After `failures`
-- consecutive attempts at that, the next one is at retry_ms. Some of these objects may belong to acknowledged
-- commits that a failover or a restore has lost: they are kept while unsettled is not null. It is 'reported' once
-- the session's agent has compared its commits with the catalog, and 'unverified' before.
-- suspected_ms is when the session was found silent; a later heartbeat voids it. An agent of an earlier release does
-- not know transactions, so no producer begins any while it runs.
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
    closed_ms bigint,
    swept_ms bigint,
    has_local_logs boolean NOT NULL DEFAULT false,
    failures integer NOT NULL DEFAULT 0,
    retry_ms bigint,
    unsettled text,
    suspected_ms bigint,
    endpoints jsonb NOT NULL DEFAULT '[]',
    knows_transactions boolean NOT NULL DEFAULT false,
    CONSTRAINT closed_has_time CHECK ((state = 'active') = (closed_ms IS NULL)),
    CONSTRAINT broker_has_address CHECK (
        (node_id IS NULL) = (host IS NULL) AND (node_id IS NULL) = (port IS NULL)
    )
) WITH (fillfactor = 50);
-- PostgreSQL counts the state as part of a key, so a change of it waits for the commits that lock the row.
CREATE UNIQUE INDEX sessions_state ON sessions (session_id, state);
CREATE INDEX sessions_active ON sessions (session_id) WHERE state = 'active';
CREATE INDEX sessions_closed ON sessions (closed_ms) WHERE closed_ms IS NOT NULL;
CREATE INDEX sessions_unswept ON sessions (closed_ms) WHERE closed_ms IS NOT NULL AND swept_ms IS NULL;
CREATE INDEX sessions_unsettled ON sessions (session_id) WHERE unsettled IS NOT NULL;

-- When a process last found the catalog reachable, and since when without a gap of more than some seconds.
-- Silence counts only within that time, because no process can send a heartbeat during an outage.
CREATE TABLE reachability (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    since_ms bigint NOT NULL DEFAULT 0,
    seen_ms bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO reachability DEFAULT VALUES;

-- Leaders of local partitions, whose records are on an agent's disk. A partition stays with its node.
-- directory_id is the log directory with its log: UUID 1 before the log exists, null if an earlier release
-- claimed the partition.
CREATE TABLE local_leaders (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    node_id integer NOT NULL,
    leader_epoch integer NOT NULL DEFAULT 0,
    directory_id uuid,
    PRIMARY KEY (topic_id, partition),
    FOREIGN KEY (topic_id, partition) REFERENCES partitions ON DELETE CASCADE
);
CREATE INDEX local_leaders_node ON local_leaders (node_id);
CREATE TRIGGER note_topic_change AFTER INSERT OR UPDATE OR DELETE ON local_leaders
    FOR EACH ROW EXECUTE FUNCTION note_topic_change();

-- Files: objects with sections. A file is live while it has live extents, and dead from dead_ms on; its row
-- is deleted after its object. After `failures` consecutive attempts to delete the object, the next one is at
-- retry_ms. live_bytes is the total of its extents, initial_bytes that at its commit, so
-- that an index finds small files and mostly dead ones. A reader must know the format version and every one of the
-- required features (`name@since`, separated by commas). kernel_digest identifies the kernels that wrote a compacted
-- file; a job trusts unique_keys of the extents only if it has the same kernels. claimed_extents counts the extents that
-- open jobs claim. job_id is the open job that claims the file with all of its live extents; the extents do not name it.
-- While it is set, a process of the previous release that removes extents leaves claimed_extents too large.
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
    initial_bytes bigint NOT NULL DEFAULT 0,
    live_bytes bigint NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    retry_ms bigint,
    format_version smallint NOT NULL DEFAULT 1,
    required_features text NOT NULL DEFAULT '',
    kernel_digest text NOT NULL DEFAULT '',
    job_id uuid,
    CONSTRAINT claims_are_live CHECK (claimed_extents >= 0 AND (claimed_extents <= live_extents OR job_id IS NOT NULL)),
    CONSTRAINT dead_without_extents CHECK ((dead_ms IS NULL) = (live_extents > 0))
);
CREATE INDEX files_dead ON files (dead_ms, file_id) WHERE dead_ms IS NOT NULL;
CREATE INDEX files_small ON files (live_bytes) WHERE kind = 'compacted' AND dead_ms IS NULL;
CREATE INDEX files_dead_bytes ON files ((initial_bytes - live_bytes)) WHERE kind = 'compacted' AND dead_ms IS NULL;
CREATE INDEX files_to_compact ON files (sequence) WHERE kind = 'ingestion' AND live_extents > claimed_extents;

-- Extents: the offsets of one section of a file. max_timestamp_so_far is an upper bound of all timestamps up
-- to this extent in offset order. It never decreases along the log, so a search by timestamp is a binary
-- search over the key. A control batch, which ends a transaction in its partition, is an extent of one
-- offset without bytes: the control columns are set, its time is committed_ms, and file_id is UUID 0.
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
    control_producer_id bigint,
    control_producer_epoch smallint,
    control_commits boolean,
    PRIMARY KEY (topic_id, partition, base_offset),
    CONSTRAINT count_fits CHECK (record_count BETWEEN 0 AND last_offset - base_offset + 1)
) WITH (fillfactor = 90);
CREATE INDEX extents_file ON extents (file_id);

-- Outcomes of recent commits, so that a retry after a lost response gets the same outcome, also after the file was
-- compacted. catalog/commit/results.py describes the bytes of sections.
CREATE TABLE commit_results (
    file_id uuid PRIMARY KEY,
    committed_ms bigint NOT NULL,
    sections bytea NOT NULL
);
ALTER TABLE commit_results ALTER COLUMN sections SET STORAGE EXTERNAL;
CREATE INDEX commit_results_age ON commit_results (committed_ms);

-- Processes that are notified of commits until until_ms, and the buckets of partitions to which they listen: a bit each
-- (catalog/commit/notifications.py). is_exact: only commits to its listened_partitions are notified.
CREATE TABLE commit_listeners (
    listener_id uuid PRIMARY KEY,
    buckets bit(256) NOT NULL,
    until_ms bigint NOT NULL,
    is_exact boolean NOT NULL DEFAULT false
) WITH (fillfactor = 50);

CREATE TABLE listened_partitions (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    listener_id uuid NOT NULL REFERENCES commit_listeners ON DELETE CASCADE,
    PRIMARY KEY (topic_id, partition, listener_id)
);
CREATE INDEX listened_partitions_listener ON listened_partitions (listener_id);

-- Commits that a failover or a restore has lost: files that agents acknowledged (or may have), and that the catalog
-- did not know any more in the given epoch. committed_epoch is the epoch of the lost commit, null if it is not known.
-- number is the order of a session's commits. old_offsets has [topic id, partition, first offset, end offset] of each
-- section, and refused has [topic id, partition, first offset within the section] of each run that the
-- commit refused, both as the agent reported them. outcome is null until the file is committed again ('readopted',
-- with its new_offsets) or cannot be ('unreadable', with the reason as its detail). Objects of acknowledged files that
-- are unreadable are kept until these are given_up.
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
    detail text,
    committed_epoch integer,
    given_up boolean NOT NULL DEFAULT false,
    refused json NOT NULL DEFAULT '[]'
);
CREATE INDEX lost_commits_open ON lost_commits (session_id, number) WHERE outcome IS NULL;

-- Sequence numbers that a partition lacks, because a readoption appended a later batch of their producer: first and last
-- of each gap (catalog/commit/sequence_gaps.py). Only readoptions use them.
CREATE TABLE sequence_gaps (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    producer_id bigint NOT NULL,
    producer_epoch smallint NOT NULL,
    first_sequence integer NOT NULL,
    last_sequence integer NOT NULL,
    found_ms bigint NOT NULL,
    PRIMARY KEY (topic_id, partition, producer_id, producer_epoch, first_sequence)
);
CREATE INDEX sequence_gaps_age ON sequence_gaps (found_ms);

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

-- Transactional ids: the state of a producer and of its current or last transaction. A row is all that a
-- coordinator knows, so any agent may serve any id. last_epoch and last_producer_id are those before the last change
-- of the epoch, so that a retry of the request that changed it gets the same response; last_epoch is -1 if there is
-- no such request. bumps_epoch: the last transaction ended with a new epoch (KIP-890). has_local_partitions: the
-- ongoing transaction has rows in local_transaction_partitions, so its end must decide about these, too; code that does
-- not know them cannot end it.
CREATE TABLE transactional_ids (
    transactional_id text COLLATE "C" PRIMARY KEY,
    producer_id bigint NOT NULL UNIQUE,
    producer_epoch smallint NOT NULL CHECK (producer_epoch >= 0),
    last_producer_id bigint NOT NULL DEFAULT -1,
    last_epoch smallint NOT NULL DEFAULT -1,
    timeout_ms integer NOT NULL,
    state text NOT NULL DEFAULT 'empty' CHECK (state IN ('empty', 'ongoing', 'committed', 'aborted')),
    bumps_epoch boolean NOT NULL DEFAULT false,
    started_ms bigint,
    updated_ms bigint NOT NULL,
    has_local_partitions boolean NOT NULL DEFAULT false,
    CONSTRAINT ongoing_has_start CHECK (state <> 'ongoing' OR started_ms IS NOT NULL),
    CONSTRAINT only_ongoing_has_local_partitions CHECK (NOT has_local_partitions OR state = 'ongoing')
) WITH (fillfactor = 50);
CREATE INDEX transactional_ids_timeout ON transactional_ids ((started_ms + timeout_ms)) WHERE state = 'ongoing';
CREATE INDEX transactional_ids_idle ON transactional_ids (updated_ms) WHERE state <> 'ongoing';

-- Partitions of ongoing transactions. first_offset is null until the first batch is committed.
CREATE TABLE transaction_partitions (
    producer_id bigint NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    first_offset bigint,
    PRIMARY KEY (producer_id, topic_id, partition)
);
CREATE INDEX transaction_partitions_open ON transaction_partitions (topic_id, partition, first_offset)
    WHERE first_offset IS NOT NULL;

-- Partitions of local topics in transactions. While commits is null, the transaction is ongoing. Afterwards the row is
-- a pending marker: the leader appends it to its log, makes it durable, and deletes the row. producer_epoch and
-- first_sequence are those of the transaction's first batch in the partition, by which the leader recognizes the
-- transaction in its log; null until the leader has verified that batch. number distinguishes the rows of one producer
-- and partition. node_id is the leader of a pending marker; null if code that does not know the column has ended the
-- transaction.
CREATE TABLE local_transaction_partitions (
    producer_id bigint NOT NULL,
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    number bigint NOT NULL GENERATED ALWAYS AS IDENTITY,
    producer_epoch smallint,
    first_sequence integer,
    commits boolean,
    marker_epoch smallint,
    coordinator_epoch integer,
    ended_ms bigint,
    node_id integer,
    PRIMARY KEY (producer_id, topic_id, partition),
    FOREIGN KEY (topic_id, partition) REFERENCES partitions ON DELETE CASCADE
);
CREATE INDEX local_transaction_partitions_partition ON local_transaction_partitions (topic_id, partition);
CREATE INDEX local_transaction_partitions_of_node ON local_transaction_partitions (node_id, number)
    WHERE commits IS NOT NULL;

-- Aborted transactions by partition: the first offset of their batches, the offset of the control batch, and the last
-- stable offset after it. All transactions that ended later began at or after that.
CREATE TABLE aborted_transactions (
    topic_id uuid NOT NULL,
    partition integer NOT NULL,
    last_offset bigint NOT NULL,
    first_offset bigint NOT NULL,
    last_stable_offset bigint NOT NULL,
    producer_id bigint NOT NULL,
    PRIMARY KEY (topic_id, partition, last_offset)
);

-- Compaction jobs. moved_bytes and nanodollars are the planner's estimates, which count against its budget.
-- swept_ms is when the objects of superseded attempts were deleted; failures, retry_ms and suspected_ms are
-- as in sessions. deaths counts attempts that ended with the
-- death of a process, faults those that failed for reasons outside the input. A submitted job is not claimed
-- before not_before_ms. spec_version is that of the specification, null in jobs of earlier releases.
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
    failures integer NOT NULL DEFAULT 0,
    retry_ms bigint,
    suspected_ms bigint,
    deaths integer NOT NULL DEFAULT 0,
    faults integer NOT NULL DEFAULT 0,
    not_before_ms bigint NOT NULL DEFAULT 0,
    spec_version integer,
    CONSTRAINT running_has_attempt CHECK (
        state <> 'running' OR (attempt_id IS NOT NULL AND heartbeat_ms IS NOT NULL)
    )
) WITH (fillfactor = 50);
CREATE INDEX jobs_submitted ON jobs (sequence) WHERE state = 'submitted';
CREATE INDEX jobs_running ON jobs (sequence) WHERE state = 'running';
CREATE INDEX jobs_sequence ON jobs (sequence);
CREATE INDEX jobs_created ON jobs (created_ms);
CREATE INDEX jobs_finished ON jobs (finished_ms) WHERE finished_ms IS NOT NULL;
CREATE INDEX jobs_unswept ON jobs (finished_ms) WHERE finished_ms IS NOT NULL AND swept_ms IS NULL;

-- Input files of open jobs, which garbage collection does not delete.
CREATE TABLE job_files (
    file_id uuid NOT NULL,
    job_id uuid NOT NULL REFERENCES jobs,
    PRIMARY KEY (file_id, job_id)
);
CREATE INDEX job_files_job ON job_files (job_id);

-- At most one row: jobs with disjoint inputs that failed alike since a job was completed. Once there are several,
-- compaction is paused until not_before_ms. One job, the probe, may run then. others has the jobs that failed otherwise,
-- by the class of the error.
CREATE TABLE compaction_breaker (
    is_only boolean PRIMARY KEY DEFAULT true CHECK (is_only),
    error text NOT NULL,
    message text NOT NULL,
    job_ids uuid[] NOT NULL,
    failed_ms bigint NOT NULL,
    pauses integer NOT NULL DEFAULT 0,
    paused_ms bigint,
    not_before_ms bigint,
    probe_attempt_id uuid,
    others json NOT NULL DEFAULT '{}'
);

-- Live files under suspicion. A job that takes one of them has at most max_files files: half of those of the
-- failed job, or one if the failure named the file. A file that fails alone after another failure is
-- quarantined, and no job takes it.
CREATE TABLE quarantine_candidates (
    file_id uuid PRIMARY KEY REFERENCES files ON DELETE CASCADE,
    max_files integer NOT NULL CHECK (max_files > 0),
    failures integer NOT NULL CHECK (failures > 0),
    job_id uuid NOT NULL,
    reason text NOT NULL,
    failed_ms bigint NOT NULL,
    not_before_ms bigint NOT NULL,
    quarantined_ms bigint
);

-- The last look of a planner, so that all planners of one catalog look as often together as one would. A look that
-- planned nothing need not be repeated before next_ms, unless there is a row in planning_changes or a watcher has
-- other settings. The look look_id runs until lease_end_ms.
CREATE TABLE planning_look (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    look_id uuid,
    settings text NOT NULL DEFAULT '',
    looked_ms bigint NOT NULL DEFAULT 0,
    lease_end_ms bigint NOT NULL DEFAULT 0,
    next_ms bigint NOT NULL DEFAULT 0
) WITH (fillfactor = 50);
INSERT INTO planning_look DEFAULT VALUES;

-- Not empty if something has changed since the last look that a plan depends on. New ingestion files do not count:
-- a look asks for them.
CREATE TABLE planning_changes (
    change_id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY
);

-- Record in its own transaction that something changes. A row of an earlier change does as well, if it stays until
-- this transaction ends: a look deletes only rows that no transaction has locked. So there are never many.
CREATE FUNCTION note_planning_change() RETURNS trigger LANGUAGE plpgsql SET search_path FROM CURRENT AS $$
BEGIN
    PERFORM FROM planning_changes LIMIT 1 FOR KEY SHARE SKIP LOCKED;
    IF NOT FOUND THEN
        INSERT INTO planning_changes DEFAULT VALUES;
    END IF;
    RETURN NULL;
END
$$;

-- Commits of ingestion files fire none of these.
CREATE TRIGGER note_planning_change AFTER UPDATE OF job_id OR DELETE ON extents
    FOR EACH STATEMENT EXECUTE FUNCTION note_planning_change();
CREATE TRIGGER note_planning_change AFTER UPDATE OF job_id ON files
    FOR EACH STATEMENT EXECUTE FUNCTION note_planning_change();
CREATE TRIGGER note_planning_change
    AFTER UPDATE OF log_start_offset, first_dirty_offset, compacted_extents, exactness ON partitions
    FOR EACH STATEMENT EXECUTE FUNCTION note_planning_change();
CREATE TRIGGER note_planning_change AFTER UPDATE OR DELETE ON topics
    FOR EACH ROW EXECUTE FUNCTION note_planning_change();
CREATE TRIGGER note_planning_change AFTER INSERT OR UPDATE OR DELETE ON quarantine_candidates
    FOR EACH ROW EXECUTE FUNCTION note_planning_change();

-- The last confirmation that objects may be deleted. Writing it proves that the server is the primary.
CREATE TABLE deletions (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    confirmed_ms bigint NOT NULL
);

-- Periodic tasks that one of all processes runs at a time, and their last start. The process `holder_id` runs
-- the task until lease_end_ms. succeeded_ms is the last success of any process.
CREATE TABLE periodic_tasks (
    name text PRIMARY KEY,
    started_ms bigint NOT NULL,
    holder_id uuid,
    lease_end_ms bigint NOT NULL DEFAULT 0,
    succeeded_ms bigint
);

-- Node ids of agents that serve the Kafka protocol.
CREATE SEQUENCE broker_ids AS integer MINVALUE 1 CYCLE;

-- Ids of idempotent producers; never assigned twice.
CREATE SEQUENCE producer_ids AS bigint MINVALUE 0;

-- The order of offset commits. It decides between an offset of a transaction and one that was committed after the
-- transaction had stored its own. 0: stored by code that does not know the order.
CREATE SEQUENCE offset_commits AS bigint;

-- Deleted topics by name, with the first producer id that was not assigned at the deletion. A producer with a
-- smaller id may continue its sequence numbers in a new topic of that name.
CREATE TABLE deleted_topics (
    name text COLLATE "C" PRIMARY KEY,
    first_new_producer_id bigint NOT NULL,
    deleted_ms bigint NOT NULL
);
CREATE INDEX deleted_topics_age ON deleted_topics (deleted_ms);

-- The cluster id for Kafka clients.
CREATE TABLE cluster (
    only_row boolean PRIMARY KEY DEFAULT true CHECK (only_row),
    cluster_id uuid NOT NULL DEFAULT gen_random_uuid()
);
INSERT INTO cluster DEFAULT VALUES;

-- Consumer groups. A coordinator claims a group's row and writes its state and offsets under that claim.
-- state is the coordinator's own encoding of the members; queries use the other columns. generation is also
-- the group epoch of the consumer protocol.
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
    commit_number bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (group_id, topic_id, partition)
) WITH (fillfactor = 50);
CREATE INDEX committed_offsets_topic ON committed_offsets (topic_id);

-- Groups of ongoing transactions.
CREATE TABLE transaction_groups (
    producer_id bigint NOT NULL,
    group_id text COLLATE "C" NOT NULL,
    PRIMARY KEY (producer_id, group_id)
);

-- Offsets that ongoing transactions commit when they end.
CREATE TABLE pending_offsets (
    group_id text COLLATE "C" NOT NULL REFERENCES consumer_groups ON DELETE CASCADE,
    topic_id uuid NOT NULL REFERENCES topics ON DELETE CASCADE,
    partition integer NOT NULL,
    producer_id bigint NOT NULL,
    committed_offset bigint NOT NULL,
    leader_epoch integer NOT NULL DEFAULT -1,
    metadata bytea NOT NULL DEFAULT '',
    commit_number bigint NOT NULL DEFAULT 0,
    PRIMARY KEY (group_id, topic_id, partition, producer_id)
);
CREATE INDEX pending_offsets_producer ON pending_offsets (producer_id);
CREATE INDEX pending_offsets_topic ON pending_offsets (topic_id);

-- Explicit settings of consumer groups, by Kafka's names. The group need not exist.
CREATE TABLE group_configs (
    group_id text COLLATE "C" PRIMARY KEY,
    config jsonb NOT NULL
);

-- Explicit settings of brokers, by Kafka's names. An empty name stands for the default of all brokers.
CREATE TABLE broker_configs (
    broker_name text COLLATE "C" PRIMARY KEY,
    config jsonb NOT NULL
);

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
