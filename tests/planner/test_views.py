"""What jobs may take of one partition, compared with plain models of the rules.

The partitions are arbitrary: gaps and control batches between extents, offsets of the state outside of the
log, records without timestamps, open jobs, quarantine candidates, and files that are not in the snapshot.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, NamedTuple, TypeVar
from uuid import UUID

from hypothesis import example, given
from hypothesis import strategies as st

from catalog.jobs.quarantine import QuarantineCandidate
from catalog.model import Exactness, Extent, FileFormat, FileKind, PartitionState
from object_format.limits import MAX_SPAN
from planner.dirtiness import (
    contiguous_run,
    first_dirty_offset,
    may_deduplicate,
    measure,
    stable_extents,
    takeable_extents,
)
from planner.jobs.cleaning import cleanable_prefix
from planner.jobs.clustering import RUN_OF_FAN_IN, section_level, short_run
from planner.settings import PlannerSettings
from planner.snapshot import FileView, PartitionView, Snapshot
from tests.planner.model_log import NEVER_MS, NOW_MS, OPEN_JOB, topic_rules
from tests.planner.strategies import THOROUGH

if TYPE_CHECKING:
    from collections.abc import Sequence

T = TypeVar("T")

LAG_MS = 1_000
UNREADABLE = FileFormat(version=99)
SMALL_FILE, LARGE_FILE, UNKNOWN_FILE, SUSPECTED_FILE = (UUID(int=number) for number in range(1, 5))
SETTINGS = PlannerSettings(
    target_file_bytes=100, merge_fan_in=2, section_bytes=80, section_floor_bytes=20, max_plan_extents=32_000
)
# The longest of the short extents are on a level that has longer ones.
UNEVEN = replace(SETTINGS, section_bytes=79)
# A plan sees ten extents of a partition, and six of them justify a job.
TERNARY = replace(SETTINGS, target_file_bytes=150, merge_fan_in=3, section_bytes=60)
FILES = {
    file_id: FileView(
        file_id=file_id,
        object_name=str(file_id),
        size=size,
        kind=FileKind.COMPACTED,
        committed_ms=NOW_MS,
        extents=1,
        whole_extents=0,
    )
    for file_id, size in ((SMALL_FILE, 49), (LARGE_FILE, 50), (SUSPECTED_FILE, 50))
}
CANDIDATE = QuarantineCandidate(
    file_id=SUSPECTED_FILE,
    object_name=str(SUSPECTED_FILE),
    kind=FileKind.COMPACTED,
    size=50,
    committed_ms=NOW_MS,
    max_files=1,
    failures=1,
    job_id=OPEN_JOB,
    reason="a test",
    failed_ms=0,
    not_before_ms=0,
    quarantined_ms=None,
)


class Part(NamedTuple):
    """An extent to be: `gap` offsets are missing before it, and `controls` control batches follow it."""

    records: int = 1
    length: int = 10
    age_ms: int = 0
    span_ms: int = 0
    gap: int = 0
    controls: int = 0
    kind: FileKind = FileKind.COMPACTED
    file_id: UUID = LARGE_FILE
    is_claimed: bool = False
    is_readable: bool = True


def _mostly(usual: T, *others: T) -> st.SearchStrategy[T]:
    return st.sampled_from([*[usual] * 5, *others])


PARTS = st.builds(
    Part,
    records=_mostly(1, 2, 3, MAX_SPAN // 2, MAX_SPAN - 1),
    length=st.sampled_from([0, 5, 19, 20, 39, 40, 59, 60, 78, 79, 80]),
    age_ms=st.sampled_from([-250, 0, 250, LAG_MS - 1, LAG_MS, LAG_MS + 1, 5_000, NOW_MS, NOW_MS + 1]),
    span_ms=_mostly(0, 1, 250, 251, 4_000),
    gap=_mostly(0, 0, 1),
    controls=_mostly(0, 0, 1, 2),
    kind=_mostly(FileKind.COMPACTED, FileKind.INGESTION),
    file_id=_mostly(LARGE_FILE, SMALL_FILE, UNKNOWN_FILE, SUSPECTED_FILE),
    is_claimed=_mostly(False, True),
    is_readable=_mostly(True, True, False),
)
# A section can hold two of the longest.
LONG_PARTS = st.tuples(_mostly(MAX_SPAN // 2, MAX_SPAN // 2 - 1, 1, 1, 2), st.sampled_from([5, 20, 20])).map(
    lambda each: Part(records=each[0], length=each[1])
)
USUAL_PARTS = st.tuples(
    st.sampled_from([5, 5, 5, 20, 40]), st.sampled_from([0, 0, 1, 5_000]), st.sampled_from([0, 0, 251, 1_001])
).map(lambda each: Part(length=each[0], age_ms=each[1], span_ms=each[2]))


def extents_of(parts: Sequence[Part], start: int) -> tuple[Extent, ...]:
    found: list[Extent] = []
    base = start
    for part in parts:
        base += part.gap
        newest = NOW_MS - part.age_ms
        found.append(
            Extent(
                topic_id=UUID(int=1),
                partition=0,
                base_offset=base,
                last_offset=base + part.records - 1,
                record_count=part.records,
                min_timestamp=newest - part.span_ms,
                max_timestamp=newest,
                file_id=part.file_id,
                object_name=str(part.file_id),
                file_kind=part.kind,
                position=0,
                length=part.length,
                index_position=0,
                index_length=0,
                offset_shift=0,
                leader_epoch=0,
                unique_keys=False,
                committed_ms=NOW_MS,
                claimed_by=OPEN_JOB if part.is_claimed else None,
                format=FileFormat() if part.is_readable else UNREADABLE,
                controls_after=part.controls,
            )
        )
        base = found[-1].job_end_offset
    return tuple(found)


def _near(draw: st.DrawFn, extents: Sequence[Extent]) -> int:
    """Draw an offset at or near the borders of the extents."""
    borders = [each for one in extents for each in (one.base_offset, one.last_offset + 1)] or [0]
    return draw(st.sampled_from(borders)) + draw(st.sampled_from([0, 0, -1, 1, 5]))


@st.composite
def views(draw: st.DrawFn) -> PartitionView:
    part = draw(st.sampled_from([USUAL_PARTS, USUAL_PARTS, LONG_PARTS, PARTS, PARTS]))
    is_usual = part is not PARTS
    extents = extents_of(draw(st.lists(part, max_size=12)), draw(st.integers(0, 3)))
    end = extents[-1].job_end_offset if extents else 0
    state = PartitionState(
        topic_id=UUID(int=1),
        partition=0,
        log_start_offset=0 if is_usual else min(max(0, _near(draw, extents[:2])), end),
        last_stable_offset=end if is_usual else draw(st.sampled_from([end, end, _near(draw, extents)])),
        high_watermark=end,
        log_end_offset=end,
        first_dirty_offset=draw(st.sampled_from([0, _near(draw, extents)])),
        leader_epoch=0,
    )
    rules = topic_rules(
        0,
        cleanup_policy=draw(st.sampled_from(["compact", "compact", "compact,delete", "delete"])),
        min_compaction_lag_ms=draw(st.sampled_from([0, -1, 1, LAG_MS, LAG_MS])),
        max_compaction_lag_ms=draw(st.sampled_from([NEVER_MS, 0, -1, LAG_MS, 5_000])),
        min_cleanable_dirty_ratio=draw(st.sampled_from([0.0, 0.5, 1.0])),
        retention_ms=draw(st.sampled_from([-1, 0, 4_000, 4_000])),
    )
    return PartitionView(
        rules=rules,
        state=state,
        extents=extents,
        quarantine_candidates={SUSPECTED_FILE: CANDIDATE},
        exactness=draw(st.sampled_from([Exactness.EXACT, *Exactness])),
    )


def _recorded_dirty_start(view: PartitionView) -> int:
    recorded, start = view.state.first_dirty_offset, view.state.log_start_offset
    return recorded if recorded in range(start, view.state.log_end_offset + 1) else start


def _dirty_start(view: PartitionView) -> int:
    is_incomplete = view.exactness is Exactness.DEDUP_INCOMPLETE
    return view.state.log_start_offset if is_incomplete else _recorded_dirty_start(view)


def _is_too_young(view: PartitionView, extent: Extent) -> bool:
    lag = view.rules.min_compaction_lag_ms
    has_dirty_offset = extent.last_offset >= _dirty_start(view)
    is_young = extent.max_timestamp > NOW_MS - lag
    return "compact" in view.rules.cleanup_policy and lag > 0 and has_dirty_offset and is_young


def _stable(view: PartitionView) -> tuple[Extent, ...]:
    return tuple(each for each in view.extents if each.last_offset < view.state.last_stable_offset)


def _takeable(view: PartitionView) -> tuple[Extent, ...]:
    return tuple(takewhile(lambda each: not _is_too_young(view, each), _stable(view)))


def _fits_section(extents: Sequence[Extent]) -> bool:
    return extents[-1].job_end_offset - extents[0].base_offset <= MAX_SPAN


def _adjacent(extents: Sequence[Extent]) -> tuple[Extent, ...]:
    """Return the longest prefix without a gap that one section can hold, at least the first extent."""
    for count in range(len(extents), 1, -1):
        prefix = extents[:count]
        ends = [each.job_end_offset for each in prefix[:-1]]
        if ends == [each.base_offset for each in prefix[1:]] and _fits_section(prefix):
            return tuple(prefix)
    return tuple(extents[:1])


def _is_free(extent: Extent) -> bool:
    return extent.claimed_by is None and extent.file_id != SUSPECTED_FILE and extent.format is not UNREADABLE


@THOROUGH
@given(views())
def test_a_job_takes_stable_extents_and_deduplicates_old_ones(view: PartitionView) -> None:
    assert first_dirty_offset(view) == _dirty_start(view)
    assert stable_extents(view) == _stable(view)
    assert takeable_extents(view, NOW_MS) == _takeable(view)
    for count in range(1, len(view.extents) + 1):
        is_allowed = "compact" in view.rules.cleanup_policy and count <= len(_takeable(view))
        assert may_deduplicate(view, view.extents[:count], NOW_MS) is is_allowed


def view_of(*parts: Part) -> PartitionView:
    """Return a partition of a topic that is not compacted; all of it is stable."""
    extents = extents_of(parts, 0)
    end = extents[-1].job_end_offset
    state = PartitionState(
        topic_id=UUID(int=1),
        partition=0,
        log_start_offset=0,
        last_stable_offset=end,
        high_watermark=end,
        log_end_offset=end,
        first_dirty_offset=0,
        leader_epoch=0,
    )
    return PartitionView(rules=topic_rules(0, cleanup_policy="delete"), state=state, extents=extents)


HALF = MAX_SPAN // 2


@THOROUGH
@given(views())
@example(view_of(*[Part(records=count) for count in (HALF, HALF, 1)]))
@example(view_of(Part(records=HALF), Part(records=HALF - 1, controls=1), Part()))
@example(view_of(Part(records=HALF), Part(records=HALF, controls=1)))
def test_a_range_of_a_job_has_no_gap_and_fits_into_a_section(view: PartitionView) -> None:
    for start in range(len(view.extents) + 1):
        assert contiguous_run(view.extents[start:]) == _adjacent(view.extents[start:])


@THOROUGH
@given(views(), st.booleans())
def test_dirtiness_is_a_sum_over_extents(view: PartitionView, force: bool) -> None:
    for count in range(len(view.extents) + 1):
        _check_dirtiness(view, view.extents[:count], force=force)


def _check_dirtiness(view: PartitionView, extents: Sequence[Extent], *, force: bool) -> None:
    covers = bool(extents) and extents[-1].last_offset + 1 >= view.state.first_dirty_offset
    is_incomplete = view.exactness is Exactness.DEDUP_INCOMPLETE and (
        covers or view.state.first_dirty_offset <= 0
    )
    start = _dirty_start(view) if is_incomplete else _recorded_dirty_start(view)
    dirty = [each for each in extents if each.last_offset >= start]
    total, dirty_bytes = sum(each.length for each in extents), sum(each.length for each in dirty)
    times = [each.min_timestamp for each in dirty if each.min_timestamp >= 1]
    lag = max(0, view.rules.max_compaction_lag_ms)
    overdue_ms = max([0, *(NOW_MS - lag - time for time in times)])
    found = measure(view, extents, NOW_MS, force=force)
    assert (found.clean_bytes, found.cleanable_bytes) == (total - dirty_bytes, dirty_bytes)
    assert found.overdue_ms == overdue_ms
    assert found.ratio == (dirty_bytes / total if total else 0)
    is_dirty_enough = found.ratio > view.rules.min_cleanable_dirty_ratio
    is_wanted = force or is_incomplete or is_dirty_enough or overdue_ms > 0
    assert found.due is (is_wanted and dirty_bytes > 0 and "compact" in view.rules.cleanup_policy)


@THOROUGH
@given(views(), st.sets(st.integers(0, 12), max_size=1))
def test_cleaning_takes_free_compacted_extents_from_the_log_start(
    view: PartitionView, taken: set[int]
) -> None:
    usable = takewhile(
        lambda each: (
            each.file_kind is FileKind.COMPACTED and _is_free(each) and each.base_offset not in taken
        ),
        _takeable(view),
    )
    expected = _adjacent(tuple(usable))
    if "compact" not in view.rules.cleanup_policy or (
        expected and expected[0].base_offset > view.state.log_start_offset
    ):
        expected = ()
    assert cleanable_prefix(view, NOW_MS, lambda each: each.base_offset in taken) == expected


def _free_runs(view: PartitionView, taken: set[int], settings: PlannerSettings) -> list[list[Extent]]:
    dirty_start = _dirty_start(view) if "compact" in view.rules.cleanup_policy else 0

    def is_usable(extent: Extent) -> bool:
        return (
            extent.file_kind is FileKind.COMPACTED
            and extent.length < settings.section_bytes
            and extent.base_offset >= dirty_start
            and extent.file_id == LARGE_FILE
            and _is_free(extent)
            and extent.base_offset not in taken
        )

    runs: list[list[Extent]] = []
    for usable, group in groupby(_stable(view), key=is_usable):
        extents = list(group) if usable else []
        while extents:
            count = 1
            while count < len(extents) and len(_adjacent(extents[count - 1 : count + 1])) == 2:
                count += 1
            runs.append(extents[:count])
            extents = extents[count:]
    return runs


def _is_allowed(view: PartitionView, run: Sequence[Extent]) -> bool:
    """Return True if one extent may hold the records of these."""
    oldest, newest = min(each.min_timestamp for each in run), max(each.max_timestamp for each in run)
    span = newest - oldest
    if "delete" in view.rules.cleanup_policy and 0 <= view.rules.retention_ms // 4 < span:
        return False
    lag = view.rules.min_compaction_lag_ms if "compact" in view.rules.cleanup_policy else 0
    return _fits_section(run) and not (lag > 0 and span > lag // 4 and newest > NOW_MS - lag)


def _parts_of(
    view: PartitionView, run: Sequence[Extent], level: int, settings: PlannerSettings
) -> list[list[Extent]]:
    """Cut a run at extents above the level, and where one extent could not hold the records."""
    parts: list[list[Extent]] = []
    for is_low, group in groupby(run, key=lambda each: section_level(each.length, settings) <= level):
        extents = list(group) if is_low else []
        while extents:
            count = 1
            while count < len(extents) and _is_allowed(view, extents[: count + 1]):
                count += 1
            parts.append(extents[:count])
            extents = extents[count:]
    return parts


@THOROUGH
@given(
    views(),
    st.sets(st.integers(0, 12), max_size=1),
    st.sampled_from([SETTINGS, SETTINGS, UNEVEN, TERNARY]),
)
@example(view_of(*[Part(length=length) for length in (40, 5, 20, 5, 40, 20, 5, 40)]), set(), SETTINGS)
@example(view_of(*[Part(length=20, records=count) for count in (HALF, HALF, 1)]), set(), SETTINGS)
@example(view_of(*[Part(length=length) for length in (5, 5, 5, 5, 5, 500, 40, 40, 40, 40)]), set(), SETTINGS)
# A plan sees all eight extents that it may, and the longest run has four, three, or an extent less.
@example(view_of(*[Part(length=length) for length in (5, 40, 5, 20, 80, 5, 80, 5)]), set(), SETTINGS)
@example(view_of(*[Part(length=length) for length in (5, 20, 5, 80, 5, 20, 5, 80)]), set(), SETTINGS)
@example(view_of(*[Part(length=length) for length in (5, 40, 5, 20, 80, 5, 80)]), set(), SETTINGS)
# The older run justifies a job, and the newer one is longer.
@example(view_of(*[Part(length=length) for length in (20, 5, 20, 5, 80, 5, 40, 5, 20, 5)]), set(), SETTINGS)
# Five extents of ten justify no job with a fan-in of three.
@example(view_of(*[Part(length=length) for length in (20, 20, 20, 5, 5, *[60] * 5)]), set(), TERNARY)
@example(view_of(*[Part(length=length) for length in (78, 78, 79, 79)]), set(), UNEVEN)
def test_clustering_takes_the_newest_run_of_the_highest_level(
    view: PartitionView, taken: set[int], settings: PlannerSettings
) -> None:
    """If all that a plan sees is in runs that justify no job, it takes the longest."""
    snapshot = Snapshot(now_ms=NOW_MS, partitions=(view,), files=FILES)
    free_runs = _free_runs(view, taken, settings)
    is_full = len(view.extents) >= settings.max_seen_extents
    least = RUN_OF_FAN_IN * settings.merge_fan_in
    top = section_level(settings.section_bytes - 1, settings)
    justified = [
        (level, part[0].base_offset, part)
        for level in range(top + 1)
        for run in free_runs
        for part in _parts_of(view, run, level, settings)
        if sum(section_level(each.length, settings) == level for each in part) >= settings.merge_fan_in
        and (len(part) >= least or not is_full)
    ]
    expected = max(justified, default=(0, 0, []), key=lambda each: each[:2])[2]
    if not expected and is_full:
        parts = [part for run in free_runs for part in _parts_of(view, run, top, settings)]
        longest = max(parts, default=[], key=len)
        expected = longest if len(longest) >= least else []
    assert list(short_run(view, snapshot, settings, lambda each: each.base_offset in taken)) == expected
