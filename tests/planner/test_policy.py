"""The policy on small logs with known results."""

from __future__ import annotations

import pytest

from catalog.model import FileKind, PartitionId
from core.errors import InvalidInputError
from object_format.limits import MAX_SPAN
from planner.plan import JobKind, Verdict
from planner.policy import make_plan
from planner.settings import MIB, PlannerSettings
from tests.planner.model_log import Chunk, ModelLog, topic_rules

DEFAULTS = PlannerSettings()


def flights_and_weather() -> tuple[ModelLog, PartitionId, PartitionId]:
    log = ModelLog(
        rules=[topic_rules(0, name="flights"), topic_rules(1, name="weather", cleanup_policy="delete")]
    )
    flights, weather = sorted(log.extents)
    return log, flights, weather


def test_an_empty_log_needs_no_jobs() -> None:
    log, _, _ = flights_and_weather()
    plan = make_plan(log.snapshot(), DEFAULTS)
    assert plan.jobs == ()
    assert [each.verdict for each in plan.decisions] == [Verdict.NOTHING, Verdict.NOTHING]


def test_by_default_all_ingestion_files_become_one_job() -> None:
    log, flights, weather = flights_and_weather()
    for _ in range(3):
        log.append({flights: Chunk(records=10, length=100), weather: Chunk(records=5, length=50)})
    plan = make_plan(log.snapshot(), DEFAULTS)
    (job,) = plan.jobs
    assert (job.kind, len(job.inputs), job.input_bytes, job.taken_bytes) == (JobKind.INGESTION, 3, 450, 450)
    one, two = job.partitions
    assert (one.topic_name, one.deduplicate, one.reaches_log_start) == ("flights", True, True)
    assert (one.base_offset, one.upper_offset) == (0, 30)
    assert (two.topic_name, two.deduplicate, two.base_offset, two.upper_offset) == ("weather", False, 0, 15)
    assert [each.verdict for each in plan.decisions] == [Verdict.CLEAN, Verdict.SPLIT]
    assert "3 ingestion files" in job.reason


def test_inputs_are_in_commit_order_and_their_extents_in_section_order() -> None:
    log, flights, weather = flights_and_weather()
    files = [
        log.append({weather: Chunk(records=5, length=50), flights: Chunk(records=10, length=100)})
        for _ in range(4)
    ]
    (job,) = make_plan(log.snapshot(), DEFAULTS).jobs
    assert [each.file_id for each in job.inputs] == [file.file_id for file in files]
    for each in job.inputs:
        assert [extent.topic_id for extent in each.extents] == [flights.topic_id, weather.topic_id]


def test_older_extents_of_a_dirty_partition_join_the_job() -> None:
    log, flights, weather = flights_and_weather()
    log.append({flights: Chunk(records=10, length=100), weather: Chunk(records=5, length=50)})
    log.apply(make_plan(log.snapshot(), DEFAULTS).jobs[0])  # leaves 50 bytes
    log.append({flights: Chunk(records=10, length=100)})
    plan = make_plan(log.snapshot(), DEFAULTS)
    (job,) = plan.jobs
    (part,) = job.partitions
    assert (part.base_offset, part.upper_offset, part.reaches_log_start) == (0, 20, True)
    assert [log.files[each.file_id].kind for each in job.inputs] == [FileKind.COMPACTED, FileKind.INGESTION]
    (decision,) = plan.explain("flights")
    assert decision.verdict is Verdict.CLEAN
    assert "dirty ratio 0.67 exceeds min.cleanable.dirty.ratio=0.5" in decision.reason
    (other,) = plan.explain("weather")
    assert (other.verdict, other.job) == (Verdict.NOTHING, None)


def test_a_partition_below_the_dirty_ratio_is_only_moved() -> None:
    log, flights, _ = flights_and_weather()
    log.kept_percent = 100
    log.append({flights: Chunk(records=10, length=1_000)})
    log.apply(make_plan(log.snapshot(), DEFAULTS).jobs[0])
    log.append({flights: Chunk(records=10, length=100)})
    plan = make_plan(log.snapshot(), DEFAULTS)
    (part,) = plan.jobs[0].partitions
    assert (part.base_offset, part.reaches_log_start, part.deduplicate) == (10, False, True)
    assert plan.explain("flights")[0].verdict is Verdict.DEDUPLICATE
    log.apply(plan.jobs[0])
    resting = make_plan(log.snapshot(), DEFAULTS)
    assert resting.jobs == ()
    assert "dirty ratio 0.09 does not exceed" in resting.explain("flights")[0].reason
    (forced,) = make_plan(log.snapshot(), PlannerSettings(force=True)).jobs
    assert (forced.kind, forced.partitions[0].reaches_log_start) == (JobKind.CLEANING, True)


