"""One job while it is being put together: its files, its extents, and the bounds on both."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.model import JobInput, JobPartition
from planner.dirtiness import may_deduplicate
from planner.plan import JobKind, PlannedJob

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from catalog.model import Extent, PartitionId
    from planner.settings import PlannerSettings
    from planner.snapshot import FileView, PartitionView
    from planner.worth import JobWorth


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
        self._used: set[UUID] = set()
        self._bytes = 0
        self._extents = 0
        self.output_bytes = settings.full_bytes
        self.dead_bytes = 0

    @property
    def file_count(self) -> int:
        """How many files the job would read."""
        return len(self._used)

    @property
    def oldest_ms(self) -> int:
        """When the oldest of the files was committed."""
        return min(self._files[each].committed_ms for each in self._used)

    @property
    def file_bytes(self) -> int:
        """How many bytes one stream over every file would read."""
        return self._bytes

    def fits(self, view: PartitionView, extents: Sequence[Extent]) -> bool:
        """Whether the job stays within its bounds when `take` is called with the same.

        Files that are read anyway cost nothing more, even in a job that one partition has made too large.
        """
        if not self._used:
            return True
        limits = self._settings
        more = {extent.file_id for extent in extents} - self._used
        size = self._bytes + sum(self._files[each].size for each in more)
        files = len(self._used) + len(more)
        readable = not more or (size <= limits.max_job_input_bytes and files <= limits.max_job_files)
        return readable and self._extents + len(extents) - self._extents_of(view) <= limits.max_job_extents

    def take(self, view: PartitionView, extents: Sequence[Extent]) -> None:
        """Put these extents of one partition into the job, in place of those it took before."""
        self._extents += len(extents) - self._extents_of(view)
        self._taken[view.partition_id] = (view, tuple(extents))
        self._in_order = None
        more = {extent.file_id for extent in extents} - self._used
        self._used |= more
        self._bytes += sum(self._files[each].size for each in more)

    def _extents_of(self, view: PartitionView) -> int:
        return len(self._taken[view.partition_id][1]) if view.partition_id in self._taken else 0

    def partitions(self) -> list[tuple[PartitionView, tuple[Extent, ...]]]:
        """What was taken, in section order."""
        if self._in_order is None:
            keys = sorted(self._taken, key=lambda each: (each.topic_id.int, each.partition))
            self._in_order = [self._taken[key] for key in keys]
        return self._in_order

    def deduplicates(self, view: PartitionView, extents: Sequence[Extent]) -> bool:
        """Whether the job drops superseded records of a partition; merging never does."""
        return self.kind is not JobKind.MERGING and may_deduplicate(view, extents, self._now_ms)

    def finish(self, reason: str, worth: JobWorth) -> PlannedJob:
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
        )


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
    )
