"""Sorting jobs: short extents of neighbouring partitions become long ones, in files that cover their range.

Ingestion leaves a partition a short extent in each of many files that all partitions share. Merging whole
files makes the extents longer, until the files are large, or have too many extents to be merged whole. From
then on partitions are looked at rather than files: where one has more short extents than need be, a run of
them is written anew as one, together with runs of its neighbours, once they are long enough on average. A
stream reads of each file the range that the job covers, and nothing else; what comes out covers that range
alone. So news are sorted by ranges of (topic, partition) while their extents grow, and a job on a few
partitions finds them in few files.

Short extents have levels by their length, each `merge_fan_in` times as large as the one below. A run has
`merge_fan_in` extents at least of the highest level in it, so that every byte of it rises a level: that is
how often it is written at the most (`docs/explanation/planner.md`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from catalog.model import FileKind
from planner.dirtiness import contiguous_run, first_dirty_offset, spans_too_many, stable_extents
from planner.plan import JobKind
from planner.selection import neighbours_together

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from uuid import UUID

    from catalog.model import Extent
    from planner.selection import JobDraft
    from planner.settings import PlannerSettings
    from planner.snapshot import FileView, PartitionView, Snapshot

# So many times the fan-in are the runs of a job on average: neighbours wait for each other.
RUN_OF_FAN_IN: Final = 2


def draft_sorting_jobs(
    snapshot: Snapshot, settings: PlannerSettings, is_taken: Callable[[Extent], bool]
) -> list[JobDraft]:
    """The sorting jobs of a snapshot; `is_taken` tells which extents other jobs of the plan have."""
    worth: list[JobDraft] = []
    least = RUN_OF_FAN_IN * settings.merge_fan_in
    impatient = min(2 * least, settings.seen_extents)  # with so many, one does not wait for those that rest
    for compacted in (True, False):
        runs = [
            (view, run)
            for view in snapshot.fragmented
            if view.rules.compacted is compacted and (run := short_run(view, snapshot, settings, is_taken))
        ]
        for draft in neighbours_together(JobKind.SORTING, snapshot, settings, runs):
            if draft.extents_of_each >= least:
                worth.append(draft)
            else:
                busy = [each for each in draft.partitions() if len(each[1]) >= impatient]
                worth += neighbours_together(JobKind.SORTING, snapshot, settings, busy)
    for draft in worth:
        draft.cut_evenly()
    return worth


def is_fragmented(compacted_extents: int, live_bytes: int, settings: PlannerSettings) -> bool:
    """Whether a partition has so many extents in compacted files that it is looked at, by its sums."""
    return compacted_extents > live_bytes // settings.section_bytes + settings.resting_extents // 2


def is_sorted_by_ranges(file: FileView, settings: PlannerSettings) -> bool:
    """Whether sections of a file are sorted by ranges, rather than that it is merged as a whole first."""
    large = file.size * settings.merge_fan_in >= settings.full_bytes
    return large or file.extents > settings.most_merged_extents


def section_level(length: int, settings: PlannerSettings) -> int:
    """Which level a short extent of so many bytes is on; 0 below `section_floor_bytes`."""
    level, bound = 0, settings.section_floor_bytes
    while length >= bound:
        level, bound = level + 1, bound * settings.merge_fan_in
    return level


def short_run(
    view: PartitionView, snapshot: Snapshot, settings: PlannerSettings, is_taken: Callable[[Extent], bool]
) -> tuple[Extent, ...]:
    """The newest run of short extents that is worth being written as one, of the highest level with any.

    Where a plan sees as many extents as it may, a run must be worth a job by itself, and if none is, the
    longest of any levels will do: what lies behind those that are seen would never be.
    """
    is_full = len(view.extents) >= settings.seen_extents
    least = RUN_OF_FAN_IN * settings.merge_fan_in
    stretches = list(_stretches(view, snapshot.files, settings, is_taken))
    top = section_level(settings.section_bytes - 1, settings)
    for level in range(top, -1, -1):
        for stretch in reversed(stretches):
            for run in reversed(list(_runs_up_to(level, stretch, view, settings, snapshot.now_ms))):
                highest = sum(1 for each in run if section_level(each.length, settings) == level)
                if highest >= settings.merge_fan_in and (not is_full or len(run) >= least):
                    return tuple(run)
    if not is_full:
        return ()
    runs = [run for each in stretches for run in _runs_up_to(top, each, view, settings, snapshot.now_ms)]
    longest = max(runs, key=len, default=[])
    return tuple(longest) if len(longest) >= least else ()


def _stretches(
    view: PartitionView,
    files: Mapping[UUID, FileView],
    settings: PlannerSettings,
    is_taken: Callable[[Extent], bool],
) -> Iterator[list[Extent]]:
    """Short extents that a job may have, in runs with nothing else between them.

    What is clean stays apart from what is not: a single extent of both would have to be cleaned again.
    """
    dirty_from = first_dirty_offset(view) if view.rules.compacted else 0
    stretch: list[Extent] = []
    for extent in stable_extents(view):
        good = (
            extent.file_kind is FileKind.COMPACTED
            and extent.length < settings.section_bytes
            and extent.base_offset >= dirty_from
            and extent.file_id in files
            and is_sorted_by_ranges(files[extent.file_id], settings)
            and view.is_free(extent)
            and not is_taken(extent)
        )
        if stretch and not (good and len(contiguous_run([stretch[-1], extent])) == 2):
            yield stretch
            stretch = []
        if good:
            stretch.append(extent)
    if stretch:
        yield stretch


def _runs_up_to(
    level: int, stretch: list[Extent], view: PartitionView, settings: PlannerSettings, now_ms: int
) -> Iterator[list[Extent]]:
    """Parts of a stretch without extents above a level; none spans too much time, or too many offsets."""
    run: list[Extent] = []
    oldest = newest = 0
    for extent in stretch:
        if section_level(extent.length, settings) > level:
            yield run
            run = []
            continue
        since = min(oldest, extent.min_timestamp) if run else extent.min_timestamp
        until = max(newest, extent.max_timestamp) if run else extent.max_timestamp
        too_long = run and (
            view.rules.spans_too_long(since, until, now_ms)
            or spans_too_many(run[0].base_offset, extent.last_offset)
        )
        if too_long:
            yield run
            run, since, until = [], extent.min_timestamp, extent.max_timestamp
        run.append(extent)
        oldest, newest = since, until
    yield run
