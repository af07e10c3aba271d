"""Input of the policy as plain values: partitions, their live extents and their files."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from catalog.model import Exactness, PartitionId
from object_format.segment_file import format_fault

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from catalog.jobs.quarantine import QuarantineCandidate
    from catalog.model import AbortedTransaction, Extent, FileKind, PartitionState

# A record may exceed a topic's time by this fraction of it because it shares an extent with younger records.
_SPAN_OF_WAITING: Final = 4


def is_readable(extent: Extent) -> bool:
    """Return True if this version can read the extent's file; a newer planner takes the others."""
    return format_fault(extent.format.version, extent.format.required_features) is None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """The part of a topic's configuration that matters to compaction, under Kafka's names."""

    topic_id: UUID
    name: str
    cleanup_policy: str
    compression_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    retention_ms: int
    max_message_bytes: int | None = None

    @property
    def compacted(self) -> bool:
        """Return True if only the newest record of each key counts."""
        return "compact" in self.cleanup_policy  # no other policy contains this word

    @property
    def expires_after_ms(self) -> int | None:
        """Maximum age of records; None if nothing expires by age."""
        return self.retention_ms if "delete" in self.cleanup_policy and self.retention_ms >= 0 else None

    @property
    def cleanable_after_ms(self) -> int | None:
        """Age from which records are cleaned; None if it does not matter, or if none are cleaned."""
        return self.min_compaction_lag_ms if self.compacted and self.min_compaction_lag_ms > 0 else None

    def spans_too_long(self, oldest_ms: int, newest_ms: int, now_ms: int) -> bool:
        """Return True if an extent with records of these times would keep the oldest of them too long.

        An extent expires as a whole with its youngest record, and is not cleaned before min.compaction.lag.ms
        has passed for that one. A record may therefore wait a quarter longer than it would alone. Once the
        lag has passed for all records, none waits.
        """
        expires, lag = self.expires_after_ms, self.cleanable_after_ms
        span = newest_ms - oldest_ms
        if expires is not None and span > expires // _SPAN_OF_WAITING:
            return True
        return lag is not None and newest_ms > now_ms - lag and span > lag // _SPAN_OF_WAITING


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """One partition: its rules, its bounds, and its live extents in offset order.

    `claimed_by` of an extent names the open job that has it. Extents may end before the log's end if the
    snapshot is bounded, and need not begin at its start if the topic is not compacted; missing extents are
    planned another time. `quarantine_candidates` are files of failed jobs, of this and other partitions.
    `exactness` is that of the clean part, and exact if no exact job can run.

    `aborted` are the aborted transactions that overlap the extents. `records_from` has the first offset that
    may have a record of one, by the offset of its control batch; without such a record it is left out.
    """

    rules: TopicRules
    state: PartitionState
    extents: tuple[Extent, ...]
    quarantine_candidates: Mapping[UUID, QuarantineCandidate] = field(default_factory=dict)
    exactness: Exactness = Exactness.EXACT
    aborted: tuple[AbortedTransaction, ...] = ()
    records_from: Mapping[int, int] = field(default_factory=dict)

    def is_free(self, extent: Extent) -> bool:
        """Return True if a job may take the extent.

        No job has it, its file is no quarantine candidate, and this version can read the file.
        """
        if extent.claimed_by is not None:
            return False
        candidates = self.quarantine_candidates
        return not (candidates and extent.file_id in candidates) and is_readable(extent)

    @property
    def partition_id(self) -> PartitionId:
        """Identifier of the partition."""
        return PartitionId(self.state.topic_id, self.state.partition)

    @property
    def label(self) -> str:
        """Topic and partition, for messages."""
        return f"{self.rules.name}-{self.state.partition}"

    @property
    def claimed_count(self) -> int:
        """Number of extents that open jobs have claimed."""
        return sum(1 for extent in self.extents if extent.claimed_by is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileView:
    """A segment file with live extents, and their number; 0 if it was not counted.

    A job that takes `whole_extents` of the file takes all of its live extents, and claims the file. It is 0
    if the snapshot may lack some of them.
    """

    file_id: UUID
    object_name: str
    size: int
    kind: FileKind
    committed_ms: int
    extents: int
    whole_extents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Mergeable:
    """A compacted file that is small or mostly dead, with all its live extents.

    No job has claimed any of them. `live_bytes` is the sum of these extents, `dead_bytes` the sum of the
    file's extents that are gone.
    """

    file: FileView
    extents: tuple[Extent, ...]
    live_bytes: int
    dead_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Bytes moved and cost of the last hour's jobs, actual for finished ones and expected for the others."""

    moved_bytes: int = 0
    nanodollars: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Input of a plan at `now_ms`; `files` in commit order, `partitions` in section order.

    `mergeable_views` are the partitions of `mergeable`, without extents; they need not be in `partitions`.
    `fragmented` are partitions with many short extents, in section order, with the newest extents of each.
    `ingestion_end` is the cursor behind the last ingestion file, None if there was none. `is_complete` if no
    bound left anything out, apart from ingestion files.
    """

    now_ms: int
    partitions: tuple[PartitionView, ...]
    files: Mapping[UUID, FileView] = field(default_factory=dict)
    quarantine_candidates: Mapping[UUID, QuarantineCandidate] = field(default_factory=dict)
    mergeable: tuple[Mergeable, ...] = ()
    fragmented: tuple[PartitionView, ...] = ()
    mergeable_views: Mapping[PartitionId, PartitionView] = field(default_factory=dict)
    spent: Spent = field(default_factory=Spent)
    ingestion_end: int | None = None
    is_complete: bool = True