def test_input_beyond_the_bounds_becomes_several_jobs() -> None:
    log, flights, _ = flights_and_weather()
    for _ in range(5):
        log.append({flights: Chunk(records=1, length=100)})
    by_count = make_plan(log.snapshot(), PlannerSettings(max_job_files=2)).jobs
    by_bytes = make_plan(log.snapshot(), PlannerSettings(max_job_input_bytes=350)).jobs
    by_extents = make_plan(log.snapshot(), PlannerSettings(max_job_extents=2)).jobs
    assert [len(job.inputs) for job in by_count] == [2, 2, 1]
    assert [len(job.inputs) for job in by_extents] == [2, 2, 1]
    assert [len(job.inputs) for job in by_bytes] == [3, 2]
    assert [job.partitions[0].reaches_log_start for job in by_count] == [True, False, False]


def test_a_partition_split_over_several_jobs_is_cleaned_as_a_whole_later() -> None:
    log, flights, _ = flights_and_weather()
    for _ in range(4):
        log.append({flights: Chunk(records=1, length=100)})
    settings = PlannerSettings(max_job_files=2)
    for job in make_plan(log.snapshot(), settings).jobs:
        log.apply(job)
    assert log.first_dirty[flights] == 2
    (job,) = make_plan(log.snapshot(), PlannerSettings(force=True)).jobs
    log.apply(job)
    assert (job.kind, log.first_dirty[flights]) == (JobKind.CLEANING, 4)
    assert make_plan(log.snapshot(), PlannerSettings(force=True)).jobs == ()


def test_partitions_with_steady_writes_are_cleaned_behind_their_tail() -> None:
    """A partition that is too large to join an ingestion job is cleaned up to its ingestion files."""
    log, flights, _ = flights_and_weather()
    log.kept_percent = 100
    log.append({flights: Chunk(records=1, length=5_000)})
    log.apply(make_plan(log.snapshot(), DEFAULTS).jobs[0])
    log.first_dirty[flights] = 0  # as after a change of cleanup.policy
    log.append({flights: Chunk(records=1, length=100)})
    jobs = make_plan(log.snapshot(), PlannerSettings(max_job_input_bytes=1_000)).jobs
    assert {job.kind: job.partitions[0].base_offset for job in jobs} == {
        JobKind.INGESTION: 1,
        JobKind.CLEANING: 0,
    }


def test_neighbours_share_a_cleaning_job_within_the_input_bound() -> None:
    """The bound counts the range from the first needed section of a file to the last."""
    log = ModelLog(rules=[topic_rules(0, min_cleanable_dirty_ratio=0.0)], partition_count=4)
    keys = sorted(log.extents)
    for group in (keys[0::2], keys[1::2]):
        log.append({key: Chunk(records=1, length=100) for key in group})
        log.apply(make_plan(log.snapshot(), DEFAULTS).jobs[0])
    log.first_dirty.clear()
    jobs = make_plan(log.snapshot(), PlannerSettings(max_job_input_bytes=100)).jobs
    assert [[part.partition for part in job.partitions] for job in jobs] == [[0, 1], [2, 3]]
    assert [job.input_bytes for job in jobs] == [100, 100]


@pytest.mark.parametrize(("between", "jobs"), [(30 * MIB, 1), (40 * MIB, 2)])
def test_partitions_that_are_far_apart_are_cleaned_by_different_jobs(between: int, jobs: int) -> None:
    """From about 34 MiB on, reading the bytes in between twice costs more than another job."""
    log = ModelLog(rules=[topic_rules(0, min_cleanable_dirty_ratio=0.0)], partition_count=3, kept_percent=100)
    first, middle, last = sorted(log.extents)
    log.append({key: Chunk(records=1, length=between if key == middle else 100) for key in log.extents})
    log.apply(make_plan(log.snapshot(), DEFAULTS).jobs[0])
    del log.first_dirty[first], log.first_dirty[last]
    planned = make_plan(log.snapshot(), DEFAULTS).jobs
    assert len(planned) == jobs
    assert sum(job.input_bytes for job in planned) == 200 + (between if jobs == 1 else 0)


