"""A draft of a job: its files, its extents, and the bounds on both."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from catalog.grouping import by_file, by_partition
from catalog.jobs.byte_ranges import ByteRange, byte_range_of
from catalog.model import Exactness, JobInput, JobPartition
from planner.dirtiness import contiguous_run, first_dirty_offset, may_deduplicate
from planner.plan import JobKind, PlannedJob
from planner.settings import MIB
from planner.transactions import closed_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from uuid import UUID

    from catalog.model import Extent, PartitionId
    from planner.plan import JobScore, Wait
    from planner.settings import PlannerSettings
    from planner.snapshot import FileView, PartitionView, Snapshot

# The price of a request, in bytes that a task reads for the same money at 50 MB/s: a GET ($0.0000004) equals
# 1.2 MB on a vCPU at $0.0408 an hour that is busy 70 % of the time. A job sends five requests at a
# PUT's price.
GET_IN_READING: Final = MIB
JOB_IN_READING: Final = 64 * MIB


class JobDraft:
    """Collects partitions within the bounds of the settings.

    An empty draft takes any partition, however large, so that a job can always make progress.
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
        self.wait: Wait | None = None

    @property
    def file_count(self) -> int:
        """Number of files that the job reads."""
        return len(self._spans)

    @property
    def file_bytes(self) -> int:
        """Bytes that one stream over every file reads, from the first needed section to the last."""
        return self._bytes

    @property
    def extents_of_each(self) -> float:
        """Average number of extents per partition."""
        return self._extents / len(self._taken)

    @property
    def oldest_ms(self) -> int:
        """Time since which the oldest data of the job has been waiting; clean data waits for nothing.

        For a merging or clustering job it is the time when the last of its files arrived, because before that
        there were not enough.
        """
        if self.kind not in {JobKind.INGESTION, JobKind.CLEANING}:
            return max(self._files[each].committed_ms for each in self._spans)
        waiting: list[int] = []
        for view, extents in self.partitions():
            dirty_from = first_dirty_offset(view) if view.rules.compacted else 0
            waiting += [extent.committed_ms for extent in extents if extent.last_offset >= dirty_from]
        return min(waiting)

    def fits(self, view: PartitionView, extents: Sequence[Extent]) -> bool:
        """Return True if the job stays within its bounds after `take` with the same arguments.

        Files and bytes that the job reads anyway cost nothing more, even if one partition has made the job
        too large.
        """
        if not self._spans:
            return True
        limits = self._settings
        grown = self._grown(spans_of(extents))
        size, files = self._bytes + self._growth(grown), len(self._spans.keys() | grown.keys())
        readable = not grown or (size <= limits.max_job_input_bytes and files <= limits.max_job_files)
        return readable and self._extents + len(extents) - self._extents_of(view) <= limits.max_job_extents

    def is_near(self, extents: Sequence[Extent]) -> bool:
        """Return True if reading the bytes between these extents and the rest costs less than a separate job.

        Two streams read those bytes; joining saves two GETs for each shared file, and a job.
        """
        alone = spans_of(extents)
        between = self._growth(self._grown(alone)) - sum(span.length for span in alone.values())
        shared = len(self._spans.keys() & alone.keys())
        return 2 * between <= 2 * shared * GET_IN_READING + JOB_IN_READING

    def take(self, view: PartitionView, extents: Sequence[Extent]) -> None:
        """Put these extents into the job; they include and replace the partition's earlier ones."""
        self._take(view, extents)
        self._read(extents)

    def take_runs(self, views: Mapping[PartitionId, PartitionView], extents: Iterable[Extent]) -> None:
        """Put the first contiguous run of each partition's extents into the job."""
        taken: list[Extent] = []
        for key, found in by_partition(extents).items():
            run = closed_run(views[key], contiguous_run(sorted(found, key=lambda extent: extent.base_offset)))
            self._take(views[key], run)
            taken += run
        self._read(taken)

    def _take(self, view: PartitionView, extents: Sequence[Extent]) -> None:
        self._extents += len(extents) - self._extents_of(view)
        self._taken[view.partition_id] = (view, tuple(extents))
        self._in_order = None

    def _read(self, extents: Iterable[Extent]) -> None:
        """Let the streams over the files cover these extents."""
        grown = self._grown(spans_of(extents))
        self._bytes += self._growth(grown)
        self._spans.update(grown)

    def _grown(self, spans: Mapping[UUID, ByteRange]) -> dict[UUID, ByteRange]:
        """Return the spans that would grow, as they would be."""
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
        """Return partitions and their extents, in section order."""
        if self._in_order is None:
            keys = sorted(self._taken, key=lambda each: (each.topic_id.int, each.partition))
            self._in_order = [self._taken[key] for key in keys]
        return self._in_order

    def cut_evenly(self) -> None:
        """Set `output_bytes` so that outputs have about equal sizes and reach the target."""
        full = self._settings.full_bytes
        taken = sum(extent.length for _, extents in self._taken.values() for extent in extents)
        pieces = max(1, taken // full)
        self.output_bytes = max(full, -(-taken // pieces))

    def deduplicates(self, view: PartitionView, extents: Sequence[Extent]) -> bool:
        """Return True if the job drops superseded records; merging and clustering never do."""
        copies = self.kind in {JobKind.MERGING, JobKind.CLUSTERING}
        return not copies and may_deduplicate(view, extents, self._now_ms)

    @property
    def exact(self) -> bool:
        """Return True if the job cleans a partition in which an earlier job left keys twice."""
        return any(
            view.exactness is not Exactness.EXACT
            and reaches_log_start(view, extents)
            and self.deduplicates(view, extents)
            for view, extents in self.partitions()
        )

    def finish(self, reason: str, score: JobScore) -> PlannedJob:
        """Return the job: inputs in commit order, extents of each in section order."""
        found = by_file(extent for _, extents in self.partitions() for extent in extents)
        inputs = [
            JobInput(
                file_id=view.file_id,
                object_name=view.object_name,
                size=view.size,
                extents=tuple(found[view.file_id]),
                is_whole=len(found[view.file_id]) == view.whole_extents,
            )
            for view in self._files.values()
            if view.file_id in found
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
            score=score,
            exact=self.exact,
            wait=self.wait,
        )


def group_neighbours(
    kind: JobKind,
    snapshot: Snapshot,
    settings: PlannerSettings,
    wanted: Iterable[tuple[PartitionView, tuple[Extent, ...]]],
) -> list[JobDraft]:
    """Return jobs of consecutive partitions in section order that fit and are near each other."""
    drafts: list[JobDraft] = []
    for view, extents in wanted:
        if not (drafts and drafts[-1].fits(view, extents) and drafts[-1].is_near(extents)):
            drafts.append(JobDraft(kind, snapshot.files, settings, snapshot.now_ms))
        drafts[-1].take(view, extents)
    return drafts


def spans_of(extents: Iterable[Extent]) -> dict[UUID, ByteRange]:
    """Return, by file, the range that a stream reads to cover the extents."""
    return {file_id: byte_range_of(found) for file_id, found in by_file(extents).items()}


def _joined(one: ByteRange | None, other: ByteRange) -> ByteRange:
    """Return the smallest range that covers both; an empty range adds nothing."""
    if one is None or not one.length:
        return other
    if not other.length:
        return one
    return ByteRange(min(one.start, other.start), max(one.end, other.end))


def reaches_log_start(view: PartitionView, extents: Sequence[Extent]) -> bool:
    """Return True if no extent of the partition is older than these."""
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
        upper_offset=extents[-1].job_end_offset,
        delete_retention_ms=view.rules.delete_retention_ms,
        max_message_bytes=view.rules.max_message_bytes,
        expires_after_ms=view.rules.expires_after_ms,
        aborted=tuple(
            each
            for each in view.aborted
            if each.last_offset >= extents[0].base_offset and each.first_offset < extents[-1].job_end_offset
        ),
        controls=tuple(
            (extent.last_offset + 1, extent.job_end_offset - 1) for extent in extents if extent.controls_after
        ),
    )
