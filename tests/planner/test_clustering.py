"""Short extents of neighbouring partitions become long ones, so many times and no oftener."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from catalog.model import PartitionId
from object_format.limits import MAX_SPAN
from planner.clustering import section_level, short_run
from planner.plan import JobKind, Verdict
from planner.planner import plan, plan_and_submit
from planner.policy import make_plan
from planner.settings import MIB, PlannerSettings
from planner.snapshot_loader import load_snapshot
from tests.planner.model_log import Chunk, ModelLog, topic_rules

if TYPE_CHECKING:
    from tests.planner.system import System

# Files are large from the first byte on, so that none is merged as a whole.
SORTED = PlannerSettings(
    target_file_bytes=1, merge_fan_in=2, section_bytes=80, section_floor_bytes=20, min_dead_bytes=MIB
)
LEVELS = section_level(SORTED.section_bytes - 1, SORTED) + 1


def plain_log(partitions: int = 1, **rules: object) -> tuple[ModelLog, list[PartitionId]]:
    log = ModelLog(
        rules=[topic_rules(0, **{"cleanup_policy": "delete", **rules})],
        partition_count=partitions,
        kept_percent=100,
    )
    return log, sorted(log.extents)


def settle(log: ModelLog, settings: PlannerSettings = SORTED) -> list[JobKind]:
    """Plan and compact until nothing is left; the kinds of the jobs that took."""
    done: list[JobKind] = []
    for _ in range(100):
        jobs = make_plan(log.snapshot(settings), settings).jobs
        if not jobs:
            return done
        for job in jobs:
            done.append(job.kind)
            log.apply(job)
    raise AssertionError("planning does not come to rest")


def test_levels_are_those_of_the_settings() -> None:
    assert [section_level(length, SORTED) for length in (0, 19, 20, 39, 40, 79)] == [0, 0, 1, 1, 2, 2]
    assert (LEVELS, SORTED.resting_extents) == (3, 3)
    assert PlannerSettings().resting_extents == 21


def test_neighbours_with_more_short_extents_than_need_be_are_written_together() -> None:
    """One job for all of them, one extent for each; and not before there are too many."""
    log, keys = plain_log(partitions=5)
    for number in range(4):
        log.append({key: Chunk(records=1, length=5) for key in keys})
        assert settle(log) == [JobKind.INGESTION] + [JobKind.CLUSTERING] * (number == 3)
    assert {len(extents) for extents in log.extents.values()} == {1}
    assert all(extents[0].length == 20 for extents in log.extents.values())


def test_a_job_reads_of_each_file_the_range_of_its_partitions() -> None:
    """What others have in the old files stays there."""
    log, keys = plain_log(partitions=6)
    for number in range(4):
        held = keys if number == 0 else keys[2:4]
        log.append({key: Chunk(records=1, length=5) for key in held})
        for job in make_plan(log.snapshot(), SORTED).jobs:
            log.apply(replace(job, output_bytes=MIB))
    (job,) = make_plan(log.snapshot(SORTED), SORTED).jobs
    assert (job.kind, [part.partition for part in job.partitions]) == (JobKind.CLUSTERING, [2, 3])
    assert (job.input_bytes, job.taken_bytes) == (40, 40)
    assert {each.verdict for each in make_plan(log.snapshot(SORTED), SORTED).decisions} >= {Verdict.MERGE}
    assert "8 short extents in 4 compacted files" in job.reason


def test_small_files_of_few_extents_are_merged_as_a_whole_and_wide_ones_sorted() -> None:
    """A plan that has no room for as many files as the fan-in looks at their partitions instead."""
    for room, kind in ((10_000, JobKind.MERGING), (16, JobKind.CLUSTERING)):
        settings = replace(SORTED, target_file_bytes=10_000, level_floor_bytes=10, max_plan_extents=room)
        log, keys = plain_log(partitions=5)
        kinds = set()
        for _ in range(5):
            log.append({key: Chunk(records=1, length=5) for key in keys})
            kinds |= set(settle(log, settings))
        assert kinds == {JobKind.INGESTION, kind}


def test_what_is_clean_is_not_joined_with_what_is_dirty() -> None:
    log, (key,) = plain_log(cleanup_policy="compact", min_cleanable_dirty_ratio=1.0)
    for _ in range(9):
        log.append({key: Chunk(records=1, length=5)})
        for job in make_plan(log.snapshot(), SORTED).jobs:
            log.apply(job)
    log.first_dirty[key] = 2
    settle(log)
    assert [extent.base_offset for extent in log.extents[key]] == [0, 1, 2]


def test_a_sorted_extent_spans_a_quarter_of_retention_at_the_most() -> None:
    log, (key,) = plain_log(retention_ms=4_000)
    for _ in range(24):
        log.append({key: Chunk(records=1, length=5)})
        settle(log)
        log.now_ms += 200
    spans = [extent.max_timestamp - extent.min_timestamp for extent in log.extents[key]]
    assert 0 < max(spans) <= 1_000


def test_a_sorted_extent_spans_no_more_offsets_than_a_section_may() -> None:
    log, (key,) = plain_log()
    for _ in range(24):
        log.append({key: Chunk(records=MAX_SPAN // 6 + 1, length=5)})
        settle(log)
    spans = [extent.last_offset + 1 - extent.base_offset for extent in log.extents[key]]
    assert MAX_SPAN // 3 < max(spans) <= MAX_SPAN


def test_what_another_job_has_ends_a_run() -> None:
    log, (key,) = plain_log()
    for _ in range(7):
        log.append({key: Chunk(records=1, length=5)})
        for job in make_plan(log.snapshot(), SORTED).jobs:
            log.apply(job)
    log.claimed = {(key, 4)}
    view = log.fragmented(SORTED)[0]
    run = short_run(view, log.snapshot(SORTED), SORTED, lambda extent: extent.base_offset == 1)
    assert [extent.base_offset for extent in run] == [5, 6]


def test_a_busy_partition_does_not_wait_for_neighbours_that_rest() -> None:
    """Their few short extents would hold the average of a job down for ever."""
    log, keys = plain_log(partitions=5)
    for number in range(8):
        log.append({key: Chunk(records=1, length=5) for key in (keys if number < 2 else keys[2:3])})
        for job in make_plan(log.snapshot(), SORTED).jobs:
            log.apply(replace(job, output_bytes=MIB))
    (job,) = make_plan(log.snapshot(SORTED), SORTED).jobs
    assert [part.partition for part in job.partitions] == [2]
    assert len(log.extents[keys[2]]) == 8
    log.apply(job)
    assert len(log.extents[keys[2]]) == 1


def test_a_plan_that_sees_nothing_worth_while_takes_the_longest_run_that_it_sees() -> None:
    """Lengths in the worst order: whatever a plan may look at has too few extents of each level."""
    settings = replace(SORTED, merge_fan_in=3, section_bytes=180)
    log, (key,) = plain_log()
    for length in (100, 5, 5, 30, 5, 5, 30, 5, 5) * 6:
        log.append({key: Chunk(records=1, length=length)})
        settle(log, settings)
    assert len(log.extents[key]) < 2 * settings.max_seen_extents


def test_a_sorted_extent_lets_no_record_wait_much_longer_for_its_cleaning() -> None:
    """What min.compaction.lag.ms keeps from being cleaned is joined over a quarter of it at the most."""
    log, (key,) = plain_log(
        cleanup_policy="compact", min_cleanable_dirty_ratio=1.0, min_compaction_lag_ms=4_000
    )
    for _ in range(16):
        log.append({key: Chunk(records=1, length=5)})
        settle(log)
        young = [each for each in log.extents[key] if each.max_timestamp > log.now_ms - 4_000]
        assert max(each.max_timestamp - each.min_timestamp for each in young) <= 1_000
        log.now_ms += 200
    assert len(log.extents[key]) < 16


APPENDS = st.lists(
    st.dictionaries(st.integers(0, 2), st.sampled_from([1, 5, 19, 20, 30, 70, 200]), min_size=1), max_size=40
)


@given(APPENDS, st.integers(2, 4))
def test_no_byte_is_sorted_more_often_than_the_bound_says(appends: list[dict[int, int]], fan_in: int) -> None:
    """Planning ends after each append, within the bounds of docs/explanation/planner.md."""
    settings = replace(SORTED, merge_fan_in=fan_in, section_bytes=20 * fan_in**2)
    log, keys = plain_log(partitions=3)
    ingested = extents = most = 0
    for lengths in appends:
        log.append({keys[number]: Chunk(records=1, length=size) for number, size in lengths.items()})
        ingested, extents = ingested + sum(lengths.values()), extents + len(lengths)
        most = max(most, *map(len, log.extents.values()))
        settle(log, settings)
    floor = settings.section_floor_bytes * fan_in / (fan_in - 1) * extents
    if most >= settings.max_seen_extents:  # in no good order
        floor += settings.section_bytes * 2 * fan_in / (2 * fan_in - 1) * extents
    assert log.written.get(JobKind.CLUSTERING, 0) <= (LEVELS - 1) * ingested + floor
    for held in log.extents.values():
        long = sum(1 for extent in held if extent.length >= settings.section_bytes)
        assert len(held) < (1 + long) * fan_in**LEVELS
        assert len(held) - long <= settings.max_seen_extents + 2 * fan_in * (1 + long)


@given(st.integers(1, 120), st.integers(2, 5), st.sampled_from([1, 7, 19, 25]))
def test_steady_news_leave_fewer_extents_than_the_fan_in_on_each_level(
    appends: int, fan_in: int, length: int
) -> None:
    """Beside those that are long: so many rows has the catalog for a partition, however long it goes on."""
    settings = replace(SORTED, merge_fan_in=fan_in, section_bytes=20 * fan_in**2)
    log, (key,) = plain_log()
    for _ in range(appends):
        log.append({key: Chunk(records=1, length=length)})
        settle(log, settings)
    long = sum(1 for extent in log.extents[key] if extent.length >= settings.section_bytes)
    waiting = 2 * fan_in + appends * length // settings.section_bytes
    assert len(log.extents[key]) - long <= settings.resting_extents + waiting


SHORT = PlannerSettings(merge_fan_in=2, target_file_bytes=1, section_floor_bytes=MIB // 2, min_dead_bytes=MIB)
UNSORTED = replace(SHORT, section_bytes=1)


def test_short_extents_of_a_real_catalog_are_sorted_and_read_as_before(system: System) -> None:
    plain = system.topic("plain", 3, cleanup_policy="delete")
    table = system.topic("table", 2, cleanup_policy="compact", min_cleanable_dirty_ratio="1.0")
    keys = [PartitionId(topic.topic_id, number) for topic in (plain, table) for number in (0, 1)]
    for number in range(5):
        system.produce({key: [(b"k%d" % number, b"%d" % number)] * 2 for key in keys})
        plan_and_submit(system.catalog, system.clock, system.ids, UNSORTED)
        system.run_jobs()
    before = [[record.value for record in system.read_log(key)] for key in keys]
    snapshot = load_snapshot(system.catalog, system.clock.now_ms(), SHORT)
    assert [view.partition_id for view in snapshot.fragmented] == sorted(keys)
    jobs = plan(system.catalog, system.clock, SHORT).jobs
    assert [job.kind for job in jobs] == [JobKind.CLUSTERING] * 2
    plan_and_submit(system.catalog, system.clock, system.ids, SHORT)
    system.run_jobs()
    assert [[record.value for record in system.read_log(key)] for key in keys] == before
    sizes = system.catalog.planning.partition_sizes([plain.topic_id, table.topic_id])
    assert max(size.compacted_extents for size in sizes) <= 2
    assert plan(system.catalog, system.clock, SHORT).jobs == ()
