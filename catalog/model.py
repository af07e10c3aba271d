"""Values of the catalog: topics, partitions, extents, commits and jobs.

All values are frozen and use Kafka's units: offsets count records, timestamps are milliseconds since the Unix
epoch, positions and lengths are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from typing_extensions import override

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.config.values import TopicConfig


ONLY_LISTENER: Final = "PLAINTEXT"
"""Name of the only listener of an agent of a previous release."""

EPOCHS_IN_BATCHES: Final = -1
"""Leader epoch of an extent whose batches have their epochs in their headers."""


class FileKind(StrEnum):
    """Kind of a segment file: written by an agent, or by a compaction task.

    CONTROL stands for no file: the extent of a control batch.
    """

    INGESTION = "ingestion"
    COMPACTED = "compacted"
    CONTROL = "control"


class JobState(StrEnum):
    """State of a job: submitted → running → completed | failed; a running job may be submitted again."""

    SUBMITTED = "submitted"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class Exactness(StrEnum):
    """Exactness of a partition's clean part, which ends at its first dirty offset.

    - EXACT: each key is unique.
    - DEDUP_INCOMPLETE: keys may be duplicated, because a task that runs out of memory keeps every record
      that it cannot judge. The planner plans an exact job.
    - DEDUP_IMPOSSIBLE: an exact job has left duplicates and dropped almost no records, so the planner plans
      no further one.
    """

    EXACT = "exact"
    DEDUP_INCOMPLETE = "dedup_incomplete"
    DEDUP_IMPOSSIBLE = "dedup_impossible"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """Topic; `topic_id` is never reused, but a name may be, after a deletion."""

    topic_id: UUID
    name: str
    partition_count: int
    config: TopicConfig
    created_ms: int

    @property
    def is_local(self) -> bool:
        """Return True if the topic's records are stored on agents' disks, not in the object store."""
        return self.config.storage_mode == "local"


@dataclass(frozen=True, slots=True, order=True)
class PartitionId:
    """Partition of a topic; the order is that of the sections in a segment file."""

    topic_id: UUID
    partition: int

    # A UUID's own hash and comparison are Python functions, and a plan looks up a million partitions.

    @override
    def __hash__(self) -> int:
        return hash((self.topic_id.int, self.partition))

    @override
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionId):
            return NotImplemented
        return self.partition == other.partition and self.topic_id.int == other.topic_id.int


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionState:
    """Bounds of a partition.

    log_start_offset ≤ last_stable_offset ≤ high_watermark ≤ log_end_offset; none of them decreases. For a
    topic in the object store, the last two are equal, and the last stable offset is the least first offset of
    its open transactions. Everything before `first_dirty_offset` was deduplicated together; `Exactness` says
    whether keys are unique there. `has_transactions` is False if all readers see the same batches below the
    high watermark: none is of an open or aborted transaction.
    """

    topic_id: UUID
    partition: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    first_dirty_offset: int
    leader_epoch: int
    has_transactions: bool = False


@dataclass(frozen=True, slots=True)
class ControlBatch:
    """Control batch: the end of a producer's transaction in one partition."""

    producer_id: int
    producer_epoch: int
    commits: bool


@dataclass(frozen=True, slots=True)
class FileFormat:
    """Properties of a file that its readers need before they read any byte, and the kernels that wrote it.

    `required_features` are `name@since`, separated by commas. `kernel_digest` is empty in an ingestion file.
    """

    version: int = 1
    required_features: str = ""
    kernel_digest: str = ""


class Extent(NamedTuple):
    """Contiguous offsets of one partition, and the bytes of an object that hold their records.

    The bytes [position, position + length) of the object are whole DATA blocks. A batch in them belongs to
    the extent if its stored base offset plus `offset_shift` lies in [base_offset, last_offset]. A batch that
    the commit rejected stays in the object and belongs to no extent. `offset_shift` is 0 in a compacted file.
    An extent without records has length 0.

    The batches of an ingestion file get `leader_epoch` when they are read. A compacted file may hold records
    of several epochs, so its batches have them in their headers: `leader_epoch` is `EPOCHS_IN_BATCHES`.

    The bytes [index_position, index_position + index_length) are the section's sparse index block;
    `index_length` is 0 without one. `committed_ms` is the time at which an agent committed the oldest of the
    data. `claimed_by` is the open job that claims the extent; only the planner's queries set it. A process
    believes `unique_keys` only if it has the kernels of `format.kernel_digest`.

    A control batch is an extent of one offset without bytes and file; `control` describes it, and its time is
    `committed_ms`. `controls_after` is the number of control batches directly after the extent that a job
    with the extent removes; only the planner sets it.

    It is a tuple, because a planner creates tens of thousands of them, and a frozen dataclass with as many
    fields takes ten times as long. Name the fields anyway, except where many extents are converted. The order
    up to `committed_ms` is stored (`catalog.jobs.json_format`), so it never changes.
    """

    topic_id: UUID
    partition: int
    base_offset: int
    last_offset: int
    record_count: int
    min_timestamp: int
    max_timestamp: int
    position: int
    length: int
    index_position: int
    index_length: int
    offset_shift: int
    leader_epoch: int
    unique_keys: bool
    committed_ms: int
    file_id: UUID
    object_name: str
    file_kind: FileKind
    format: FileFormat = FileFormat()
    claimed_by: UUID | None = None
    control: ControlBatch | None = None
    controls_after: int = 0

    @property
    def job_end_offset(self) -> int:
        """The offset after the extent and after the control batches that a job removes with it."""
        return self.last_offset + 1 + self.controls_after