def test_long_sections_side_by_side_are_cleaned_by_one_job() -> None:
    """Only the bytes between them count, however long they are."""
    log = ModelLog(rules=[topic_rules(0, min_cleanable_dirty_ratio=0.0)], partition_count=2, kept_percent=100)
    log.append({key: Chunk(records=1, length=100 * MIB) for key in log.extents})
    log.apply(make_plan(log.snapshot(), DEFAULTS).jobs[0])
    log.first_dirty.clear()
    (job,) = make_plan(log.snapshot(), DEFAULTS).jobs
    assert (job.kind, job.input_bytes) == (JobKind.CLEANING, 200 * MIB)


def test_a_cleaning_job_waits_since_its_oldest_dirty_data() -> None:
    """The age of the clean part does not matter."""
    log = ModelLog(rules=[topic_rules(0, min_cleanable_dirty_ratio=0.0)])
    (key,) = log.extents
    log.append({key: Chunk(records=1, length=100)}, age_ms=10 * 86_400_000)
    log.apply(make_plan(log.snapshot(), DEFAULTS).jobs[0])
    log.append({key: Chunk(records=1, length=100)}, age_ms=5_000)
    (joined,) = make_plan(log.snapshot(), DEFAULTS).jobs
    assert (joined.kind, joined.score.waited_ms) == (JobKind.INGESTION, 5_000)
    (alone,) = make_plan(log.snapshot(), PlannerSettings(max_job_files=1)).jobs
    log.apply(alone)
    (cleaning,) = make_plan(log.snapshot(), DEFAULTS).jobs
    assert (cleaning.kind, cleaning.score.waited_ms) == (JobKind.CLEANING, 5_000)


def test_an_extent_of_another_job_ends_the_range() -> None:
    log, flights, _ = flights_and_weather()
    for _ in range(3):
        log.append({flights: Chunk(records=1, length=100)})
    middle = make_plan(log.snapshot(), PlannerSettings(max_job_files=1)).jobs[1]
    log.claim(middle)
    (first, last) = make_plan(log.snapshot(), PlannerSettings(max_job_files=1)).jobs
    assert (first.partitions[0].base_offset, last.partitions[0].base_offset) == (0, 2)
    (joined,) = make_plan(log.snapshot(), DEFAULTS).jobs
    assert (joined.partitions[0].base_offset, joined.partitions[0].upper_offset) == (0, 1)


def test_few_young_files_wait_if_the_settings_say_so() -> None:
    log, flights, _ = flights_and_weather()
    log.append({flights: Chunk(records=1, length=100)}, age_ms=400)
    waiting = PlannerSettings(min_ingestion_files=2, max_ingestion_age_ms=500, paced=True)
    plan = make_plan(log.snapshot(), waiting)
    assert plan.jobs == ()
    assert plan.explain("flights")[0].verdict is Verdict.WAIT
    assert len(make_plan(log.snapshot(), DEFAULTS).jobs) == 1
    assert (
        len(make_plan(log.snapshot(), PlannerSettings(min_ingestion_files=2, force=True, paced=True)).jobs)
        == 1
    )
    log.now_ms += 100
    assert len(make_plan(log.snapshot(), waiting).jobs) == 1


def test_each_reason_for_planning_nothing_is_explained() -> None:
    log = ModelLog(
        rules=[
            topic_rules(0, name="young", min_compaction_lag_ms=1_000),
            topic_rules(1, name="unstable", cleanup_policy="delete"),
            topic_rules(2, name="claimed"),
            topic_rules(3, name="empty"),
        ]
    )
    young, unstable, claimed, _ = sorted(log.extents)
    log.append({claimed: Chunk(records=1, length=10)})
    log.claim(make_plan(log.snapshot(), DEFAULTS).jobs[0])
    log.append({young: Chunk(records=1, length=10), unstable: Chunk(records=1, length=10)})
    log.unstable[unstable] = 1
    (moving,) = make_plan(log.snapshot(), DEFAULTS).jobs
    log.apply(moving)
    plan = make_plan(log.snapshot(), DEFAULTS)
    assert plan.jobs == ()
    assert "min.compaction.lag.ms=1000" in plan.explain("young")[0].reason
    assert "last stable offset 0" in plan.explain("unstable")[0].reason
    assert "1 extent in an open job" in plan.explain("claimed")[0].reason
    assert plan.explain("empty")[0].reason == "the partition is empty"


