"""Paced plans: what waits and why, and how much a trickle costs over hours of simulated time."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from planner.pace import is_ingestion_due
from planner.plan import JobKind, Verdict, Wait
from planner.policy import make_plan
from planner.settings import MIB, PlannerSettings
from tests.planner.model_log import Chunk, ModelLog, topic_rules

PACED = PlannerSettings(paced=True)
KIB = 1024


def log_of(*policies: str, partitions: int = 1) -> ModelLog:
    """Return an empty log with a topic for each cleanup policy."""
    rules = [topic_rules(number, cleanup_policy=policy) for number, policy in enumerate(policies)]
    return ModelLog(rules, partition_count=partitions)


def append(log: ModelLog, length: int, files: int = 1) -> None:
    """Append files with equal sections of all partitions."""
    for _ in range(files):
        log.append({key: Chunk(records=2, length=length) for key in log.extents})


def test_few_ingestion_files_wait_for_more_and_the_reason_says_how_many() -> None:
    log = log_of("delete")
    append(log, KIB, files=163)
    log.now_ms += 37_000

    (eager,) = make_plan(log.snapshot(), PlannerSettings()).jobs
    assert eager.wait is not None
    assert (eager.wait.files, eager.wait.seconds) == (37, 23.0)
    paced = make_plan(log.snapshot(), PACED)
    assert paced.jobs == ()
    (decision,) = paced.decisions
    assert decision.verdict is Verdict.WAIT
    assert decision.reason == "a job for offsets 0 to 325 waits for 37 more files, 63.8 MiB more or 23 s"


@pytest.mark.parametrize("enough", ["files", "bytes", "age"])
def test_ingestion_files_are_compacted_once_there_is_enough(enough: str) -> None:
    log = log_of("delete")
    append(log, KIB, files=199)
    assert make_plan(log.snapshot(), PACED).jobs == ()
    if enough == "files":
        append(log, KIB)
    elif enough == "bytes":
        append(log, 64 * MIB)
    else:
        log.now_ms += 60_000

    assert [job.kind for job in make_plan(log.snapshot(), PACED).jobs] == [JobKind.INGESTION]


# A job waits for no more than it may take, although the pace demands more.
LIMITS = PlannerSettings(
    min_ingestion_files=4,
    max_job_files=3,
    min_ingestion_bytes=50,
    max_job_input_bytes=40,
    max_job_extents=10,
    max_plan_extents=48,
    max_ingestion_age_ms=7_000,
)
# The pace demands less than a job may take.
ENOUGH = replace(LIMITS, min_ingestion_files=2, min_ingestion_bytes=30, max_plan_extents=32)


@pytest.mark.parametrize(("settings", "files", "size", "extents"), [(LIMITS, 3, 40, 10), (ENOUGH, 2, 30, 8)])
def test_each_limit_of_the_pace_suffices_alone(
    settings: PlannerSettings, files: int, size: int, extents: int
) -> None:
    assert not is_ingestion_due(files - 1, size - 1, extents - 1, 6_999, settings)
    assert is_ingestion_due(files, size - 1, extents - 1, 6_999, settings)
    assert is_ingestion_due(files - 1, size, extents - 1, 6_999, settings)
    assert is_ingestion_due(files - 1, size - 1, extents, 6_999, settings)
    assert is_ingestion_due(files - 1, size - 1, extents - 1, 7_000, settings)


def test_without_files_nothing_is_due() -> None:
    assert is_ingestion_due(1, 0, 0, 0, PlannerSettings(force=True))
    assert not is_ingestion_due(0, 0, 0, 0, PlannerSettings(force=True))


def dirty_log() -> ModelLog:
    """Return a log whose compacted partition is due for cleaning, with all records in compacted files."""
    log = log_of("compact")
    small = PlannerSettings(max_job_files=1)
    for _ in range(2):
        append(log, KIB)
    for job in make_plan(log.snapshot(small), small).jobs:
        log.apply(job)
    log.first_dirty.clear()
    return log


def test_a_cleaning_waits_for_dirty_bytes_or_for_their_age() -> None:
    log = dirty_log()
    (eager,) = make_plan(log.snapshot(), PlannerSettings()).jobs
    assert (eager.kind, eager.wait) == (
        JobKind.CLEANING,
        Wait(files=0, size_bytes=16 * MIB - eager.taken_bytes, seconds=300.0),
    )
    (forced,) = make_plan(log.snapshot(), PlannerSettings(force=True)).jobs
    assert (forced.kind, forced.wait) == (JobKind.CLEANING, None)
    paced = make_plan(log.snapshot(), PACED)
    assert paced.jobs == ()
    assert [each.reason for each in paced.decisions] == [
        "a job for offsets 0 to 3 waits for 16.0 MiB more or 300 s"
    ]

    log.now_ms += 100_000
    (aged,) = make_plan(log.snapshot(), PlannerSettings()).jobs
    assert aged.wait is not None
    assert aged.wait.seconds == 200.0

    log.now_ms += 200_000
    assert [job.kind for job in make_plan(log.snapshot(), PACED).jobs] == [JobKind.CLEANING]


@pytest.mark.parametrize(("more", "jobs"), [(0, [JobKind.CLEANING]), (1, [])])
def test_a_cleaning_waits_for_no_more_than_enough_dirty_bytes(more: int, jobs: list[JobKind]) -> None:
    log = dirty_log()
    (eager,) = make_plan(log.snapshot(), PlannerSettings()).jobs
    settings = replace(PACED, min_cleaning_bytes=eager.taken_bytes + more)

    assert [job.kind for job in make_plan(log.snapshot(), settings).jobs] == jobs


@pytest.mark.parametrize(("age_ms", "jobs"), [(1_000, []), (1_001, [JobKind.CLEANING])])
def test_a_cleaning_that_the_topic_promises_does_not_wait(age_ms: int, jobs: list[JobKind]) -> None:
    log = dirty_log()
    log.rules = [replace(each, max_compaction_lag_ms=1_000) for each in log.rules]
    log.now_ms += age_ms

    assert [job.kind for job in make_plan(log.snapshot(), PACED).jobs] == jobs


def test_waiting_jobs_keep_no_compacted_extents_from_merging() -> None:
    """A trickle of new files must not stop the merging of older ones."""
    log = log_of("compact")
    eager = PlannerSettings(max_job_files=1, merge_fan_in=64)
    append(log, KIB, files=8)
    for job in make_plan(log.snapshot(eager), eager).jobs:
        log.apply(job)
    append(log, KIB)

    assert [job.kind for job in make_plan(log.snapshot(PACED), PACED).jobs] == [JobKind.MERGING]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Counts of a simulated watcher."""

    rounds: int
    jobs: int
    amplification: float


