"""Keys that a job leaves twice because its key table is full: an exact job follows, but never endlessly."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

import pytest

from catalog.model import Exactness, PartitionId
from core.clock import SystemClock
from object_store.local.store import LocalStore
from planner.planner import plan, plan_and_submit
from planner.settings import PlannerSettings
from spark_jobs.shuffle.plan import PlanChoice, choose_plan
from spark_jobs.task.compaction_task import run_compaction
from tests.spark_jobs.shuffle.shuffle_in_memory import run_in_memory

if TYPE_CHECKING:
    from catalog.model import Job, JobResult
    from tests.planner.system import System

pytestmark = pytest.mark.integration

AUTO = PlannerSettings(table_bytes=2048)
TASK = replace(AUTO, exact=False)
KEYS = 1000


def produce(system: System, key: PartitionId, keys: int, value: bytes) -> None:
    system.produce({key: [(b"key-%d" % number, value) for number in range(keys)]})


def run(system: System, job: Job, choice: PlanChoice) -> JobResult:
    """Run one job and publish its result."""
    assert job.attempt_id is not None
    shuffle = choose_plan(job.spec, choice)
    directory = Path(unquote(urlsplit(system.store.url).path))
    if shuffle is None:
        result = run_compaction(
            job.spec, system.store, attempt_id=job.attempt_id, clock=SystemClock(), ids=system.ids
        )
    else:
        result = run_in_memory(job.spec, shuffle, lambda: LocalStore(directory, system.ids), system.ids)
    result = replace(result, attempt_id=job.attempt_id)
    system.catalog.jobs.complete(result)
    return result


def run_next(system: System, settings: PlannerSettings, choice: PlanChoice = PlanChoice.AUTO) -> JobResult:
    """Plan, expect one job, run it, publish it."""
    plan_and_submit(system.catalog, system.clock, system.ids, settings)
    (job,) = system.catalog.jobs.claim("a test", 10)
    return run(system, job, choice)


def partition_with_duplicates(system: System) -> PartitionId:
    """Return a partition with duplicate keys: its estimated number of keys was too low for the key table."""
    key = PartitionId(system.topic("t", cleanup_policy="compact").topic_id, 0)
    system.produce({key: [(b"key-%d" % (number % 10), b"old") for number in range(2 * KEYS)]})
    run_next(system, AUTO)
    assert plan(system.catalog, system.clock, AUTO).jobs == ()
    for number in range(4):
        produce(system, key, KEYS, b"%d" % number)
    result = run_next(system, AUTO)
    assert result.counts["keys_outside_table"] > 0
    return key


def exactness(system: System, key: PartitionId) -> Exactness:
    (size,) = system.catalog.planning.sizes_of([key])
    return size.exactness


def assert_exact(system: System, key: PartitionId, value: bytes = b"3") -> None:
    assert exactness(system, key) is Exactness.EXACT
    found = system.read_log(key)
    assert sorted((each.key, each.value) for each in found) == sorted(
        (b"key-%d" % number, value) for number in range(KEYS)
    )
    for settings in (AUTO, TASK, replace(AUTO, force=True)):
        assert plan(system.catalog, system.clock, settings).jobs == ()


def test_an_exact_job_follows_a_full_key_table(system: System) -> None:
    """The planner gives the reason, and plans nothing after the exact job."""
    key = partition_with_duplicates(system)
    assert exactness(system, key) is Exactness.DEDUP_INCOMPLETE

    planned = plan(system.catalog, system.clock, AUTO)

    (job,) = planned.jobs
    assert job.exact
    assert "left keys twice" in job.reason
    assert "an exact job follows" in planned.decisions[0].reason
    result = run_next(system, AUTO)
    assert result.counts["keys_outside_table"] == 0
    assert result.counts["records_out"] == KEYS
    assert_exact(system, key)


def test_an_exact_job_is_planned_at_any_dirty_ratio(system: System) -> None:
    """Even a ratio of 1 does not prevent it."""
    key = partition_with_duplicates(system)
    system.catalog.topics.alter_config("t", {"min.cleanable.dirty.ratio": "1"})
    run_next(system, AUTO)
    assert_exact(system, key)


def test_without_exact_jobs_nothing_is_planned_until_new_records_arrive(system: System) -> None:
    """This holds for planners that run every job as a task, with and without `force`."""
    key = partition_with_duplicates(system)
    records = len(system.read_log(key))
    for settings in (TASK, replace(TASK, force=True)):
        assert plan(system.catalog, system.clock, settings).jobs == ()
    for number in range(4, 8):
        produce(system, key, KEYS, b"%d" % number)
    result = run_next(system, TASK, PlanChoice.TASK)
    assert result.counts["records_in"] == records + 4 * KEYS
    assert plan(system.catalog, system.clock, TASK).jobs == ()
    run_next(system, AUTO)
    assert_exact(system, key, b"7")


def test_an_exact_job_that_ran_as_a_task_is_not_repeated_endlessly(system: System) -> None:
    """It drops nothing, so the partition waits for new records; the next job is exact again."""
    key = partition_with_duplicates(system)
    result = run_next(system, AUTO, PlanChoice.TASK)
    assert result.counts["records_dropped"] == 0
    assert exactness(system, key) is Exactness.DEDUP_IMPOSSIBLE
    assert plan(system.catalog, system.clock, replace(AUTO, force=True)).jobs == ()
    (decision,) = plan(system.catalog, system.clock, AUTO, explain="t").decisions
    assert "not exactly" in decision.reason
    for number in range(4, 8):
        produce(system, key, KEYS, b"%d" % number)
    (job,) = plan(system.catalog, system.clock, AUTO).jobs
    assert job.exact
    run_next(system, AUTO)
    assert_exact(system, key, b"7")


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_merging_ends_although_every_job_is_to_be_shuffled(system: System, policy: str) -> None:
    """A shuffled job writes a file for each share, so a merge of small files would write as many again."""
    key = PartitionId(system.topic("t", cleanup_policy=policy).topic_id, 0)
    settings = PlannerSettings(merge_fan_in=2)
    for number in range(10):
        produce(system, key, 5, b"%d" % number)
    rounds = 0
    while plan_and_submit(system.catalog, system.clock, system.ids, settings).jobs:
        for job in system.catalog.jobs.claim(f"round {rounds}", 100):
            run(system, job, PlanChoice.SHUFFLE)
        rounds += 1
        assert rounds < 10
    assert rounds
