"""What the catalog knows, as plain values: topics, partitions, extents, commits, jobs.

Everything here is frozen and speaks in Kafka's units: offsets count records, timestamps are milliseconds
since the Unix epoch, positions and lengths are bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from typing_extensions import override

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.config.topic_config import TopicConfig


class FileKind(StrEnum):
    """Who wrote a segment file: an agent, or a compaction task."""

    INGESTION = "ingestion"
    COMPACTED = "compacted"


class JobState(StrEnum):
    """submitted → running → completed | failed; a running job may go back to submitted."""

    SUBMITTED = "submitted"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"


class Exactness(StrEnum):
    """Whether what jobs have deduplicated of a partition, up to its first dirty offset, has each key once.

    A task that runs out of memory keeps what it cannot judge. An exact job is *owed* then; *out of reach* is
    where one was done that was to be exact, and is not, and dropped next to nothing, as another would.
    """

    EXACT = "exact"
    DEDUP_INCOMPLETE = "owed"
    DEDUP_IMPOSSIBLE = "out_of_reach"


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    """A topic; `topic_id` stays, while a name may be given again after a deletion."""

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
    """One partition of one topic; the order is that of sections in every segment file."""

    topic_id: UUID
    partition: int

    # A UUID's own hash and comparison are calls of Python; plans look up partitions a million times.

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
    """Where a partition begins and ends.

    log_start_offset ≤ last_stable_offset ≤ high_watermark ≤ log_end_offset; none ever goes back. For a
    topic whose home is the object store the last three are one until transactions part them.
    `first_dirty_offset` is where the part begins that no job has deduplicated together with everything
    before it; `Exactness` says whether keys are there once.
    """

    topic_id: UUID
    partition: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    log_end_offset: int
    first_dirty_offset: int
    leader_epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """Which bytes of which object hold a run of offsets of one partition.

    The bytes [position, position + length) of the object are whole DATA blocks. A batch inside them belongs
    to the extent when its stored base offset plus `offset_shift` lies in [base_offset, last_offset]: a batch
    that the commit refused stays in the bytes and belongs to nobody. `offset_shift` is 0 in a compacted file.
    An extent may be empty of records (length 0): a stretch of the log whose records are all gone.
    [index_position, index_position + index_length) holds the section's sparse index block; length 0 when
    there is none. `committed_ms` is when an agent committed the oldest of the data. `claimed_by` is the open
    job that has taken the extent; only the planner's queries fill it in.
    """

    topic_id: UUID
    partition: int
    base_offset: int
    last_offset: int
    record_count: int
    min_timestamp: int
    max_timestamp: int
    file_id: UUID
    object_name: str
    file_kind: FileKind
    position: int
    length: int
    index_position: int
    index_length: int
    offset_shift: int
    leader_epoch: int
    unique_keys: bool
    committed_ms: int
    claimed_by: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Broker:
    """An agent as Kafka clients see it: a node, and the address at which they reach it.

    `has_local_logs` tells whether it may lead partitions of topics whose home is an agent's disk.
    """

    node_id: int
    host: str
    port: int
    rack: str | None = None
    has_local_logs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownProducer:
    """What a partition remembers of an idempotent producer."""

    producer_id: int
    producer_epoch: int
    last_sequence: int
    updated_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerStamp:
    """The idempotent producer's numbers in a batch header (KIP-98)."""

    producer_id: int
    producer_epoch: int
    base_sequence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRun:
    """Consecutive batches of one section that are accepted or refused together.

    A batch with a producer stamp is a run of its own; batches without one are joined. Offsets are relative
    to the section: the first batch of a section starts at 0. `offset_count` is how many offsets the run
    takes, `record_count` how many records it holds (they are equal unless the producer left gaps).
    """

    first_offset: int
    offset_count: int
    record_count: int
    min_timestamp: int
    max_timestamp: int
    producer: ProducerStamp | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionCommit:
    """One section of an ingestion file, as the agent asks to commit it; fields as in `Extent`."""

    topic_id: UUID
    partition: int
    position: int
    length: int
    runs: tuple[BatchRun, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileCommit:
    """An uploaded ingestion file whose sections are to become part of the log."""

    file_id: UUID
    object_name: str
    size: int
    directory_length: int
    session_id: UUID
    sections: tuple[SectionCommit, ...]


class RunRefusal(StrEnum):
    """Why a run was not appended; the agent answers with Kafka's error of the same meaning.

    UNKNOWN_PRODUCER_ID is there for the protocol's sake: like Kafka today, a commit takes any first sequence
    number from a producer that it does not know, and never refuses for this reason.
    """

    UNKNOWN_TOPIC_OR_PARTITION = "unknown_topic_or_partition"
    OUT_OF_ORDER_SEQUENCE = "out_of_order_sequence"
    INVALID_PRODUCER_EPOCH = "invalid_producer_epoch"
    UNKNOWN_PRODUCER_ID = "unknown_producer_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """What became of one run: its first offset, or why it was refused.

    A duplicate of one of the producer's last five batches gets the offset it had the first time.
    """

    base_offset: int = -1
    duplicate: bool = False
    refusal: RunRefusal | None = None
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionResult:
    """The results of a section's runs, in their order, and the partition's bounds after the commit.

    `extents` are those that the section got, if they were asked for.
    """

    topic_id: UUID
    partition: int
    log_start_offset: int
    high_watermark: int
    leader_epoch: int
    runs: tuple[RunResult, ...]
    extents: tuple[Extent, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPartition:
    """What a job does to one partition; all frozen when the job is planned.

    The job's extents of the partition cover [base_offset, upper_offset) without a gap. Keys are
    deduplicated when `deduplicate`; `reaches_log_start` tells that nothing older exists, so that a
    tombstone whose delete horizon is at or before the job's `now_ms` may go. `delete_retention_ms` is what
    sets that horizon when a tombstone first becomes clean. A batch that the job makes of several has no more
    than `max_message_bytes`, if that is known. The partition's records expire `expires_after_ms` after their
    timestamps, and extents as a whole; None where they do not.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobInput:
    """One input file of a job, with the extents of it that the job takes, in file order."""

    file_id: UUID
    object_name: str
    size: int
    extents: tuple[Extent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A unit of compaction work with everything frozen that its outcome depends on.

    `now_ms` is the time against which delete horizons are judged and set; `hash_seed` (16 bytes) keys the
    fingerprints and stays out of logs; `reason` is for people. An output file that has `output_bytes` of data
    is ended with its section, and the next partition begins another one; None ends none. Where keys are
    deduplicated, `merge_batches` makes larger batches of small ones that are left next to each other. An
    `exact` job is for keys that one before has left twice for want of memory.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputExtent:
    """One section of an output file; the catalog adds what it knows of the file."""

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
    """One object that an attempt wrote, complete and durable."""

    file_id: UUID
    object_name: str
    size: int
    directory_length: int
    extents: tuple[OutputExtent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What an attempt reports: its files, and its counts by the names that metrics use."""

    job_id: UUID
    attempt_id: UUID
    files: tuple[OutputFile, ...]
    counts: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as the catalog has it; `finished_ms` is when it was over, None while it is not."""

    spec: JobSpec
    state: JobState
    attempt_id: UUID | None
    application_id: str | None
    heartbeat_ms: int | None
    attempts: int
    failure: str | None
    counts: dict[str, int]
    finished_ms: int | None = None
