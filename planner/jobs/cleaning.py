"""Cleaning jobs: deduplicate compacted partitions that are due, in compacted files only.

An extent that is still in an ingestion file, or in another job, ends the part that can be cleaned, and that
part alone decides whether cleaning is due. So a partition with a steady stream of new records is cleaned
behind its tail and never starves, and a partition that was just cleaned has nothing cleanable left and rests.

A job takes partitions that are neighbours in section order, so that a stream from the first needed section of
a file to the last reads little else. If reading the bytes between two partitions costs more than another job,
they go into different jobs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.model import FileKind
from planner.dirtiness import contiguous_run, measure, takeable_extents
from planner.pace import cleaning_wait
from planner.plan import JobKind
from planner.selection import group_neighbours, reaches_log_start

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.model import Extent
    from planner.selection import JobDraft
    from planner.settings import PlannerSettings
    from planner.snapshot import PartitionView, Snapshot


def draft_cleaning_jobs(
    snapshot: Snapshot, settings: PlannerSettings, is_taken: Callable[[Extent], bool]
) -> list[JobDraft]:
    """Return the cleaning jobs of a snapshot; `is_taken` says which extents other jobs of the plan have."""
    candidates: list[tuple[PartitionView, tuple[Extent, ...]]] = []
    for view in snapshot.partitions:
        prefix = cleanable_prefix(view, snapshot.now_ms, is_taken)
        if prefix and measure(view, prefix, snapshot.now_ms, force=settings.force).due:
            candidates.append((view, prefix))
    drafts = group_neighbours(JobKind.CLEANING, snapshot, settings, candidates)
    for draft in drafts:
        draft.wait = cleaning_wait(draft, snapshot.now_ms, settings)
    return drafts


def cleanable_prefix(
    view: PartitionView, now_ms: int, is_taken: Callable[[Extent], bool]
) -> tuple[Extent, ...]:
    """Return the extents from the log start that are in compacted files and free."""
    if not view.rules.compacted:
        return ()
    extents = takeable_extents(view, now_ms)
    for index, extent in enumerate(extents):
        is_free = extent.file_kind is FileKind.COMPACTED and view.is_free(extent)
        if not is_free or is_taken(extent):
            extents = extents[:index]
            break
    run = contiguous_run(extents)
    return run if run and reaches_log_start(view, run) else ()
