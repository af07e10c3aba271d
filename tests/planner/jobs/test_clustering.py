"""Clustering jobs turn short extents of neighbouring partitions into long ones, with bounded rewrites."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from catalog.model import PartitionId
from object_format.limits import MAX_SPAN
from planner.jobs.clustering import (
    draft_clustering_jobs,
    is_clustered_by_range,
    is_fragmented,
    section_level,
    short_run,
)
from planner.plan import JobKind, Verdict
from planner.planner import plan, plan_and_submit
from planner.policy import make_plan
from planner.settings import MIB, PlannerSettings
from planner.snapshot_loader import load_snapshot
from tests.planner.model_log import Chunk, ModelLog, topic_rules

if TYPE_CHECKING:
    from tests.planner.system import System

# Every file counts as large, so that none is merged as a whole.
CLUSTERING = PlannerSettings(
    target_file_bytes=1, merge_fan_in=2, section_bytes=80, section_floor_bytes=20, min_dead_bytes=MIB
)
LEVELS = section_level(CLUSTERING.section_bytes - 1, CLUSTERING) + 1


def make_log(partitions: int = 1, **rules: object) -> tuple[ModelLog, list[PartitionId]]:
    log = ModelLog(
        rules=[topic_rules(0, **{"cleanup_policy": "delete", **rules})],
        partition_count=partitions,
        kept_percent=100,
    )
    return log, sorted(log.extents)


def compact_until_stable(log: ModelLog, settings: PlannerSettings = CLUSTERING) -> list[JobKind]:
    """Plan and compact until no job is planned, and return the kinds of the jobs."""
    done: list[JobKind] = []
    for _ in range(100):
        jobs = make_plan(log.snapshot(settings), settings).jobs
        if not jobs:
            return done
        for job in jobs:
            done.append(job.kind)
            log.apply(job)
    raise AssertionError("planning does not come to an end")


def test_levels_of_extents_follow_the_settings() -> None:
    """Each level is as many times larger as the fan-in."""
    assert [section_level(length, CLUSTERING) for length in (0, 19, 20, 39, 40, 79)] == [0, 0, 1, 1, 2, 2]
    assert (LEVELS, CLUSTERING.resting_extents) == (3, 3)
    assert PlannerSettings().resting_extents == 21


def test_one_job_merges_the_short_extents_of_neighbouring_partitions() -> None:
    """It writes one extent per partition, as soon as there are enough short ones."""
    log, keys = make_log(partitions=5)
    for number in range(4):
        log.append({key: Chunk(records=1, length=5) for key in keys})
        assert compact_until_stable(log) == [JobKind.INGESTION] + [JobKind.CLUSTERING] * (number == 3)
    assert {len(extents) for extents in log.extents.values()} == {1}
    assert all(extents[0].length == 20 for extents in log.extents.values())


def test_a_clustering_job_reads_only_the_range_of_its_partitions() -> None:
    """Extents of other partitions stay in the old files."""
    log, keys = make_log(partitions=6)
    for number in range(4):
        written = keys if number == 0 else keys[2:4]
        log.append({key: Chunk(records=1, length=5) for key in written})
        for job in make_plan(log.snapshot(), CLUSTERING).jobs:
            log.apply(replace(job, output_bytes=MIB))
    (job,) = make_plan(log.snapshot(CLUSTERING), CLUSTERING).jobs
    assert (job.kind, [part.partition for part in job.partitions]) == (JobKind.CLUSTERING, [2, 3])
    assert (job.input_bytes, job.taken_bytes) == (40, 40)
    assert {each.verdict for each in make_plan(log.snapshot(CLUSTERING), CLUSTERING).decisions} >= {
        Verdict.MERGE
    }
    assert "8 short extents in 4 compacted files" in job.reason


def test_the_outputs_of_a_clustering_job_have_about_equal_sizes() -> None:
    """140 bytes become four files of 35 instead of four of 34 and a tiny one."""
    settings = replace(CLUSTERING, target_file_bytes=34)
    log, keys = make_log(partitions=5)
    for _ in range(4):
        log.append({key: Chunk(records=1, length=7) for key in keys})
        for job in make_plan(log.snapshot(), CLUSTERING).jobs:
            log.apply(replace(job, output_bytes=MIB))
    (job,) = make_plan(log.snapshot(settings), settings).jobs
    assert (job.kind, job.taken_bytes, job.output_bytes) == (JobKind.CLUSTERING, 140, 35)


def test_a_partition_with_few_extents_is_not_examined() -> None:
    """Half of the extents that may rest are allowed, and one for each full section."""
    settings = PlannerSettings(section_bytes=1_000)
    for live_bytes, few in ((0, settings.resting_extents // 2), (5_500, settings.resting_extents // 2 + 5)):
        assert not is_fragmented(few, live_bytes, settings)
        assert is_fragmented(few + 1, live_bytes, settings)


def test_a_longer_extent_is_not_rewritten_with_shorter_ones() -> None:
    """A run needs enough extents of its highest level."""
    log, (key,) = make_log()
    for length in (40, 5, 5):
        log.append({key: Chunk(records=1, length=length)})
        for job in make_plan(log.snapshot(), CLUSTERING).jobs:
            log.apply(job)
    (view,) = log.fragmented(CLUSTERING)
    run = short_run(view, log.snapshot(CLUSTERING), CLUSTERING, lambda _: False)
    assert [extent.length for extent in run] == [5, 5]


def test_extents_of_a_middle_level_become_one() -> None:
    log, (key,) = make_log()
    for _ in range(2):
        log.append({key: Chunk(records=1, length=20)})
        for job in make_plan(log.snapshot(), CLUSTERING).jobs:
            log.apply(job)
    (view,) = [replace(log.view(key), extents=tuple(log.extents[key]))]
    assert short_run(view, log.snapshot(CLUSTERING), CLUSTERING, lambda _: False) == view.extents


@pytest.mark.parametrize("newest_first", [False, True])
@pytest.mark.parametrize(("span_ms", "length"), [(1_000, 3), (1_001, 2)])
def test_the_span_of_a_run_counts_from_its_oldest_record_to_its_youngest(
    span_ms: int, length: int, *, newest_first: bool
) -> None:
    """Timestamps need not rise with offsets."""
    log, (key,) = make_log(retention_ms=4_000)
    for age_ms in (0, 500, span_ms) if newest_first else (span_ms, 500, 0):
        log.append({key: Chunk(records=1, length=5, age_ms=age_ms)})
        for job in make_plan(log.snapshot(), CLUSTERING).jobs:
            log.apply(job)
    run = short_run(log.view(key), log.snapshot(CLUSTERING), CLUSTERING, lambda _: False)
    assert len(run) == length


@pytest.mark.parametrize(("span_ms", "runs"), [(1_000, [3, 3, 3]), (1_001, [2, 0, 2])])
def test_an_extent_with_old_records_is_not_rewritten_with_young_ones(span_ms: int, runs: list[int]) -> None:
    """All youngest records have the same age, and the oldest ones of one extent are much older."""
    for wide, length in enumerate(runs):
        log, (key,) = make_log(retention_ms=4_000)
        for number in range(3):
            span = span_ms if number == wide else 0
            log.append({key: Chunk(records=1, length=5, age_ms=0, span_ms=span)})
            for job in make_plan(log.snapshot(), CLUSTERING).jobs:
                log.apply(job)
        run = short_run(log.view(key), log.snapshot(CLUSTERING), CLUSTERING, lambda _: False)
        assert len(run) == length


@pytest.mark.parametrize(("extents", "is_by_range"), [(0, False), (1, True)])
def test_a_small_file_is_clustered_if_it_has_more_extents_than_a_merge_can_take(
    extents: int, *, is_by_range: bool
) -> None:
    settings = PlannerSettings(target_file_bytes=1_000, merge_fan_in=4, max_plan_extents=160)
    log, (key,) = make_log()
    file = log.append({key: Chunk(records=1, length=5)})
    for size, expected in ((249, is_by_range), (250, True)):
        found = replace(file, size=size, extents=settings.max_merged_extents + extents)
        assert is_clustered_by_range(found, settings) is expected


def test_files_with_few_extents_are_merged_and_others_are_clustered() -> None:
    """Files are clustered if a plan cannot examine as many of them as the fan-in."""
    for max_plan_extents, kind in ((10_000, JobKind.MERGING), (16, JobKind.CLUSTERING)):
        settings = replace(
            CLUSTERING, target_file_bytes=10_000, level_floor_bytes=10, max_plan_extents=max_plan_extents
        )
        log, keys = make_log(partitions=5)
        kinds = set()
        for _ in range(5):
            log.append({key: Chunk(records=1, length=5) for key in keys})
            kinds |= set(compact_until_stable(log, settings))
        assert kinds == {JobKind.INGESTION, kind}


def test_clean_and_dirty_extents_are_not_merged() -> None:
    """The boundary of the clean part stays between two extents."""
    log, (key,) = make_log(cleanup_policy="compact", min_cleanable_dirty_ratio=1.0)
    for _ in range(9):
        log.append({key: Chunk(records=1, length=5)})
        for job in make_plan(log.snapshot(), CLUSTERING).jobs:
            log.apply(job)
    log.first_dirty[key] = 2
    compact_until_stable(log)
    assert [extent.base_offset for extent in log.extents[key]] == [0, 1, 2]


def test_a_clustered_extent_spans_at_most_a_quarter_of_retention() -> None:
    """Extents expire as a whole."""
    log, (key,) = make_log(retention_ms=4_000)
    for _ in range(24):
        log.append({key: Chunk(records=1, length=5)})
        compact_until_stable(log)
        log.now_ms += 200
    spans = [extent.max_timestamp - extent.min_timestamp for extent in log.extents[key]]
    assert 0 < max(spans) <= 1_000


def test_a_clustered_extent_spans_no_more_offsets_than_a_section_may() -> None:
    """The limit is that of the file format."""
    log, (key,) = make_log()
    for _ in range(24):
        log.append({key: Chunk(records=MAX_SPAN // 6 + 1, length=5)})
        compact_until_stable(log)
    spans = [extent.last_offset + 1 - extent.base_offset for extent in log.extents[key]]
    assert MAX_SPAN // 3 < max(spans) <= MAX_SPAN


def test_a_claimed_extent_ends_a_run() -> None:
    """Only the newest extents after it are taken."""
    log, (key,) = make_log()
    for _ in range(7):
        log.append({key: Chunk(records=1, length=5)})
        for job in make_plan(log.snapshot(), CLUSTERING).jobs:
            log.apply(job)
    log.claimed = {(key, 4)}
    view = log.fragmented(CLUSTERING)[0]
    run = short_run(view, log.snapshot(CLUSTERING), CLUSTERING, lambda extent: extent.base_offset == 1)
    assert [extent.base_offset for extent in run] == [5, 6]


def test_a_busy_partition_does_not_wait_for_idle_neighbours() -> None:
    """Otherwise the few short extents of idle neighbours would keep the average of a job low."""
    log, keys = make_log(partitions=5)
    for number in range(8):
        log.append({key: Chunk(records=1, length=5) for key in (keys if number < 2 else keys[2:3])})
        for job in make_plan(log.snapshot(), CLUSTERING).jobs:
            log.apply(replace(job, output_bytes=MIB))
    (job,) = make_plan(log.snapshot(CLUSTERING), CLUSTERING).jobs
    assert [part.partition for part in job.partitions] == [2]
    assert len(log.extents[keys[2]]) == 8
    log.apply(job)
    assert len(log.extents[keys[2]]) == 1


@given(st.lists(st.sampled_from([0, 4, 5, 5, 6, 7, 8, 15, 16, 17, 22]), min_size=1, max_size=6))
@example([5, 5, 15, 5])
@example([5, 5, 16, 5])
@example([5, 16, 5, 17, 5, 5, 5])
@example([8, 8])
@example([8, 7])
def test_a_job_has_eight_extents_on_average_or_only_partitions_with_sixteen(counts: list[int]) -> None:
    """With a fan-in of four, more than four short extents are examined, and a plan sees twenty at most."""
    settings = replace(CLUSTERING, merge_fan_in=4, section_bytes=320)
    log, keys = make_log(partitions=len(counts))
    for number in range(max(counts)):
        written = [key for key, count in zip(keys, counts, strict=True) if number < count]
        log.append({key: Chunk(records=1, length=1) for key in written})
        for job in make_plan(log.snapshot(), settings).jobs:
            log.apply(replace(job, output_bytes=MIB))
    runs = {number: min(count, 20) for number, count in enumerate(counts) if count > 4}
    if sum(runs.values()) < 8 * len(runs):
        runs = {number: count for number, count in runs.items() if count >= 16}

    drafts = draft_clustering_jobs(log.snapshot(settings), settings, lambda _: False)

    found = [
        {view.partition_id.partition: len(extents) for view, extents in draft.partitions()}
        for draft in drafts
    ]
    assert found == ([runs] if runs else [])


def test_the_longest_visible_run_is_taken_if_no_run_justifies_a_job() -> None:
    """Lengths arrive in the worst order: the visible extents have too few on each level."""
    settings = replace(CLUSTERING, merge_fan_in=3, section_bytes=180)
    log, (key,) = make_log()
    for length in (100, 5, 5, 30, 5, 5, 30, 5, 5) * 6:
        log.append({key: Chunk(records=1, length=length)})
        compact_until_stable(log, settings)
    assert len(log.extents[key]) < 2 * settings.max_seen_extents


def test_a_clustered_extent_hardly_delays_the_cleaning_of_its_records() -> None:
    """Records within min.compaction.lag.ms are merged over at most a quarter of it."""
    log, (key,) = make_log(
        cleanup_policy="compact", min_cleanable_dirty_ratio=1.0, min_compaction_lag_ms=4_000
    )
    for _ in range(16):
        log.append({key: Chunk(records=1, length=5)})
        compact_until_stable(log)
        young = [each for each in log.extents[key] if each.max_timestamp > log.now_ms - 4_000]
        assert max(each.max_timestamp - each.min_timestamp for each in young) <= 1_000
        log.now_ms += 200
    assert len(log.extents[key]) < 16


APPENDS = st.lists(
    st.dictionaries(st.integers(0, 2), st.sampled_from([1, 5, 19, 20, 30, 70, 200]), min_size=1), max_size=40
)


@given(APPENDS, st.integers(2, 4))
def test_rewrites_by_clustering_are_bounded(appends: list[dict[int, int]], fan_in: int) -> None:
    """Planning ends after each append, within the bounds of docs/explanation/planner.md."""
    settings = replace(CLUSTERING, merge_fan_in=fan_in, section_bytes=20 * fan_in**2)
    log, keys = make_log(partitions=3)
    ingested = extents = max_extents = 0
    for lengths in appends:
        log.append({keys[number]: Chunk(records=1, length=size) for number, size in lengths.items()})
        ingested, extents = ingested + sum(lengths.values()), extents + len(lengths)
        max_extents = max(max_extents, *map(len, log.extents.values()))
        compact_until_stable(log, settings)
    floor = settings.section_floor_bytes * fan_in / (fan_in - 1) * extents
    if max_extents >= settings.max_seen_extents:  # an arbitrary order of lengths
        floor += settings.section_bytes * 2 * fan_in / (2 * fan_in - 1) * extents
    assert log.written.get(JobKind.CLUSTERING, 0) <= (LEVELS - 1) * ingested + floor
    for left in log.extents.values():
        long = sum(1 for extent in left if extent.length >= settings.section_bytes)
        assert len(left) < (1 + long) * fan_in**LEVELS
        assert len(left) - long <= settings.max_seen_extents + 2 * fan_in * (1 + long)


@given(st.integers(1, 120), st.integers(2, 5), st.sampled_from([1, 7, 19, 25]))
def test_steady_arrivals_leave_few_short_extents(appends: int, fan_in: int, length: int) -> None:
    """The number of short extents does not grow with the number of appends."""
    settings = replace(CLUSTERING, merge_fan_in=fan_in, section_bytes=20 * fan_in**2)
    log, (key,) = make_log()
    for _ in range(appends):
        log.append({key: Chunk(records=1, length=length)})
        compact_until_stable(log, settings)
    long = sum(1 for extent in log.extents[key] if extent.length >= settings.section_bytes)
    waiting = 2 * fan_in + appends * length // settings.section_bytes
    assert len(log.extents[key]) - long <= settings.resting_extents + waiting


SHORT = PlannerSettings(merge_fan_in=2, target_file_bytes=1, section_floor_bytes=MIB // 2, min_dead_bytes=MIB)
UNCLUSTERED = replace(SHORT, section_bytes=1)


def test_clustering_in_a_real_catalog_changes_no_records(system: System) -> None:
    """Both topics have fewer extents afterwards."""
    plain = system.topic("plain", 3, cleanup_policy="delete")
    table = system.topic("table", 2, cleanup_policy="compact", min_cleanable_dirty_ratio="1.0")
    keys = [PartitionId(topic.topic_id, number) for topic in (plain, table) for number in (0, 1)]
    for number in range(5):
        system.produce({key: [(b"k%d" % number, b"%d" % number)] * 2 for key in keys})
        plan_and_submit(system.catalog, system.clock, system.ids, UNCLUSTERED)
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
