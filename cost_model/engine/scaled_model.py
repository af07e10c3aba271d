"""A log in memory that jobs of the real policy are applied to: partitions, extents, files.

It stands for a system that is `thinning` times as wide and has `dilation` pieces in each of its extents and
files (`scale`); both are 1 where every event is simulated. Lengths are those of the cell: real ones divided
by the thinning. Offsets are real ones of one partition.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final
from uuid import UUID

from catalog.model import Extent, FileKind, PartitionId
from planner.snapshot import FileView

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from cost_model.engine.clusterings import SortedNews
    from cost_model.workload.records import Records
    from cost_model.workload.workload import TopicClass
    from planner.plan import PlannedJob
    from planner.snapshot import TopicRules

SECTION_BYTES: Final = 300
"""Bytes of a section besides its data: header, footer, index, holes, directory entry."""

_ROUNDING: Final = 1 - 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What one thing of the cell stands for; `full_bytes` is the real size from which a file is large."""

    thinning: float = 1.0
    dilation: float = 1.0
    full_bytes: float = float("inf")

    def objects(self, length: float, sections: float) -> float:
        """How many real objects hold so many bytes of the cell, in at most as many as there are sections."""
        if self.thinning == self.dilation == 1:
            return 1.0
        return max(1.0, min(length * self.thinning / self.full_bytes, sections))

    def is_small(self, length: float, objects: float) -> bool:
        """Whether the real objects that hold so many bytes of the cell are not large."""
        # Objects were counted in whole files of `full_bytes`: what is missing by rounding is not small.
        return length * self.thinning / objects < self.full_bytes * _ROUNDING

    @property
    def clean_file_bytes(self) -> float:
        """Where files of clean partitions are ended: what is clean does not come in pieces, as news do."""
        return self.full_bytes / self.thinning


@dataclass(slots=True, kw_only=True)
class Part:
    """One partition of the cell, standing for `weight` real ones.

    `rows` tells of each extent, by base offset, how many rows the catalog has for it in one real partition;
    `standing_dirty` are the bytes that are dirty on average, in between cleanings that share a round, and
    `standing_rows` the rows for them. `arrivals_per_second` extents of `arrival_bytes` each come of ingestion
    and merging, `lifetime` of them until they expire or are cleaned, and `news` tells what becomes of them.
    Without `news`, the extents of the cell are those of the real partition.
    """

    key: PartitionId
    topic: TopicClass
    rules: TopicRules
    records: Records
    weight: float = 1.0
    share: float = 1.0
    retention_bytes: int = -1
    log_start: int = 0
    log_end: int = 0
    first_dirty: int = 0
    standing_dirty: float = 0.0
    standing_rows: float = 0.0
    news: SortedNews | None = None
    arrival_bytes: float = 0.0
    arrivals_per_second: float = 0.0
    lifetime: float = float("inf")
    extents: list[Extent] = field(default_factory=list)
    rows: dict[int, float] = field(default_factory=dict)

    def length_of(self, records: float) -> int:
        """The bytes that so many records take in the cell."""
        return max(1, round(records * self.topic.stored_record_bytes * self.share))

    @property
    def row_count(self) -> float:
        """How many rows the catalog has for one real partition."""
        if self.news is None:
            return sum(self.rows.values())
        fresh = sum(
            self.rows[each.base_offset]
            for each in self.extents
            if not self.rules.compacted or each.last_offset >= self.first_dirty
        )
        clean = sum(self.rows.values()) - fresh
        return clean + self.news.of(self.news.rows, fresh) + self.standing_rows

    def within(self, base: int, upper: int) -> tuple[int, int]:
        """Which extents lie in a range of offsets, by their places."""
        low = bisect_left(self.extents, base, key=lambda extent: extent.base_offset)
        high = bisect_left(self.extents, upper, key=lambda extent: extent.base_offset)
        return low, high

    def dirty_bytes(self) -> int:
        """What lies past the part that is clean."""
        found = 0
        for extent in reversed(self.extents):
            if extent.last_offset < self.first_dirty:
                break
            found += extent.length
        return found


@dataclass(slots=True)
class CellFile:
    """A file with its live extents, by partition and offset; it stands for `objects` real ones."""

    view: FileView
    objects: float
    live: dict[tuple[PartitionId, int], Extent] = field(default_factory=dict)
    live_bytes: int = 0
    born_bytes: int = 0

    def add(self, key: PartitionId, extent: Extent) -> None:
        """One extent more, while it is written."""
        self.live[key, extent.base_offset] = extent
        self.live_bytes += extent.length
        self.born_bytes += extent.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """What a partition gets in one ingestion file; it will be `rows` rows once it is compacted."""

    records: int
    rows: float = 1.0


