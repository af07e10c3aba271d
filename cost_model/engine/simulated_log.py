"""A log in memory that jobs of the real policy change: partitions, extents and files.

The log represents a system with `thinning` times as many partitions, whose extents and files are split into
`dilation` pieces (`Scale`). Both are 1 if every event is simulated. Lengths are real lengths divided by the
thinning. Offsets are those of one real partition.
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

    from cost_model.rates.clustered_arrivals import ClusteredArrivals
    from cost_model.workload.definition import TopicClass
    from cost_model.workload.records import Records
    from planner.plan import PlannedJob
    from planner.snapshot import TopicRules

SECTION_BYTES: Final = 300
"""Bytes of a section in addition to its data: header, footer, index, holes, directory entry."""

SECTION_HEADER_BYTES: Final = 112
"""The part of them between the data of neighbouring sections; the directory at the end has the rest."""

_ROUNDING: Final = 1 - 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Ratio of the real system to the model; a real file of `full_bytes` is large enough not to be merged."""

    thinning: float = 1.0
    dilation: float = 1.0
    full_bytes: float = float("inf")

    def objects(self, length: float, sections: float) -> float:
        """Return how many real objects hold `length` bytes of the model; at most the number of sections."""
        if self.thinning == self.dilation == 1:
            return 1.0
        return max(1.0, min(length * self.thinning / self.full_bytes, sections))

    def is_small(self, length: float, objects: float) -> bool:
        """Return True if the real objects with `length` bytes of the model are small enough to be merged."""
        # The number of objects was computed from `full_bytes`: tolerate its rounding.
        return length * self.thinning / objects < self.full_bytes * _ROUNDING

    @property
    def clean_file_bytes(self) -> float:
        """Size at which a file of clean partitions ends; clean data is not split into pieces."""
        return self.full_bytes / self.thinning


