"""One job while it is being put together: its files, its extents, and the bounds on both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from catalog.jobs.byte_ranges import ByteRange, byte_range_of
from catalog.model import Exactness, JobInput, JobPartition
from planner.dirtiness import first_dirty_offset, may_deduplicate
from planner.plan import JobKind, PlannedJob
from planner.settings import MIB

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from catalog.model import Extent, PartitionId
    from planner.score import JobScore
    from planner.settings import PlannerSettings
    from planner.snapshot import FileView, PartitionView, Snapshot

# What a request costs, in bytes that a task could read instead at 50 MB/s: a GET ($0.0000004) is 1.2 MB of a
# vCPU at $0.0408 an hour that is busy 70 % of its time; a job makes five requests at a PUT's price besides.
GET_IN_READING: Final = MIB
JOB_IN_READING: Final = 64 * MIB


class JobDraft:
    """Collects partitions and keeps to the bounds of the settings.

    A draft that is empty takes any partition, however large: a job must be able to make progress.
    """

    def __init__(
        self, kind: JobKind, files: Mapping[UUID, FileView], settings: PlannerSettings, now_ms: int
    ) -> None:
        self.kind = kind
        self._now_ms = now_ms
        self._files = files
        self._settings = settings
        self._taken: dict[PartitionId, tuple[PartitionView, tuple[Extent, ...]]] = {}
        self._in_order: list[tuple[PartitionView, tuple[Extent, ...]]] | None = None
        self._spans: dict[UUID, ByteRange] = {}
        self._bytes = 0
        self._extents = 0
        self.output_bytes = settings.full_bytes
        self.dead_bytes = 0

    @property
    def file_count(self) -> int:
        """How many files the job would read."""
        return len(self._spans)

    @property
    def file_bytes(self) -> int:
        """How many bytes one stream over every file would read: from the first wanted section to the last."""
        return self._bytes

    @property
    def extents_of_each(self) -> float:
        """How many extents of each partition the job takes, on average."""
        return self._extents / len(self._taken)

    @property
    def oldest_ms(self) -> int:
        """Since when the oldest of what the job is for has been waiting; what is clean waits for nothing.

        What is merged or sorted has waited since the last of it came, before which there was not enough.
        """
        if self.kind not in {JobKind.INGESTION, JobKind.CLEANING}:
            return max(self._files[each].committed_ms for each in self._spans)
        return min(
            extent.committed_ms
            for view, extents in self.partitions()
            for extent in extents
            if not view.rules.compacted or extent.last_offset >= first_dirty_offset(view)
        )

    def fits(self, view: PartitionView, extents: Sequence[Extent]) -> bool:
        """Whether the job stays within its bounds when `take` is called with the same.

        What is read anyway costs nothing more, even in a job that one partition has made too large.
        """
        if not self._spans:
            return True
        limits = self._settings
        grown = self._grown(spans_of(extents))
        size, files = self._bytes + self._growth(grown), len(self._spans.keys() | grown.keys())
        readable = not grown or (size <= limits.max_job_input_bytes and files <= limits.max_job_files)
        return readable and self._extents + len(extents) - self._extents_of(view) <= limits.max_job_extents

    def is_near(self, extents: Sequence[Extent]) -> bool:
        """Whether reading what lies between these extents and the rest costs less than another job for them.

        Two streams go through that; two GETs are saved for each file that the job reads anyway, and a job.
        """
        alone = spans_of(extents)
        between = self._growth(self._grown(alone)) - sum(span.length for span in alone.values())
        shared = len(self._spans.keys() & alone.keys())
        return 2 * between <= 2 * shared * GET_IN_READING + JOB_IN_READING

    def take(self, view: PartitionView, extents: Sequence[Extent]) -> None:
        """Put these extents of a partition into the job, in place of those before, which are among them."""
        self._extents += len(extents) - self._extents_of(view)
        self._taken[view.partition_id] = (view, tuple(extents))
        self._in_order = None
        grown = self._grown(spans_of(extents))
        self._bytes += self._growth(grown)
        self._spans |= grown

    def _grown(self, spans: Mapping[UUID, ByteRange]) -> dict[UUID, ByteRange]:
        """The spans that become larger with these, as they would be."""
        found: dict[UUID, ByteRange] = {}
        for file_id, span in spans.items():
            old = self._spans.get(file_id)
            new = _joined(old, span)
            if new != old:
                found[file_id] = new
        return found

    def _growth(self, grown: Mapping[UUID, ByteRange]) -> int:
        return sum(
            span.length - (self._spans[file_id].length if file_id in self._spans else 0)
            for file_id, span in grown.items()
        )

    def _extents_of(self, view: PartitionView) -> int:
        return len(self._taken[view.partition_id][1]) if view.partition_id in self._taken else 0

    def partitions(self) -> list[tuple[PartitionView, tuple[Extent, ...]]]:
        """What was taken, in section order."""
        if self._in_order is None:
            keys = sorted(self._taken, key=lambda each: (each.topic_id.int, each.partition))
            self._in_order = [self._taken[key] for key in keys]
        return self._in_order

    def cut_evenly(self) -> None:
        """Let what comes out be cut into files that are large enough, or be whole where it cannot be."""
        full = self._settings.full_bytes
        taken = sum(extent.length for _, extents in self._taken.values() for extent in extents)
        pieces = max(1, taken // full)
        self.output_bytes = max(full, -(-taken // pieces))

    def deduplicates(self, view: PartitionView, extents: Sequence[Extent]) -> bool:
        """Whether the job drops superseded records of a partition; merging and sorting never do."""
        as_it_stands = self.kind in {JobKind.MERGING, JobKind.SORTING}
        return not as_it_stands and may_deduplicate(view, extents, self._now_ms)

    @property
    def exact(self) -> bool:
        """Whether the job cleans a partition of which another has left keys twice, for want of memory."""
        return any(
            view.exactness is not Exactness.EXACT
            and reaches_log_start(view, extents)
            and self.deduplicates(view, extents)
            for view, extents in self.partitions()
        )

    def finish(self, reason: str, worth: JobScore) -> PlannedJob:
        """The job: its inputs in commit order, the extents of each in section order."""
        by_file: dict[UUID, list[Extent]] = {}
        for _, extents in self.partitions():
            for extent in extents:
                by_file.setdefault(extent.file_id, []).append(extent)
        inputs = [
            JobInput(
                file_id=view.file_id,
                object_name=view.object_name,
                size=view.size,
                extents=tuple(by_file[view.file_id]),
            )
            for view in self._files.values()
            if view.file_id in by_file
        ]
        return PlannedJob(
            kind=self.kind,
            reason=reason,
            inputs=tuple(inputs),
            partitions=tuple(
                _job_partition(view, extents, deduplicate=self.deduplicates(view, extents))
                for view, extents in self.partitions()
            ),
            output_bytes=self.output_bytes,
            worth=worth,
            exact=self.exact,
        )


def neighbours_together(
    kind: JobKind,
    snapshot: Snapshot,
    settings: PlannerSettings,
    wanted: Iterable[tuple[PartitionView, tuple[Extent, ...]]],
) -> list[JobDraft]:
    """Jobs of partitions that follow each other in section order, as far as these fit and lie near."""
    drafts: list[JobDraft] = []
    for view, extents in wanted:
        if not (drafts and drafts[-1].fits(view, extents) and drafts[-1].is_near(extents)):
            drafts.append(JobDraft(kind, snapshot.files, settings, snapshot.now_ms))
        drafts[-1].take(view, extents)
    return drafts


def spans_of(extents: Iterable[Extent]) -> dict[UUID, ByteRange]:
    """By file, what a stream goes through that reads the extents."""
    by_file: dict[UUID, list[Extent]] = {}
    for extent in extents:
        by_file.setdefault(extent.file_id, []).append(extent)
    return {file_id: byte_range_of(held) for file_id, held in by_file.items()}


def _joined(one: ByteRange | None, other: ByteRange) -> ByteRange:
    """Both, and what lies between them; what is empty lies nowhere."""
    if one is None or not one.length:
        return other
    if not other.length:
        return one
    return ByteRange(min(one.start, other.start), max(one.end, other.end))


def reaches_log_start(view: PartitionView, extents: Sequence[Extent]) -> bool:
    """Whether nothing of the partition is older than these extents."""
    return extents[0].base_offset <= view.state.log_start_offset


def _job_partition(view: PartitionView, extents: tuple[Extent, ...], *, deduplicate: bool) -> JobPartition:
    return JobPartition(
        topic_id=view.state.topic_id,
        partition=view.state.partition,
        topic_name=view.rules.name,
        cleanup_policy=view.rules.cleanup_policy,
        compression_type=view.rules.compression_type,
        deduplicate=deduplicate,
        reaches_log_start=reaches_log_start(view, extents),
        base_offset=extents[0].base_offset,
        upper_offset=extents[-1].last_offset + 1,
        delete_retention_ms=view.rules.delete_retention_ms,
        max_message_bytes=view.rules.max_message_bytes,
        expires_after_ms=view.rules.expires_after_ms,
    )