def test_young_records_are_moved_at_once_and_cleaned_later() -> None:
    """Otherwise files within min.compaction.lag.ms would delay every other topic."""
    log = ModelLog(rules=[topic_rules(0, name="young", min_compaction_lag_ms=1_000)])
    (young,) = log.extents
    log.append({young: Chunk(records=1, length=10)})

    (moving,) = make_plan(log.snapshot(), DEFAULTS).jobs
    plan = make_plan(log.snapshot(), DEFAULTS)
    log.apply(moving)

    assert [each.deduplicate for each in moving.partitions] == [False]
    assert plan.explain("young")[0].verdict is Verdict.SPLIT
    assert "are copied into" in plan.explain("young")[0].reason
    assert make_plan(log.snapshot(), DEFAULTS).jobs == ()
    log.now_ms += 1_000
    (cleaning,) = make_plan(log.snapshot(), DEFAULTS).jobs
    assert (cleaning.kind, [each.deduplicate for each in cleaning.partitions]) == (JobKind.CLEANING, [True])


@pytest.mark.parametrize(
    "name", ["max_job_files", "max_job_input_bytes", "min_ingestion_files", "table_bytes"]
)
def test_bounds_of_zero_are_rejected(name: str) -> None:
    with pytest.raises(InvalidInputError, match=name):
        PlannerSettings(**{name: 0})  # type: ignore[arg-type]  # none of these is the one that is a bool


def test_a_file_larger_than_a_job_is_cleaned_in_ranges() -> None:
    log = ModelLog(rules=[topic_rules(0, min_cleanable_dirty_ratio=0.0)], partition_count=4)
    log.append({key: Chunk(records=1, length=1_000) for key in sorted(log.extents)})
    log.apply(make_plan(log.snapshot(), DEFAULTS).jobs[0])
    log.first_dirty.clear()
    jobs = make_plan(log.snapshot(), PlannerSettings(max_job_input_bytes=1_000)).jobs
    assert [[part.partition for part in job.partitions] for job in jobs] == [[0, 1], [2, 3]]
    assert [(len(job.inputs), job.input_bytes) for job in jobs] == [(1, 1_000), (1, 1_000)]


@pytest.mark.parametrize("policy", ["compact", "delete"])
@pytest.mark.parametrize("length", [10, 3 * MIB])
def test_no_job_takes_more_offsets_than_a_section_may_span(policy: str, length: int) -> None:
    """This holds for every kind of job. Planning still ends, and all extents are in compacted files."""
    log = ModelLog(rules=[topic_rules(0, cleanup_policy=policy, min_cleanable_dirty_ratio=0.0)])
    (key,) = log.extents
    settings = PlannerSettings(merge_fan_in=2, section_bytes=MIB, target_file_bytes=4 * MIB)
    for _ in range(8):
        for records in (MAX_SPAN // 4, MAX_SPAN // 4 + 1):
            log.append({key: Chunk(records=records, length=length)})
        rounds = 0
        while jobs := make_plan(log.snapshot(settings), settings).jobs:
            rounds += 1
            assert rounds < 20
            for job in jobs:
                assert all(part.upper_offset - part.base_offset <= MAX_SPAN for part in job.partitions)
                log.apply(job)
    assert log.end(key) > 3 * MAX_SPAN
    assert all(extent.file_kind is FileKind.COMPACTED for extent in log.extents[key])
    assert len(log.extents[key]) <= 2 * (log.end(key) // MAX_SPAN + 1)
    if policy == "compact":
        (decision,) = make_plan(log.snapshot(settings), settings).decisions
        assert (decision.verdict, log.first_dirty[key] > 0) == (Verdict.NOTHING, True)
        assert f"not cleaned beyond {MAX_SPAN} offsets" in decision.reason


def test_an_ingestion_job_with_young_records_takes_no_older_extents() -> None:
    """Otherwise the young ones would stay in their ingestion files."""
    log = ModelLog(rules=[topic_rules(0, min_compaction_lag_ms=1_000, min_cleanable_dirty_ratio=0.0)])
    (key,) = log.extents
    log.append({key: Chunk(records=5, length=100, age_ms=5_000)})
    for job in make_plan(log.snapshot(), PlannerSettings()).jobs:
        log.apply(job)
    for age_ms in (5_000, 0):
        log.append({key: Chunk(records=5, length=100, age_ms=age_ms)})
    (job,) = make_plan(log.snapshot(), PlannerSettings()).jobs
    assert [(each.base_offset, each.upper_offset) for each in job.partitions] == [(5, 15)]