def watch(log: ModelLog, settings: PlannerSettings, *, hours: int, bytes_per_second: int) -> Outcome:
    """Let a watcher poll every ten seconds, while agents write one file a second."""
    length = bytes_per_second // len(log.extents)
    rounds = jobs = 0
    polls = hours * 360
    for _ in range(polls):
        for _ in range(10):
            log.now_ms += 1_000
            append(log, length)
        while planned := make_plan(log.snapshot(settings), settings).jobs:
            for job in planned:
                log.apply(job)
            rounds, jobs = rounds + 1, jobs + len(planned)
    ingested = polls * 10 * length * len(log.extents)
    return Outcome(rounds, jobs, sum(log.written.values()) / ingested)


@pytest.mark.parametrize("bytes_per_second", [10_000, 1_000_000])
def test_a_trickle_costs_few_jobs_and_few_bytes(bytes_per_second: int) -> None:
    """In an hour, 3,600 files arrive. One round a minute takes them, and few more rounds merge."""
    outcome = watch(log_of("compact", "delete"), PACED, hours=1, bytes_per_second=bytes_per_second)

    assert 50 <= outcome.rounds <= 60 + 15
    assert outcome.jobs <= outcome.rounds + 10
    assert outcome.amplification < 2.5


def test_without_a_pace_a_trickle_is_rewritten_many_times() -> None:
    """This is what a paced watcher saves: with a poll per file, small outputs are merged again and again."""
    log = log_of("delete")
    ingested = 0
    settings = PlannerSettings()
    for _ in range(400):
        log.now_ms += 250
        append(log, 2_500)
        ingested += 2_500
        while planned := make_plan(log.snapshot(settings), settings).jobs:
            for job in planned:
                log.apply(job)

    assert sum(log.written.values()) > 4 * ingested