@dataclass(slots=True)
class CellLog:
    """All partitions and files; every change keeps extents contiguous and files' sums right."""

    parts: dict[PartitionId, Part]
    scale: Scale = field(default_factory=Scale)
    files: dict[UUID, CellFile] = field(default_factory=dict)
    ingestion: dict[UUID, CellFile] = field(default_factory=dict)
    died: list[CellFile] = field(default_factory=list)
    _counter: int = 0

    def new_file(self, kind: FileKind, now_ms: int, size: int = 0, objects: float = 1.0) -> CellFile:
        """A file without extents, not yet among the others."""
        self._counter += 1
        file_id = UUID(int=self._counter)
        view = FileView(
            file_id=file_id, object_name=f"{kind}/{self._counter}", size=size, kind=kind, committed_ms=now_ms
        )
        return CellFile(view, objects)

    def append(
        self, arrivals: Mapping[PartitionId, Arrival], begun_ms: int, now_ms: int, objects: float = 1.0
    ) -> CellFile:
        """One ingestion file with records of the time from `begun_ms` to `now_ms`."""
        file = self.new_file(FileKind.INGESTION, now_ms, objects=objects)
        size = 0
        for key, arrival in arrivals.items():
            part = self.parts[key]
            part.records.append(arrival.records)
            extent = _extent(part, file.view, (size, arrival.records), begun_ms, now_ms)
            part.log_end = extent.last_offset + 1
            part.extents.append(extent)
            part.rows[extent.base_offset] = arrival.rows
            file.add(key, extent)
            size += extent.length + round(SECTION_BYTES * part.share)
        file.view = replace(file.view, size=size)
        self.ingestion[file.view.file_id] = file
        return file

    def swap(
        self, part: Part, span: tuple[int, int], extent: Extent, into: CellFile, rows: float
    ) -> list[Extent]:
        """Put `extent` in the place of those at `span`; returns what was there."""
        low, high = span
        gone = part.extents[low:high]
        for each in gone:
            part.rows.pop(each.base_offset)
            self.drop(part.key, each)
        part.extents[low:high] = [extent]
        part.rows[extent.base_offset] = rows
        into.add(part.key, extent)
        return gone

    def drop(self, key: PartitionId, extent: Extent) -> None:
        """Take an extent out of its file, which dies with its last one."""
        file = self.files.get(extent.file_id) or self.ingestion[extent.file_id]
        del file.live[key, extent.base_offset]
        file.live_bytes -= extent.length
        if not file.live:
            self.files.pop(extent.file_id, None)
            self.ingestion.pop(extent.file_id, None)
            self.died.append(file)

    def publish(self, files: Iterable[CellFile], sizes: Mapping[UUID, int]) -> None:
        """Let written files be seen, with their sizes."""
        for file in files:
            file.view = replace(file.view, size=sizes[file.view.file_id])
            self.files[file.view.file_id] = file

    def expire(self, now_ms: int) -> None:
        """Expire whole extents by time and by size, the oldest first, as `catalog.lifecycle.retention`."""
        for part in self.parts.values():
            gone = _expired(part, now_ms)
            for extent in part.extents[:gone]:
                part.rows.pop(extent.base_offset)
                self.drop(part.key, extent)
                part.log_start = extent.last_offset + 1
            del part.extents[:gone]

    def take_died(self) -> list[CellFile]:
        """The files that died since the last call."""
        died, self.died = self.died, []
        return died


def _expired(part: Part, now_ms: int) -> int:
    """How many of the first extents go."""
    if "delete" not in part.rules.cleanup_policy:
        return 0
    before_ms = now_ms - part.rules.retention_ms if part.rules.retention_ms >= 0 else -1
    spare = -1.0
    if part.retention_bytes >= 0:
        held = sum(extent.length for extent in part.extents) / part.share
        spare = held - part.retention_bytes
    gone = 0
    for extent in part.extents:
        spare -= extent.length / part.share
        if extent.max_timestamp >= before_ms and spare < 0:
            break
        gone += 1
    return gone


def _extent(part: Part, file: FileView, held: tuple[int, int], begun_ms: int, now_ms: int) -> Extent:
    """What a file has of a partition: from which byte on, and how many records."""
    position, records = held
    return Extent(
        topic_id=part.key.topic_id,
        partition=part.key.partition,
        base_offset=part.log_end,
        last_offset=part.log_end + records - 1,
        record_count=records,
        min_timestamp=begun_ms,
        max_timestamp=now_ms,
        file_id=file.file_id,
        object_name=file.object_name,
        file_kind=FileKind.INGESTION,
        position=position,
        length=part.length_of(records),
        index_position=0,
        index_length=0,
        offset_shift=part.log_end,
        leader_epoch=0,
        unique_keys=False,
        committed_ms=now_ms,
    )


def taken_extents(log: CellLog, job: PlannedJob) -> list[tuple[Part, tuple[int, int], Sequence[Extent]]]:
    """What is still there of a job's partitions: each with the places of its extents, and these."""
    found: list[tuple[Part, tuple[int, int], Sequence[Extent]]] = []
    for each in job.partitions:
        part = log.parts[PartitionId(each.topic_id, each.partition)]
        span = part.within(each.base_offset, each.upper_offset)
        found.append((part, span, part.extents[span[0] : span[1]]))
    return found