@dataclass(slots=True, kw_only=True)
class SimulatedPartition:
    """One partition of the model, which represents `weight` real ones.

    - `share`: the partition's bytes in the model, as a fraction of those of a real one.
    - `rows`: the catalog rows of one real partition for each extent, by base offset.
    - `mean_dirty_bytes`, `mean_dirty_rows`: the mean dirty bytes between the cleanings of one round, and
      their rows.
    - `arrivals_per_second`, `arrival_bytes`: rate and length of the extents that ingestion and merging
      produce.
    - `lifetime_arrivals`: the number of extents that arrive until the first expires or is cleaned.
    - `clustered`: the effect of clustering on them. If None, the model's extents are those of a real
      partition.
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
    mean_dirty_bytes: float = 0.0
    mean_dirty_rows: float = 0.0
    clustered: ClusteredArrivals | None = None
    arrival_bytes: float = 0.0
    arrivals_per_second: float = 0.0
    lifetime_arrivals: float = float("inf")
    extents: list[Extent] = field(default_factory=list)
    rows: dict[int, float] = field(default_factory=dict)

    def length_of(self, records: float) -> int:
        """Return the bytes of that many records in the model."""
        return max(1, round(records * self.topic.stored_record_bytes * self.share))

    @property
    def row_count(self) -> float:
        """Number of catalog rows of one real partition."""
        if self.clustered is None:
            return sum(self.rows.values())
        fresh = sum(
            self.rows[each.base_offset]
            for each in self.extents
            if not self.rules.compacted or each.last_offset >= self.first_dirty
        )
        clean = sum(self.rows.values()) - fresh
        return clean + self.clustered.of(self.clustered.rows, fresh) + self.mean_dirty_rows

    def extent_span(self, base: int, upper: int) -> tuple[int, int]:
        """Return the index range of the extents within a range of offsets."""
        low = bisect_left(self.extents, base, key=lambda extent: extent.base_offset)
        high = bisect_left(self.extents, upper, key=lambda extent: extent.base_offset)
        return low, high

    def dirty_bytes(self) -> int:
        """Return the bytes at and past the first dirty offset."""
        found = 0
        for extent in reversed(self.extents):
            if extent.last_offset < self.first_dirty:
                break
            found += extent.length
        return found


@dataclass(slots=True)
class SimulatedFile:
    """A file with its live extents by partition and base offset; it represents `objects` real ones."""

    view: FileView
    objects: float = 1.0
    live: dict[tuple[PartitionId, int], Extent] = field(default_factory=dict)
    live_bytes: int = 0
    initial_bytes: int = 0

    def add(self, key: PartitionId, extent: Extent) -> None:
        """Add an extent while the file is written."""
        self.live[key, extent.base_offset] = extent
        self.live_bytes += extent.length
        self.initial_bytes += extent.length


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """Records of one partition in one ingestion file; after compaction they are `rows` catalog rows.

    The last of them arrived at `last_ms`; None means when the file was closed.
    """

    records: int
    rows: float = 1.0
    last_ms: int | None = None


@dataclass(slots=True)
class SimulatedLog:
    """All partitions and files; every change keeps the extents contiguous and the sums of files correct."""

    partitions: dict[PartitionId, SimulatedPartition]
    scale: Scale = field(default_factory=Scale)
    files: dict[UUID, SimulatedFile] = field(default_factory=dict)
    ingestion: dict[UUID, SimulatedFile] = field(default_factory=dict)
    dead: list[SimulatedFile] = field(default_factory=list)
    _counter: int = 0

    def new_file(self, kind: FileKind, now_ms: int) -> SimulatedFile:
        """Return a file without extents that is not part of the log yet."""
        self._counter += 1
        file_id = UUID(int=self._counter)
        view = FileView(
            file_id=file_id,
            object_name=f"{kind}/{self._counter}",
            size=0,
            kind=kind,
            committed_ms=now_ms,
            extents=0,
            whole_extents=0,
        )
        return SimulatedFile(view)

    def append(self, arrivals: Mapping[PartitionId, Arrival], begun_ms: int, now_ms: int) -> SimulatedFile:
        """Add an ingestion file with records from `begun_ms` to `now_ms`."""
        file = self.new_file(FileKind.INGESTION, now_ms)
        size = directory = 0
        for key, arrival in arrivals.items():
            part = self.partitions[key]
            part.records.append(arrival.records)
            extent = _extent(part, file.view, (size, arrival.records), begun_ms, now_ms)
            if arrival.last_ms is not None:
                extent = extent._replace(max_timestamp=arrival.last_ms)
            part.log_end = extent.last_offset + 1
            part.extents.append(extent)
            part.rows[extent.base_offset] = arrival.rows
            file.add(key, extent)
            size += extent.length + round(SECTION_HEADER_BYTES * part.share)
            directory += round((SECTION_BYTES - SECTION_HEADER_BYTES) * part.share)
        file.view = replace(file.view, size=size + directory)
        self.ingestion[file.view.file_id] = file
        return file

    def replace_extents(
        self,
        part: SimulatedPartition,
        span: tuple[int, int],
        extent: Extent,
        into: SimulatedFile,
        rows: float,
    ) -> None:
        """Replace the extents in an index range by one extent."""
        low, high = span
        for each in part.extents[low:high]:
            part.rows.pop(each.base_offset)
            self.drop(part.key, each)
        part.extents[low:high] = [extent]
        part.rows[extent.base_offset] = rows
        into.add(part.key, extent)

    def drop(self, key: PartitionId, extent: Extent) -> None:
        """Remove an extent from its file; a file without extents is dead."""
        file = self.files.get(extent.file_id) or self.ingestion[extent.file_id]
        del file.live[key, extent.base_offset]
        file.live_bytes -= extent.length
        if not file.live:
            self.files.pop(extent.file_id, None)
            self.ingestion.pop(extent.file_id, None)
            self.dead.append(file)

    def publish(self, files: Iterable[SimulatedFile], sizes: Mapping[UUID, int]) -> None:
        """Add written files to the log, with their final sizes."""
        for file in files:
            file.view = replace(file.view, size=sizes[file.view.file_id])
            self.files[file.view.file_id] = file

    def expire(self, now_ms: int) -> None:
        """Expire whole extents by time and by size, the oldest first, as `catalog.lifecycle.retention`."""
        for part in self.partitions.values():
            removed = _expired(part, now_ms)
            for extent in part.extents[:removed]:
                part.rows.pop(extent.base_offset)
                self.drop(part.key, extent)
                part.log_start = extent.last_offset + 1
            del part.extents[:removed]

    def take_dead_files(self) -> list[SimulatedFile]:
        """Return the files that became dead since the last call."""
        dead, self.dead = self.dead, []
        return dead


def _expired(part: SimulatedPartition, now_ms: int) -> int:
    """Return how many of the oldest extents expire."""
    if "delete" not in part.rules.cleanup_policy:
        return 0
    before_ms = now_ms - part.rules.retention_ms if part.rules.retention_ms >= 0 else -1
    excess = -1.0
    if part.retention_bytes >= 0:
        stored = sum(extent.length for extent in part.extents) / part.share
        excess = stored - part.retention_bytes
    removed = 0
    for extent in part.extents:
        excess -= extent.length / part.share
        if extent.max_timestamp >= before_ms and excess < 0:
            break
        removed += 1
    return removed


def _extent(
    part: SimulatedPartition, file: FileView, section: tuple[int, int], begun_ms: int, now_ms: int
) -> Extent:
    """Return the extent of a section; `section` is its position and its number of records."""
    position, records = section
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


def taken_extents(
    log: SimulatedLog, job: PlannedJob
) -> list[tuple[SimulatedPartition, tuple[int, int], Sequence[Extent]]]:
    """Return, for each partition of a job, the index range of its live extents and the extents."""
    found: list[tuple[SimulatedPartition, tuple[int, int], Sequence[Extent]]] = []
    for each in job.partitions:
        part = log.partitions[PartitionId(each.topic_id, each.partition)]
        span = part.extent_span(each.base_offset, each.upper_offset)
        found.append((part, span, part.extents[span[0] : span[1]]))
    return found