class OffsetRange(NamedTuple):
    """Offsets of one partition that a commit appended; `end_offset` is the offset after the last."""

    topic_id: str
    partition: int
    base_offset: int
    end_offset: int


class RefusedRun(NamedTuple):
    """Run that the commit of its file refused; `first_offset` is that within the section."""

    topic_id: str
    partition: int
    first_offset: int


class Endpoint(NamedTuple):
    """Address of a broker for the clients of one listener."""

    listener: str
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """Agent as Kafka clients see it: a node with an address for each listener.

    `host` and `port` are those of `endpoints` that commands use. An agent of a previous release has no
    `endpoints`. `has_local_logs` is True if it may lead partitions of local topics.
    """

    node_id: int
    host: str
    port: int
    endpoints: tuple[Endpoint, ...] = ()
    rack: str | None = None
    has_local_logs: bool = False

    def seen_on(self, listener: str) -> Broker | None:
        """Return the broker with its address for clients of a listener; None if it has no such listener."""
        if not self.endpoints:
            return self if listener == ONLY_LISTENER else None
        found = (each for each in self.endpoints if each.listener == listener)
        return next((replace(self, host=each.host, port=each.port) for each in found), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProducer:
    """State of an idempotent producer in one partition."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    updated_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStamp:
    """Fields of an idempotent producer in a batch header (KIP-98).

    A transactional batch must belong to a partition that was added to the producer's ongoing transaction.
    With `adds_partition`, the batch itself adds it, and begins the transaction if there is none (KIP-890).
    `transactional_id` is that of the request, and the client has a right to it. It is None for batches that
    are read from a lost file: these belong to no transaction that is known.
    """

    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool = False
    adds_partition: bool = False
    transactional_id: str | None = None

    @property
    def identity(self) -> tuple[int, int]:
        """Id and epoch of the producer."""
        return self.producer_id, self.producer_epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRun:
    """Consecutive batches of one section that are accepted or rejected together.

    A batch with a producer stamp is a separate run; adjacent batches without one are joined. Offsets are
    relative to the section, whose first batch starts at 0. The run takes `offset_count` offsets and holds
    `record_count` records; these are equal unless the producer left gaps.
    """

    first_offset: int
    offset_count: int
    record_count: int
    min_timestamp: int
    max_timestamp: int
    producer: ProducerStamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionCommit:
    """Section of an ingestion file to commit; fields as in `Extent`."""

    topic_id: UUID
    partition: int
    position: int
    length: int
    runs: tuple[BatchRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCommit:
    """Uploaded ingestion file to commit.

    `failed_producers`, by id and epoch, have batches of earlier files to send again. In a partition without
    state of such a producer, the next batch must be its first, even if its state may have expired.
    """

    file_id: UUID
    object_name: str
    size: int
    directory_length: int
    session_id: UUID
    sections: tuple[SectionCommit, ...]
    format: FileFormat = FileFormat()
    failed_producers: frozenset[tuple[int, int]] = frozenset()


class RunRefusal(StrEnum):
    """Reason why a run was not appended; the agent responds with Kafka's error of the same name.

    AWAITS_READOPTION is a gap in a producer's sequence that the readoption of lost commits may still fill:
    the producer retries. FOLLOWS_FAILED is a gap behind a batch that the agent could not append, and that the
    producer sends again. UNKNOWN_PRODUCER_ID exists only for the protocol: as in current Kafka, no commit is
    rejected with it.
    """

    UNKNOWN_TOPIC_OR_PARTITION = "unknown_topic_or_partition"
    OUT_OF_ORDER_SEQUENCE = "out_of_order_sequence"
    INVALID_PRODUCER_EPOCH = "invalid_producer_epoch"
    UNKNOWN_PRODUCER_ID = "unknown_producer_id"
    AWAITS_READOPTION = "awaits_readoption"
    FOLLOWS_FAILED = "follows_failed"
    INVALID_PRODUCER_ID_MAPPING = "invalid_producer_id_mapping"
    INVALID_TXN_STATE = "invalid_txn_state"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """Result of one run: its first offset, or the reason of its refusal.

    A duplicate of one of the producer's last five batches has the offset of the first append. `is_behind` is
    True for a sequence out of order that the log has passed, so that no gap is before it. A retry of a commit
    does not know it, and says False.
    """

    base_offset: int = -1
    duplicate: bool = False
    refusal: RunRefusal | None = None
    detail: str = ""
    is_behind: bool = field(default=False, compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionResult:
    """Results of a section's runs, in their order, and the partition's bounds after the commit.

    `extents` are the section's new extents, if the caller requested them. `has_transactions` is that of the
    partition; a retry of a commit does not know it, and says True. `committed_ms` is the time of the commit
    by the catalog's clock.
    """

    topic_id: UUID
    partition: int
    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    runs: tuple[RunResult, ...]
    extents: tuple[Extent, ...] = ()
    has_transactions: bool = field(default=True, compare=False)
    committed_ms: int = field(default=0, compare=False)


class AbortedTransaction(NamedTuple):
    """The batches of an aborted transaction in a partition: those of its producer in [first, last) offset.

    Its control batch is at `last_offset`.
    """

    producer_id: int
    first_offset: int
    last_offset: int


class OpenTransaction(NamedTuple):
    """Transaction that is open in the log of a local partition.

    Its first batch has `producer_epoch`, `first_sequence` and `first_offset`.
    """

    partition: PartitionId
    producer_id: int
    producer_epoch: int
    first_sequence: int
    first_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPartition:
    """Work of a job on one partition, frozen when the job is planned.

    The job's extents of the partition cover [base_offset, upper_offset), except for the control batches of
    ended transactions: `controls` are their first and last offsets, in runs. The job drops the records of the
    `aborted` transactions, which are all that overlap the range, and its publication removes the control
    batches. With `deduplicate`,
    keys are deduplicated. With `reaches_log_start`, there are no older records, so a tombstone is dropped if
    its delete horizon is at or before the job's `now_ms`. `delete_retention_ms` sets that horizon when a
    tombstone first becomes clean. A merged batch has at most `max_message_bytes`, if that is known. Records
    expire `expires_after_ms` after their timestamps, whole extents at a time; None if they do not expire.
    """

    topic_id: UUID
    partition: int
    topic_name: str
    cleanup_policy: str
    compression_type: str
    deduplicate: bool
    reaches_log_start: bool
    base_offset: int
    upper_offset: int
    delete_retention_ms: int
    max_message_bytes: int | None = None
    expires_after_ms: int | None = None
    aborted: tuple[AbortedTransaction, ...] = ()
    controls: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """Input file of a job, with those of its extents that the job reads, in file order.

    With `is_whole`, these are all live extents of the file, and the job claims the file instead of them.
    """

    file_id: UUID
    object_name: str
    size: int
    extents: tuple[Extent, ...]
    is_whole: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """Unit of compaction work, with all parameters that its outcome depends on.

    `now_ms` is the time for delete horizons. `hash_seed` (16 bytes) seeds the fingerprints and is never
    logged. `reason` is for operators. An output file with at least `output_bytes` of data ends after the
    current section, and the next partition starts a new file; None means one file. `merge_batches` merges
    adjacent small batches of deduplicated partitions. An `exact` job removes duplicate keys that an earlier
    job has left for lack of memory. `kernel_digest` identifies the kernels that every task of a run must have
    (`object_format.kernels.runtime.identity`); the driver sets it, and it is empty before.
    """

    job_id: UUID
    created_ms: int
    now_ms: int
    hash_seed: bytes = field(repr=False)
    table_bytes: int
    reason: str
    inputs: tuple[JobInput, ...]
    partitions: tuple[JobPartition, ...]
    output_bytes: int | None = None
    merge_batches: bool = True
    exact: bool = False
    kernel_digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputExtent:
    """Section of an output file; the catalog adds the data of the file."""

    topic_id: UUID
    partition: int
    base_offset: int
    last_offset: int
    record_count: int
    min_timestamp: int
    max_timestamp: int
    position: int
    length: int
    index_position: int
    index_length: int
    unique_keys: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputFile:
    """Object that an attempt wrote; complete and durable."""

    file_id: UUID
    object_name: str
    size: int
    directory_length: int
    extents: tuple[OutputExtent, ...]
    format: FileFormat = FileFormat()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """Result of an attempt: its files, and its counts by the names of the metrics."""

    job_id: UUID
    attempt_id: UUID
    files: tuple[OutputFile, ...]
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """Job as stored in the catalog; `finished_ms` is None while it is open.

    A submitted job is not claimed before `not_before_ms`; `failure` is then the reason of its last fault.
    """

    spec: JobSpec
    state: JobState
    attempt_id: UUID | None
    application_id: str | None
    heartbeat_ms: int | None
    attempts: int
    failure: str | None
    counts: dict[str, int]
    finished_ms: int | None = None
    not_before_ms: int = 0
