"""Cleaning jobs: compacted partitions that are due, from their log start on, compacted files only.

What is still in ingestion files, or in another job, ends the part that can be cleaned; that part alone
decides whether the cleaning is due. So a partition with a steady stream of news is cleaned behind its tail
and never starves, and one that has just been cleaned has nothing cleanable left and rests.

A job takes neighbours: partitions that follow each other in the order of sections, so that a stream that goes
from the first wanted section of a file to the last one reads little besides. Partitions that lie so far apart
that reading what is between them costs more than another job go into another job.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.model import FileKind
from planner.dirtiness import contiguous_run, measure, takeable_extents
from planner.plan import JobKind
from planner.selection import neighbours_together

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.model import Extent
    from planner.selection import JobDraft
    from planner.settings import PlannerSettings
    from planner.snapshot import PartitionView, Snapshot


def draft_cleaning_jobs(
    snapshot: Snapshot, settings: PlannerSettings, is_taken: Callable[[Extent], bool]
) -> list[JobDraft]:
    """The cleaning jobs of a snapshot; `is_taken` tells which extents other jobs of the plan have."""
    candidates: list[tuple[PartitionView, tuple[Extent, ...]]] = []
    for view in snapshot.partitions:
        prefix = cleanable_prefix(view, snapshot.now_ms, is_taken)
        if prefix and measure(view, prefix, snapshot.now_ms, force=settings.force).due:
            candidates.append((view, prefix))
    return neighbours_together(JobKind.CLEANING, snapshot, settings, candidates)


def cleanable_prefix(
    view: PartitionView, now_ms: int, is_taken: Callable[[Extent], bool]
) -> tuple[Extent, ...]:
    """The extents from the log start on that lie in compacted files and that nobody else has."""
    if not view.rules.compacted:
        return ()
    extents = takeable_extents(view, now_ms)
    for index, extent in enumerate(extents):
        free = view.is_free(extent) and not is_taken(extent)
        if extent.file_kind is not FileKind.COMPACTED or not free:
            extents = extents[:index]
            break
    run = contiguous_run(extents)
    return run if run and run[0].base_offset <= view.state.log_start_offset else ()
