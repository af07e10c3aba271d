"""Clustering jobs: turn short extents of neighbouring partitions into long ones.

Ingestion leaves each partition a short extent in each of many files that all partitions share. Merging whole
files makes extents longer, until the files are large or have too many extents to be merged whole. From then
on the planner looks at partitions instead of files. If a partition has more short extents than necessary, a
run of them is rewritten as one extent, together with runs of its neighbours, once the runs are long enough on
average. A stream reads only the job's range of each file, and the outputs cover only that range. So new
records are sorted by ranges of (topic, partition) while their extents grow, and a job on a few partitions
finds them in few files.

Short extents have levels by length, each `merge_fan_in` times as large as the one below. A run has at least
`merge_fan_in` extents of its highest level, so every byte of it rises by a level. That bounds how often a
byte is rewritten (`docs/explanation/planner.md`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from catalog.model import FileKind
from planner.dirtiness import contiguous_run, first_dirty_offset, spans_too_many, stable_extents
from planner.plan import JobKind
from planner.selection import group_neighbours

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from uuid import UUID

    from catalog.model import Extent
    from planner.selection import JobDraft
    from planner.settings import PlannerSettings
    from planner.snapshot import FileView, PartitionView, Snapshot

# Average length of the runs of a job, in multiples of the fan-in: neighbours wait for each other.
RUN_OF_FAN_IN: Final = 2


def draft_clustering_jobs(
    snapshot: Snapshot, settings: PlannerSettings, is_taken: Callable[[Extent], bool]
) -> list[JobDraft]:
    """Return the clustering jobs of a snapshot; `is_taken` says which extents other jobs of the plan have."""
    drafts: list[JobDraft] = []
    min_extents = RUN_OF_FAN_IN * settings.merge_fan_in
    # A partition with this many extents does not wait for its neighbours.
    busy_extents = min(2 * min_extents, settings.max_seen_extents)
    for compacted in (True, False):
        runs = [
            (view, run)
            for view in snapshot.fragmented
            if view.rules.compacted is compacted and (run := short_run(view, snapshot, settings, is_taken))
        ]
        for draft in group_neighbours(JobKind.CLUSTERING, snapshot, settings, runs):
            if draft.extents_of_each >= min_extents:
                drafts.append(draft)
            else:
                busy = [each for each in draft.partitions() if len(each[1]) >= busy_extents]
                drafts += group_neighbours(JobKind.CLUSTERING, snapshot, settings, busy)
    for draft in drafts:
        draft.cut_evenly()
    return drafts


def is_fragmented(compacted_extents: int, live_bytes: int, settings: PlannerSettings) -> bool:
    """Return True if a partition has enough extents in compacted files to be examined, by its totals."""
    return compacted_extents > live_bytes // settings.section_bytes + settings.resting_extents // 2


def is_clustered_by_range(file: FileView, settings: PlannerSettings) -> bool:
    """Return True if sections of a file are clustered by range; otherwise the whole file is merged first."""
    large = file.size * settings.merge_fan_in >= settings.full_bytes
    return large or file.extents > settings.max_merged_extents


def section_level(length: int, settings: PlannerSettings) -> int:
    """Return the level of a short extent by its length; 0 below `section_floor_bytes`."""
    level, bound = 0, settings.section_floor_bytes
    while length >= bound:
        level, bound = level + 1, bound * settings.merge_fan_in
    return level


def short_run(
    view: PartitionView, snapshot: Snapshot, settings: PlannerSettings, is_taken: Callable[[Extent], bool]
) -> tuple[Extent, ...]:
    """Return the newest run of short extents that should become one, of the highest level.

    If a plan sees the maximum number of extents, a run must justify a job by itself. If none does, take the
    longest run of any levels: otherwise extents beyond the visible ones would never be reached.
    """
    is_full = len(view.extents) >= settings.max_seen_extents
    min_extents = RUN_OF_FAN_IN * settings.merge_fan_in
    free_runs = list(_free_runs(view, snapshot.files, settings, is_taken))
    levels = sorted(
        {section_level(each.length, settings) for free_run in free_runs for each in free_run}, reverse=True
    )
    for level in levels:
        for free_run in reversed(free_runs):
            for run in reversed(list(_runs_up_to(level, free_run, view, settings, snapshot.now_ms))):
                highest = sum(1 for each in run if section_level(each.length, settings) == level)
                if highest >= settings.merge_fan_in and (not is_full or len(run) >= min_extents):
                    return tuple(run)
    if not is_full:
        return ()
    runs = [
        run for each in free_runs for run in _runs_up_to(levels[0], each, view, settings, snapshot.now_ms)
    ]
    longest = max(runs, key=len, default=[])
    return tuple(longest) if len(longest) >= min_extents else ()


def _free_runs(
    view: PartitionView,
    files: Mapping[UUID, FileView],
    settings: PlannerSettings,
    is_taken: Callable[[Extent], bool],
) -> Iterator[list[Extent]]:
    """Yield runs of adjacent short extents that a job may take.

    Clean and dirty extents stay apart: an extent with both would have to be cleaned again.
    """
    dirty_from = first_dirty_offset(view) if view.rules.compacted else 0
    free_run: list[Extent] = []
    for extent in stable_extents(view):
        usable = (
            extent.file_kind is FileKind.COMPACTED
            and extent.length < settings.section_bytes
            and extent.base_offset >= dirty_from
            and extent.file_id in files
            and is_clustered_by_range(files[extent.file_id], settings)
            and view.is_free(extent)
            and not is_taken(extent)
        )
        if free_run and not (usable and len(contiguous_run([free_run[-1], extent])) == 2):
            yield free_run
            free_run = []
        if usable:
            free_run.append(extent)
    if free_run:
        yield free_run


def _runs_up_to(
    level: int, free_run: list[Extent], view: PartitionView, settings: PlannerSettings, now_ms: int
) -> Iterator[list[Extent]]:
    """Yield parts of a run without extents above a level; none spans too much time or too many offsets."""
    run: list[Extent] = []
    oldest = newest = 0
    for extent in free_run:
        if section_level(extent.length, settings) > level:
            yield run
            run = []
            continue
        since = min(oldest, extent.min_timestamp) if run else extent.min_timestamp
        until = max(newest, extent.max_timestamp) if run else extent.max_timestamp
        too_long = run and (
            view.rules.spans_too_long(since, until, now_ms)
            or spans_too_many(run[0].base_offset, extent.job_end_offset - 1)
        )
        if too_long:
            yield run
            run, since, until = [], extent.min_timestamp, extent.max_timestamp
        run.append(extent)
        oldest, newest = since, until
    yield run
