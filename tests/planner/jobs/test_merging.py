"""Small compacted files are merged, mostly dead ones are rewritten, and both come to an end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.model import PartitionId
from core.errors import InvalidInputError
from core.quantities import human_bytes
from object_format.limits import MAX_SPAN
from planner.jobs.merging import level_of
from planner.plan import JobKind, Verdict
from planner.planner import plan, plan_and_submit, submit
from planner.policy import make_plan
from planner.settings import PlannerSettings
from planner.snapshot_loader import load_snapshot
from tests.planner.model_log import NEVER_MS, Chunk, ModelLog, topic_rules

if TYPE_CHECKING:
    from catalog.model import Extent
    from tests.planner.system import System

SMALL = PlannerSettings(
    target_file_bytes=1_000, merge_fan_in=3, level_floor_bytes=10, min_dead_bytes=1, dead_share=0.5
)


def make_log(partitions: int = 2, **rules: object) -> tuple[ModelLog, list[PartitionId]]:
    log = ModelLog(
        rules=[topic_rules(0, cleanup_policy="delete", **rules)], partition_count=partitions, kept_percent=100
    )
    return log, sorted(log.extents)


def compact_until_stable(log: ModelLog, settings: PlannerSettings) -> Counter[JobKind]:
    """Plan and compact until no job is planned; count the jobs by kind."""
    done: Counter[JobKind] = Counter()
    for _ in range(100):
        jobs = make_plan(log.snapshot(settings), settings).jobs
        if not jobs:
            return done
        for job in jobs:
            done[job.kind] += 1
            log.apply(job)
    raise AssertionError("planning does not come to an end")


def compacted_sizes(log: ModelLog) -> list[int]:
    return sorted(each.live_bytes for each in log.mergeable(None))


def test_small_files_are_merged_when_they_reach_the_fan_in() -> None:
    log, keys = make_log()
    for number in range(1, 7):
        log.append({key: Chunk(records=2, length=20) for key in keys})
        merged = compact_until_stable(log, SMALL)[JobKind.MERGING]
        assert merged == (number % 3 == 0)
    assert compacted_sizes(log) == [120, 120]
    assert [len(extents) for extents in log.extents.values()] == [2, 2]


def test_large_files_are_not_merged_and_outputs_cover_ranges_of_partitions() -> None:
    log, keys = make_log(partitions=4)
    for _ in range(9):
        log.append({key: Chunk(records=2, length=100) for key in keys})
        compact_until_stable(log, SMALL)
    assert all(size >= SMALL.full_bytes for size in compacted_sizes(log)[1:])
    partitions = [{extent.partition for extent in each.extents} for each in log.mergeable(None)]
    assert all(max(part) - min(part) + 1 == len(part) for part in partitions)


def test_files_of_the_highest_level_are_merged() -> None:
    """They are below the target, and two of them reach it."""
    log, (key, _) = make_log()
    assert level_of(850, SMALL) == level_of(SMALL.full_bytes, SMALL)
    for _ in range(2):
        log.append({key: Chunk(records=2, length=850)})
        compact_until_stable(log, replace(SMALL, max_job_files=1))
    assert compacted_sizes(log) == [850, 850]
    assert compact_until_stable(log, SMALL) == {JobKind.MERGING: 1}


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_larger_file_is_not_rewritten_with_smaller_ones(policy: str) -> None:
    log = ModelLog(
        rules=[topic_rules(0, cleanup_policy=policy, min_cleanable_dirty_ratio=1.0)],
        partition_count=2,
        kept_percent=100,
    )
    key, other = sorted(log.extents)
    log.append({other: Chunk(records=2, length=40)})
    compact_until_stable(log, SMALL)
    for _ in range(3):
        log.append({key: Chunk(records=2, length=5)})
        compact_until_stable(log, replace(SMALL, merge_fan_in=9))
    assert compacted_sizes(log) == [5, 5, 5, 40]
    (job,) = make_plan(log.snapshot(SMALL), SMALL).jobs
    assert (job.kind, job.taken_bytes) == (JobKind.MERGING, 15)


def test_a_merging_job_has_at_most_max_job_extents() -> None:
    log, keys = make_log()
    for _ in range(6):
        log.append({key: Chunk(records=2, length=20) for key in keys})
        compact_until_stable(log, replace(SMALL, merge_fan_in=9))
    narrow = replace(SMALL, merge_fan_in=2, max_job_extents=4)
    jobs = make_plan(log.snapshot(narrow), narrow).jobs
    assert [sum(len(each.extents) for each in job.inputs) for job in jobs] == [4, 4, 4]


def test_a_merging_job_may_read_exactly_max_job_input_bytes() -> None:
    log, (key, _) = make_log()
    for _ in range(3):
        log.append({key: Chunk(records=2, length=20)})
        compact_until_stable(log, replace(SMALL, merge_fan_in=9))
    for limit, files in ((60, 3), (59, 2)):
        narrow = replace(SMALL, max_job_input_bytes=limit)
        (job, *_) = make_plan(log.snapshot(narrow), narrow).jobs
        assert (job.kind, len(job.inputs)) == (JobKind.MERGING, files)


@pytest.mark.parametrize(("more", "left"), [(0, 1), (1, 2)])
def test_a_merged_extent_spans_as_many_offsets_as_a_section_may(more: int, left: int) -> None:
    log, (key, _) = make_log()
    for records in (MAX_SPAN - 5, 5 + more):
        log.append({key: Chunk(records=records, length=20)})
        compact_until_stable(log, replace(SMALL, merge_fan_in=9))
    compact_until_stable(log, replace(SMALL, merge_fan_in=2))
    assert len(log.extents[key]) == left


def test_files_with_extents_in_between_are_not_merged() -> None:
    log, (key, other) = make_log()
    for length in (20, 5_000, 20, 5_000, 20):
        log.append({key: Chunk(records=2, length=length)})
        compact_until_stable(log, SMALL)
    assert make_plan(log.snapshot(SMALL), SMALL).jobs == ()
    log.append({other: Chunk(records=2, length=20)})
    log.append({other: Chunk(records=2, length=20)})
    for job in make_plan(log.snapshot(SMALL), SMALL).jobs:
        log.apply(job)
    compact_until_stable(log, SMALL)
    assert [extent.length for extent in log.extents[key]] == [20, 5_000, 20, 5_000, 20]


def test_a_merged_extent_spans_at_most_a_quarter_of_retention() -> None:
    log, (key, _) = make_log(retention_ms=4_000)
    for _ in range(12):
        log.append({key: Chunk(records=1, length=20)})
        compact_until_stable(log, SMALL)
        log.now_ms += 400
    spans = [extent.max_timestamp - extent.min_timestamp for extent in log.extents[key]]
    assert max(spans) == 800
    assert len(spans) == 4


def test_a_mostly_dead_file_is_rewritten_once() -> None:
    log, (key, other) = make_log()
    log.append({key: Chunk(records=2, length=500), other: Chunk(records=2, length=400)})
    compact_until_stable(log, SMALL)
    log.extents[key].clear()
    assert compact_until_stable(log, SMALL) == {JobKind.MERGING: 1}
    (file,) = log.mergeable(None)
    assert (file.live_bytes, file.dead_bytes) == (400, 0)


def test_a_file_with_little_dead_data_is_not_rewritten() -> None:
    log, (key, other) = make_log()
    log.append({key: Chunk(records=2, length=300), other: Chunk(records=2, length=500)})
    compact_until_stable(log, SMALL)
    log.extents[key].clear()
    assert compact_until_stable(log, SMALL) == {}


def test_levels_of_files_grow_by_the_fan_in() -> None:
    assert [level_of(size, SMALL) for size in (0, 9, 10, 29, 30, 89, 90, 270)] == [0, 0, 1, 1, 2, 2, 3, 4]


LENGTHS = st.lists(
    st.dictionaries(st.integers(0, 2), st.sampled_from([10, 15, 40, 120, 1_500]), min_size=1), max_size=40
)


@given(LENGTHS, st.integers(2, 4), st.sampled_from([300, 1_000, 4_000]))
def test_rewrites_by_merging_are_bounded(appends: list[dict[int, int]], fan_in: int, target: int) -> None:
    """Planning ends after each append, within the bounds of docs/explanation/planner.md."""
    settings = PlannerSettings(
        target_file_bytes=target, merge_fan_in=fan_in, level_floor_bytes=10, min_dead_bytes=1
    )
    log, keys = make_log(partitions=3)
    ingested = 0
    for lengths in appends:
        log.append({keys[number]: Chunk(records=1, length=size) for number, size in lengths.items()})
        ingested += sum(lengths.values())
        compact_until_stable(log, settings)
    levels = level_of(target - 1, settings)
    assert log.written.get(JobKind.MERGING, 0) <= (levels + 2) * ingested


@given(LENGTHS, st.lists(st.integers(0, 2), max_size=10))
def test_rewrites_of_dead_files_are_bounded_by_the_dead_bytes(
    appends: list[dict[int, int]], expirations: list[int]
) -> None:
    """If half of a file must be dead, a rewrite writes no more bytes than are dead."""
    settings = PlannerSettings(
        target_file_bytes=1, merge_fan_in=2, level_floor_bytes=1, min_dead_bytes=1, dead_share=0.5
    )
    log, keys = make_log(partitions=3)
    dead_bytes = 0
    steps = [*appends, *({} for _ in expirations)]
    for number, lengths in enumerate(steps):
        if lengths:
            log.append({keys[each]: Chunk(records=1, length=size) for each, size in lengths.items()})
        else:
            dead_bytes += expire_oldest(log, keys[expirations[number - len(appends)]])
        compact_until_stable(log, settings)
    assert log.written.get(JobKind.MERGING, 0) <= dead_bytes


def expire_oldest(log: ModelLog, key: PartitionId) -> int:
    """Remove the oldest extent of a partition as retention does, and return its bytes."""
    expired: list[Extent] = log.extents[key][:1]
    log.extents[key] = log.extents[key][1:]
    return sum(extent.length for extent in expired)


def test_overdue_jobs_come_first_and_then_those_with_the_highest_score() -> None:
    log = ModelLog(
        rules=[topic_rules(0, max_compaction_lag_ms=1_000), topic_rules(1, max_compaction_lag_ms=NEVER_MS)]
    )
    first, second = sorted(log.extents)
    for key in (first, second):
        log.append({key: Chunk(records=5, length=100)})
        log.apply(make_plan(log.snapshot(), SMALL).jobs[0])
        log.first_dirty[key] = 0
    settings = PlannerSettings(max_job_files=1, force=True)
    log.now_ms += 5_000
    jobs = make_plan(log.snapshot(), settings).jobs
    assert [job.score.overdue for job in jobs] == [True, False]
    assert jobs[0].partitions[0].topic_id == first.topic_id
    scores = [job.score.gain_per_byte for job in jobs[1:]]
    assert scores == sorted(scores, reverse=True)


def test_invalid_settings_are_rejected() -> None:
    for invalid in ({"merge_fan_in": 1}, {"dead_share": 1.5}, {"dead_share": 0.0}):
        with pytest.raises(InvalidInputError):
            PlannerSettings(**invalid)


FEW = PlannerSettings(merge_fan_in=2, min_dead_bytes=1)


def test_merging_in_a_real_catalog_changes_no_records(system: System) -> None:
    topic = system.topic("plain", 2, cleanup_policy="delete")
    keys = [PartitionId(topic.topic_id, number) for number in (0, 1)]
    for number in range(2):
        system.produce({key: [(b"k", b"%d" % number)] * 2 for key in keys})
        planned = plan(system.catalog, system.clock, PlannerSettings(merge_fan_in=9))
        submit(system.catalog, system.clock, system.ids, FEW, planned)
        system.run_jobs()
    before = [[record.value for record in system.read_log(key)] for key in keys]
    (job,) = plan(system.catalog, system.clock, FEW).jobs
    assert (job.kind, len(job.inputs)) == (JobKind.MERGING, 2)
    assert {each.verdict for each in plan(system.catalog, system.clock, FEW).decisions} == {Verdict.MERGE}
    plan_and_submit(system.catalog, system.clock, system.ids, FEW)
    system.run_jobs()
    assert [[record.value for record in system.read_log(key)] for key in keys] == before
    assert system.catalog.planning.totals().live_compacted_files.count == 1
    assert plan(system.catalog, system.clock, FEW).jobs == ()


def test_the_catalog_knows_the_dead_bytes_of_a_file(system: System) -> None:
    topic = system.topic("plain", 1, cleanup_policy="delete")
    other = system.topic("other", 1, cleanup_policy="delete")
    rows = {PartitionId(each.topic_id, 0): [(b"k", b"v" * 50)] * 2 for each in (topic, other)}
    system.produce(rows)
    plan_and_submit(system.catalog, system.clock, system.ids, FEW)
    system.run_jobs()
    assert plan(system.catalog, system.clock, FEW).jobs == ()
    system.catalog.topics.delete("other")
    while system.catalog.garbage.remove_deleted():
        pass
    (job,) = plan(system.catalog, system.clock, FEW).jobs
    assert "of it dead" in job.reason
    plan_and_submit(system.catalog, system.clock, system.ids, FEW)
    system.run_jobs()
    assert plan(system.catalog, system.clock, FEW).jobs == ()


def test_jobs_beyond_the_budget_wait_for_an_hour(system: System) -> None:
    topic = system.topic("plain", 1, cleanup_policy="delete")
    for number in range(3):
        system.produce({PartitionId(topic.topic_id, 0): [(b"k", b"%d" % number)]})
    narrow = PlannerSettings(max_job_files=1, budget_bytes_per_hour=1)
    planned = plan(system.catalog, system.clock, narrow)
    assert (len(planned.jobs), planned.deferred) == (1, 2)
    waiting = [each.reason for each in planned.decisions if each.verdict is Verdict.WAIT]
    assert len(waiting) == 2
    assert all("budget_bytes_per_hour" in reason for reason in waiting)
    assert len(plan_and_submit(system.catalog, system.clock, system.ids, narrow).jobs) == 1
    assert plan(system.catalog, system.clock, narrow).jobs == ()
    system.run_jobs()
    system.clock.advance(3_601)
    assert len(plan(system.catalog, system.clock, narrow).jobs) == 1


def test_no_job_starves_behind_jobs_with_a_higher_score(system: System) -> None:
    """The budget allows one job per hour, and better jobs keep arriving.

    After a day, the oldest job comes first.
    """
    poor, rich = system.topic("poor", 1, cleanup_policy="delete"), system.topic("rich", 1)
    narrow = PlannerSettings(max_job_files=2, budget_bytes_per_hour=1)
    system.produce({PartitionId(poor.topic_id, 0): [(b"k", b"v" * 10_000)]})
    system.clock.advance(1)
    for hour in range(48):
        for _ in range(4):
            system.produce({PartitionId(rich.topic_id, 0): [(b"k", b"v")]})
        plan_and_submit(system.catalog, system.clock, system.ids, narrow)
        system.run_jobs()
        (size,) = system.catalog.planning.partition_sizes([poor.topic_id])
        if size.compacted_extents:
            assert hour > 20
            return
        system.clock.advance(3_601)
    pytest.fail("the job still waits after two days")


def test_a_finished_job_is_charged_with_its_actual_amount(system: System) -> None:
    """If it moved less than expected, the difference is available to others."""
    topic = system.topic("plain", 1, cleanup_policy="delete")
    for number in range(3):
        system.produce({PartitionId(topic.topic_id, 0): [(b"k", b"%d" % number)]})
    expected = plan(system.catalog, system.clock, PlannerSettings(max_job_files=1)).jobs[0].score.moved_bytes
    narrow = PlannerSettings(max_job_files=1, budget_bytes_per_hour=expected + 100)
    assert len(plan_and_submit(system.catalog, system.clock, system.ids, narrow).jobs) == 1
    assert plan(system.catalog, system.clock, narrow).jobs == ()
    (job,) = system.catalog.jobs.claim("a test", 1)
    counts = {"bytes_in": 40, "bytes_out": 30, "get_requests": 3, "resumes": 1, "compacted_files": 1}
    system.catalog.jobs.complete(replace(system.write_outputs(job), counts=counts))
    assert len(plan(system.catalog, system.clock, narrow).jobs) == 1
    spent = load_snapshot(system.catalog, system.clock.now_ms(), narrow).spent
    assert (spent.moved_bytes, spent.nanodollars) == (70, 4 * 400 + 3 * 5_000)


def test_the_reason_of_a_job_has_its_size_as_commands_print_it() -> None:
    log, keys = make_log(1)
    log.append({keys[0]: Chunk(records=1, length=300)})
    (job,) = make_plan(log.snapshot(), replace(SMALL, force=True)).jobs
    assert job.input_bytes < 1024
    assert f"({human_bytes(job.input_bytes)})" in job.reason
