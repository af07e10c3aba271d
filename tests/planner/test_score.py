"""Costs of jobs, and the number of jobs that a budget allows."""

from __future__ import annotations

import pytest

from catalog.jobs.repository import RecentWork
from planner.plan import JobKind, JobScore
from planner.policy import make_plan
from planner.score import RequestPrices, affordable, spent_on
from planner.settings import PlannerSettings
from planner.snapshot import Spent
from tests.planner.model_log import Chunk, ModelLog, topic_rules

GET, PUT = 400, 5_000


@pytest.mark.parametrize(("cleanup_policy", "passes"), [("compact", 2), ("delete", 1)])
def test_a_score_counts_the_bytes_and_requests_of_each_pass(cleanup_policy: str, passes: int) -> None:
    log = ModelLog(rules=[topic_rules(0, cleanup_policy=cleanup_policy)], partition_count=2)
    for _ in range(3):
        log.append({key: Chunk(records=5, length=50) for key in log.extents})
    (job,) = make_plan(log.snapshot(), PlannerSettings()).jobs
    assert (job.score.rewritten_bytes, job.score.moved_bytes) == (300, passes * 300 + 300)
    assert job.score.reads_saved == 4
    assert job.score.nanodollars == passes * 3 * GET + 3 * PUT  # one output of two objects, and one part


def job_of(moved_bytes: int, nanodollars: int) -> JobScore:
    return JobScore(
        reclaimed_bytes=0,
        reads_saved=0,
        rewritten_bytes=0,
        moved_bytes=moved_bytes,
        nanodollars=nanodollars,
        overdue=False,
        waited_ms=0,
    )


@pytest.mark.parametrize(
    ("spent", "allowed"),
    [
        (Spent(moved_bytes=1, nanodollars=0), 3),
        (Spent(moved_bytes=50, nanodollars=600), 2),  # both limits are reached exactly
        (Spent(moved_bytes=51, nanodollars=600), 1),
        (Spent(moved_bytes=50, nanodollars=601), 1),
        (Spent(moved_bytes=100, nanodollars=0), 0),
        (Spent(moved_bytes=0, nanodollars=1_000), 0),
    ],
)
def test_a_budget_allows_jobs_up_to_its_limits(spent: Spent, allowed: int) -> None:
    settings = PlannerSettings(budget_bytes_per_hour=100, budget_dollars_per_hour=1e-6)
    assert affordable([job_of(25, 200)] * 3, spent, settings) == allowed


@pytest.mark.parametrize(("nanodollars", "allowed"), [(10**9, 1), (10**9 + 1, 0)])
def test_a_budget_in_dollars_is_exact(nanodollars: int, allowed: int) -> None:
    settings = PlannerSettings(budget_dollars_per_hour=1.0)
    spent = Spent(nanodollars=1)
    assert affordable([job_of(1_000, nanodollars - 1)], spent, settings) == allowed


def test_a_job_above_the_whole_budget_runs_if_nothing_was_spent() -> None:
    settings = PlannerSettings(budget_bytes_per_hour=100)
    assert affordable([job_of(1_000, 0)] * 2, Spent(), settings) == 1


def test_finished_jobs_are_charged_with_their_counts_and_others_with_estimates() -> None:
    """An output has two objects, and parts of 8 MiB."""
    work = RecentWork(
        expected_bytes=1,
        expected_nanodollars=2,
        bytes_in=30,
        bytes_out=2 * 8 * 2**20 + 1,
        get_requests=5,
        output_files=7,
    )
    spent = spent_on(work, RequestPrices(get=100, put=1_000))
    assert spent == Spent(moved_bytes=1 + 30 + work.bytes_out, nanodollars=2 + 500 + (14 + 3) * 1_000)


@pytest.mark.parametrize(("age_ms", "waited_ms"), [(-5, 0), (0, 0), (5, 5)])
def test_a_file_that_is_committed_while_a_planner_looks_has_not_waited(age_ms: int, waited_ms: int) -> None:
    log = ModelLog(rules=[topic_rules(0)])
    log.append({key: Chunk(records=1, length=10) for key in log.extents}, age_ms=age_ms)
    (job,) = make_plan(log.snapshot(), PlannerSettings()).jobs
    assert job.score.waited_ms == waited_ms


@pytest.mark.parametrize(("clean", "dirty", "reclaimed"), [(100, 300, 200), (300, 100, 100), (0, 7, 3)])
def test_cleaning_is_expected_to_drop_what_is_dirty_but_at_most_half(
    clean: int, dirty: int, reclaimed: int
) -> None:
    log = ModelLog(rules=[topic_rules(0, min_cleanable_dirty_ratio=0.0)])
    (key,) = log.extents
    for length in (clean, dirty):
        log.append({key: Chunk(records=10, length=length)})
    log.first_dirty[key] = 10
    (job,) = make_plan(log.snapshot(), PlannerSettings()).jobs
    assert job.score.reclaimed_bytes == reclaimed


@pytest.mark.parametrize(("age_ms", "is_overdue"), [(1_000, False), (1_001, True)])
def test_a_job_is_overdue_once_max_compaction_lag_has_passed(age_ms: int, is_overdue: bool) -> None:
    log = ModelLog(rules=[topic_rules(0, max_compaction_lag_ms=1_000)])
    (key,) = log.extents
    log.append({key: Chunk(records=10, length=100, age_ms=age_ms)})
    (job,) = make_plan(log.snapshot(), PlannerSettings()).jobs
    assert job.score.overdue is is_overdue


def test_small_files_of_compacted_topics_are_merged_too() -> None:
    settings = PlannerSettings(target_file_bytes=1_000, merge_fan_in=3, level_floor_bytes=10)
    log = ModelLog(rules=[topic_rules(0, min_cleanable_dirty_ratio=1.0)], kept_percent=100)
    (key,) = log.extents
    kinds = set()
    for _ in range(3):
        log.append({key: Chunk(records=2, length=20)})
        for _ in range(2):
            for job in make_plan(log.snapshot(settings), settings).jobs:
                kinds.add(job.kind)
                log.apply(job)
    assert JobKind.MERGING in kinds
    assert len(log.extents[key]) == 1
