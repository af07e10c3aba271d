"""What the policy looks at: partitions, their live extents and the files these lie in, as plain values."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from catalog.model import Exactness, PartitionId

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

    from catalog.jobs.quarantine import QuarantineCandidate
    from catalog.model import Extent, FileKind, PartitionState

# What a promise of a topic's may be late for records that share an extent with younger ones.
_SPAN_OF_WAITING: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRules:
    """The part of a topic's configuration that decides about compaction, by Kafka's names."""

    topic_id: UUID
    name: str
    cleanup_policy: str
    compression_type: str
    min_cleanable_dirty_ratio: float
    min_compaction_lag_ms: int
    max_compaction_lag_ms: int
    delete_retention_ms: int
    retention_ms: int = -1
    max_message_bytes: int | None = None

    @property
    def compacted(self) -> bool:
        """Whether only the newest record of each key counts."""
        return "compact" in self.cleanup_policy  # which knows no other word that has this in it

    @property
    def expires_after_ms(self) -> int | None:
        """How old records may become; None where nothing expires by its age."""
        return self.retention_ms if "delete" in self.cleanup_policy and self.retention_ms >= 0 else None

    def spans_too_long(self, oldest_ms: int, newest_ms: int, now_ms: int) -> bool:
        """Whether an extent with records of these times would let the oldest of them wait too long.

        It expires as a whole, with its youngest record, and is not cleaned before min.compaction.lag.ms is
        over for that one: a record may wait a quarter longer than by itself. Once the lag is over for all,
        nothing waits.
        """
        expires, lag = self.expires_after_ms, self.min_compaction_lag_ms if self.compacted else 0
        span = newest_ms - oldest_ms
        if expires is not None and span > expires // _SPAN_OF_WAITING:
            return True
        return newest_ms > now_ms - lag and lag > 0 and span > lag // _SPAN_OF_WAITING


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionView:
    """One partition: its rules, its bounds, and its live extents by offset.

    Extents tell by `claimed_by` which open job has them. They may stop short of the log's end when the
    snapshot is bounded, and need not begin at its start when the topic is not compacted: what is missing is
    planned another time. `suspects` are files that were in a failed job, of this and of other partitions.
    `exactness` is that of the clean part; exact, too, where no exact job can be run.
    """

    rules: TopicRules
    state: PartitionState
    extents: tuple[Extent, ...]
    suspects: Mapping[UUID, QuarantineCandidate] = field(default_factory=dict)
    exactness: Exactness = Exactness.EXACT

    def is_free(self, extent: Extent) -> bool:
        """Whether a job may have it: no other has, and its file is not suspected of spoiling jobs."""
        return extent.claimed_by is None and extent.file_id not in self.suspects

    @property
    def partition_id(self) -> PartitionId:
        """Which partition this is."""
        return PartitionId(self.state.topic_id, self.state.partition)

    @property
    def label(self) -> str:
        """As people write it: topic-partition."""
        return f"{self.rules.name}-{self.state.partition}"

    @property
    def claimed_count(self) -> int:
        """How many of the extents are in an open job."""
        return sum(1 for extent in self.extents if extent.claimed_by is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileView:
    """One segment file that has live extents, and how many of them; 0 where nobody counted."""

    file_id: UUID
    object_name: str
    size: int
    kind: FileKind
    committed_ms: int
    extents: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Mergeable:
    """A compacted file that is small or mostly dead, with all its live extents, which nobody has claimed.

    `live_bytes` is what these add up to, `dead_bytes` what the file's extents did at first and do no more.
    """

    file: FileView
    extents: tuple[Extent, ...]
    live_bytes: int
    dead_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What the jobs of the last hour did, those that are done, or are expected to move and to cost."""

    moved_bytes: int = 0
    nanodollars: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything a plan rests on, as of `now_ms`; `files` in commit order, `partitions` in section order.

    `mergeable_views` are the partitions of `mergeable`, without extents; they need not be in `partitions`.
    `fragmented` are partitions with many short extents, in section order, with the newest extents of each.
    """

    now_ms: int
    partitions: tuple[PartitionView, ...]
    files: Mapping[UUID, FileView] = field(default_factory=dict)
    suspects: Mapping[UUID, QuarantineCandidate] = field(default_factory=dict)
    mergeable: tuple[Mergeable, ...] = ()
    fragmented: tuple[PartitionView, ...] = ()
    mergeable_views: Mapping[PartitionId, PartitionView] = field(default_factory=dict)
    spent: Spent = field(default_factory=Spent)
