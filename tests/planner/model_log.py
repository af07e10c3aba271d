"""A log in memory that appends ingestion files, applies jobs and returns snapshots."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from uuid import UUID

from catalog.model import Exactness, Extent, FileKind, PartitionId, PartitionState
from planner.jobs.clustering import is_fragmented
from planner.jobs.merging import is_mostly_dead
from planner.snapshot import FileView, Mergeable, PartitionView, Snapshot, TopicRules

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from planner.plan import JobKind, PlannedJob
    from planner.settings import PlannerSettings

NOW_MS = 1_700_000_000_000
NEVER_MS = 2**63 - 1
OPEN_JOB = UUID(int=99)


def topic_rules(number: int, **changes: object) -> TopicRules:
    """Return Kafka's defaults for a compacted topic, with changes."""
    rules = TopicRules(
        topic_id=UUID(int=number + 1),
        name=f"topic{number}",
        cleanup_policy="compact",
        compression_type="producer",
        min_cleanable_dirty_ratio=0.5,
        min_compaction_lag_ms=0,
        max_compaction_lag_ms=NEVER_MS,
        delete_retention_ms=86_400_000,
        retention_ms=-1,
    )
    return replace(rules, **changes)  # type: ignore[arg-type]  # the names are checked by replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Records of one partition in one ingestion file.

    The youngest record has `age_ms`, and the oldest one is older by `span_ms`.
    """

    records: int
    length: int
    age_ms: int = 0
    span_ms: int = 0


@dataclass
class ModelLog:
    """Partitions with their live extents; every change keeps the extents contiguous from offset 0."""

    rules: Sequence[TopicRules]
    partition_count: int = 1
    kept_percent: int = 50
    now_ms: int = NOW_MS
    extents: dict[PartitionId, list[Extent]] = field(default_factory=dict)
    first_dirty: dict[PartitionId, int] = field(default_factory=dict)
    log_start: dict[PartitionId, int] = field(default_factory=dict)
    unstable: dict[PartitionId, int] = field(default_factory=dict)
    exactness: dict[PartitionId, Exactness] = field(default_factory=dict)
    claimed: set[tuple[PartitionId, int]] = field(default_factory=set)
    files: dict[UUID, FileView] = field(default_factory=dict)
    initial_bytes: dict[UUID, int] = field(default_factory=dict)
    written: dict[JobKind, int] = field(default_factory=dict)
    counter: int = 0

    def __post_init__(self) -> None:
        for rules in self.rules:
            for partition in range(self.partition_count):
                self.extents[PartitionId(rules.topic_id, partition)] = []

    def _new_file(self, kind: FileKind, size: int, committed_ms: int) -> FileView:
        self.counter += 1
        file_id = UUID(int=10_000 + self.counter)
        view = FileView(
            file_id=file_id,
            object_name=f"{kind}/{file_id}",
            size=size,
            kind=kind,
            committed_ms=committed_ms,
            extents=0,
            whole_extents=0,
        )
        self.files[file_id] = view
        return view

    def end(self, key: PartitionId) -> int:
        return self.extents[key][-1].last_offset + 1 if self.extents[key] else 0

    def append(self, chunks: Mapping[PartitionId, Chunk], *, age_ms: int = 0) -> FileView:
        """Append one ingestion file."""
        size = 100 + sum(chunk.length for chunk in chunks.values())
        file = self._new_file(FileKind.INGESTION, size, self.now_ms - age_ms)
        position = 50
        for key in sorted(chunks):
            chunk, base = chunks[key], self.end(key)
            timestamp = self.now_ms - chunk.age_ms
            self.extents[key].append(
                Extent(
                    topic_id=key.topic_id,
                    partition=key.partition,
                    base_offset=base,
                    last_offset=base + chunk.records - 1,
                    record_count=chunk.records,
                    min_timestamp=timestamp - chunk.span_ms,
                    max_timestamp=timestamp,
                    file_id=file.file_id,
                    object_name=file.object_name,
                    file_kind=FileKind.INGESTION,
                    position=position,
                    length=chunk.length,
                    index_position=0,
                    index_length=0,
                    offset_shift=base,
                    leader_epoch=0,
                    unique_keys=False,
                    committed_ms=file.committed_ms,
                )
            )
            position += chunk.length
        return file

    def claim(self, job: PlannedJob) -> None:
        self.claimed |= {
            (PartitionId(extent.topic_id, extent.partition), extent.base_offset)
            for each in job.inputs
            for extent in each.extents
        }

    def apply(self, job: PlannedJob) -> None:
        """Change the extents as a compaction job does, with output files by cleanup policy and size."""
        outputs: dict[bool, FileView] = {}
        sizes: dict[UUID, int] = {}
        for part in job.partitions:
            key = PartitionId(part.topic_id, part.partition)
            taken = [
                extent
                for extent in self.extents[key]
                if part.base_offset <= extent.base_offset < part.upper_offset
            ]
            length = sum(extent.length for extent in taken)
            if part.deduplicate:
                length = length * self.kept_percent // 100
            policy = "compact" in part.cleanup_policy
            if policy not in outputs or sizes[outputs[policy].file_id] >= job.output_bytes:
                size = 100 + job.taken_bytes
                outputs[policy] = self._new_file(FileKind.COMPACTED, size, self.now_ms)
            file = outputs[policy]
            position = 50 + sizes.get(file.file_id, 0)
            sizes[file.file_id] = sizes.get(file.file_id, 0) + length
            merged = taken[0]._replace(
                position=position,
                last_offset=part.upper_offset - 1,
                record_count=sum(extent.record_count for extent in taken),
                min_timestamp=min(extent.min_timestamp for extent in taken),
                max_timestamp=max(extent.max_timestamp for extent in taken),
                file_id=file.file_id,
                object_name=file.object_name,
                file_kind=FileKind.COMPACTED,
                length=length,
                offset_shift=0,
            )
            rest = [extent for extent in self.extents[key] if extent not in taken]
            self.extents[key] = sorted([*rest, merged], key=lambda extent: extent.base_offset)
            if part.deduplicate and part.reaches_log_start:
                if part.upper_offset >= self.first_dirty.get(key, 0):
                    self.exactness.pop(key, None)  # the key table is never full
                self.first_dirty[key] = max(self.first_dirty.get(key, 0), part.upper_offset)
        self.initial_bytes |= sizes
        self.written[job.kind] = self.written.get(job.kind, 0) + sum(sizes.values())
        self._remove_dead_files()

    def _remove_dead_files(self) -> None:
        live = {extent.file_id for extents in self.extents.values() for extent in extents}
        self.files = {file_id: view for file_id, view in self.files.items() if file_id in live}

    def view(self, key: PartitionId) -> PartitionView:
        end = self.end(key)
        stable = end - min(self.unstable.get(key, 0), end)
        start = self.log_start.get(key, 0)
        state = PartitionState(
            topic_id=key.topic_id,
            partition=key.partition,
            log_start_offset=start,
            last_stable_offset=max(stable, start),
            high_watermark=end,
            log_end_offset=end,
            first_dirty_offset=self.first_dirty.get(key, 0),
            leader_epoch=0,
        )
        return PartitionView(
            rules=next(rules for rules in self.rules if rules.topic_id == key.topic_id),
            state=state,
            extents=tuple(
                extent._replace(claimed_by=OPEN_JOB) if (key, extent.base_offset) in self.claimed else extent
                for extent in self.extents[key]
            ),
            exactness=self.exactness.get(key, Exactness.EXACT),
        )

    def mergeable(self, settings: PlannerSettings | None) -> tuple[Mergeable, ...]:
        """Return the files that the catalog would find for these settings.

        Without settings, return all compacted files.
        """
        by_file: dict[UUID, list[Extent]] = {}
        for extents in self.extents.values():
            for extent in extents:
                by_file.setdefault(extent.file_id, []).append(extent)
        claimed = {
            extent.file_id
            for key, extents in self.extents.items()
            for extent in extents
            if (key, extent.base_offset) in self.claimed
        }
        found = []
        for file_id, extents in by_file.items():
            live = sum(extent.length for extent in extents)
            each = Mergeable(
                file=replace(self.files[file_id], extents=len(extents)),
                extents=tuple(extents),
                live_bytes=live,
                dead_bytes=self.initial_bytes.get(file_id, live) - live,
            )
            wanted = settings is None or (
                live < settings.full_bytes and len(extents) <= settings.max_merged_extents
            )
            wanted = wanted or (settings is not None and is_mostly_dead(each, settings))
            if each.file.kind is FileKind.COMPACTED and file_id not in claimed and wanted:
                found.append(each)
        return tuple(found)

    def fragmented(self, settings: PlannerSettings) -> tuple[PartitionView, ...]:
        """Return the partitions that the catalog would find for clustering."""
        found = []
        for key, extents in sorted(self.extents.items()):
            compacted = sum(1 for each in extents if each.file_kind is FileKind.COMPACTED)
            if is_fragmented(compacted, sum(each.length for each in extents), settings):
                view = self.view(key)
                visible = tuple(each for each in view.extents if each.file_kind is FileKind.COMPACTED)
                found.append(replace(view, extents=visible[-settings.max_seen_extents :]))
        return tuple(found)

    def snapshot(self, settings: PlannerSettings | None = None) -> Snapshot:
        counts = Counter(each.file_id for extents in self.extents.values() for each in extents)
        return Snapshot(
            now_ms=self.now_ms,
            partitions=tuple(self.view(key) for key in sorted(self.extents)),
            files={file_id: replace(view, extents=counts[file_id]) for file_id, view in self.files.items()},
            fragmented=self.fragmented(settings) if settings is not None else (),
            mergeable=self.mergeable(settings),
            mergeable_views={key: replace(self.view(key), extents=()) for key in self.extents},
        )
