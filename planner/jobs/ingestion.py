"""Ingestion jobs: turn files that mix all partitions into compacted files with one cleanup policy each.

Files are taken in commit order, as many as the bounds allow, with every extent that is stable and free.
Offsets of a partition rise in commit order, so its extents in a job are one range, unless an extent between
them belongs to another job. Then the job takes the range before the gap. It also takes the control batches of
transactions that follow its extents (`planner.transactions`).

Records within min.compaction.lag.ms are moved without deduplication, because files that wait for the lag
would pile up. A cleaning job deduplicates them once they are old enough.

A compacted partition that is due is cleaned at once if its whole cleanable part is in the job or compacted
already: its compacted extents join from the log start, as long as their files fit.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.grouping import by_file
from catalog.jobs.byte_ranges import byte_range_of
from catalog.model import FileKind
from planner.dirtiness import contiguous_run, measure, stable_extents, takeable_extents
from planner.pace import ingestion_wait
from planner.plan import JobKind
from planner.selection import JobDraft, reaches_log_start

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from uuid import UUID

    from catalog.model import Extent
    from planner.plan import Wait
    from planner.settings import PlannerSettings
    from planner.snapshot import FileView, PartitionView, Snapshot


def draft_ingestion_jobs(snapshot: Snapshot, settings: PlannerSettings) -> list[JobDraft]:
    """Return the ingestion jobs of a snapshot; no extent is in two of them."""
    views = {view.partition_id: view for view in snapshot.partitions}
    candidates = _candidates(snapshot)
    drafts: list[JobDraft] = []
    for group, wait in _groups(snapshot, settings, candidates):
        draft = JobDraft(JobKind.INGESTION, snapshot.files, settings, snapshot.now_ms)
        draft.wait = wait
        draft.take_runs(views, (extent for file in group for extent in candidates[file.file_id]))
        drafts.append(draft)
    for draft in drafts:
        if draft.wait is None or not settings.paced:  # a job that waits keeps no extents from others
            _join_older_extents(draft, snapshot.now_ms, settings)
    return drafts


def _candidates(snapshot: Snapshot) -> dict[UUID, list[Extent]]:
    """Return the extents that are free, by ingestion file."""
    return by_file(
        extent
        for view in snapshot.partitions
        for extent in stable_extents(view)
        if extent.file_kind is FileKind.INGESTION and view.is_free(extent)
    )


def _groups(
    snapshot: Snapshot, settings: PlannerSettings, candidates: Mapping[UUID, Sequence[Extent]]
) -> Iterator[tuple[list[FileView], Wait | None]]:
    """Yield groups of files within the bounds; the last group may have to wait for more files."""
    group: list[FileView] = []
    size = extents = 0
    for file in snapshot.files.values():
        count = len(candidates.get(file.file_id, ()))
        if not count:
            continue
        reads = byte_range_of(candidates[file.file_id]).length
        full = (
            size + reads > settings.max_job_input_bytes
            or len(group) >= settings.max_job_files
            or extents + count > settings.max_job_extents
        )
        if group and full:
            yield group, None
            group, size, extents = [], 0, 0
        group.append(file)
        size, extents = size + reads, extents + count
    if group:
        yield group, ingestion_wait(group, size, extents, snapshot.now_ms, settings)


def _join_older_extents(draft: JobDraft, now_ms: int, settings: PlannerSettings) -> None:
    """Extend the partitions that are due back to their log start, neighbours together."""
    for view, run in draft.partitions():
        whole = takeable_extents(view, now_ms)
        older = [extent for extent in whole if extent.file_kind is FileKind.COMPACTED]
        if (
            older
            and measure(view, whole, now_ms, force=settings.force).due
            and _may_be_cleaned_at_once(view, whole, run)
            and draft.fits(view, whole)
            and draft.is_near(older)
        ):
            draft.take(view, whole)


def _may_be_cleaned_at_once(view: PartitionView, whole: tuple[Extent, ...], run: tuple[Extent, ...]) -> bool:
    """Return True if every extent from the log start is in the job already, or compacted and free."""
    if len(contiguous_run(whole)) != len(whole) or not reaches_log_start(view, whole):
        return False
    if run[-1].last_offset > whole[-1].last_offset:  # some records are too young and are only copied
        return False
    mine = {extent.base_offset for extent in run}
    return all(
        extent.base_offset in mine or (extent.file_kind is FileKind.COMPACTED and view.is_free(extent))
        for extent in whole
    )
