"""Keys that a job has left twice for want of memory: remembered, cleaned exactly next, and never for ever."""

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
    from catalog.model import JobResult
    from tests.planner.system import System

pytestmark = pytest.mark.integration

AUTO = PlannerSettings(table_bytes=2048)
TASK = replace(AUTO, exact=False)
KEYS = 1000


def produce(system: System, here: PartitionId, keys: int, value: bytes) -> None:
    system.produce({here: [(b"key-%d" % number, value) for number in range(keys)]})


def run_next(system: System, settings: PlannerSettings, choice: PlanChoice = PlanChoice.AUTO) -> JobResult:
    """Plan, expect one job, run it by its plan, publish it."""
    plan_and_submit(system.catalog, system.clock, system.ids, settings)
    (job,) = system.catalog.jobs.claim("a test", 10)
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


def overflown(system: System) -> PartitionId:
    """A partition that seemed to have few keys, of whose news a job has left many twice."""
    here = PartitionId(system.topic("t", cleanup_policy="compact").topic_id, 0)
    system.produce({here: [(b"key-%d" % (number % 10), b"old") for number in range(2 * KEYS)]})
    run_next(system, AUTO)
    assert plan(system.catalog, system.clock, AUTO).jobs == ()
    for number in range(4):
        produce(system, here, KEYS, b"%d" % number)
    result = run_next(system, AUTO)
    assert result.counts["keys_outside_table"] > 0
    return here


def exactness(system: System, here: PartitionId) -> Exactness:
    (size,) = system.catalog.planning.sizes_of([here])
    return size.exactness


def check_exact(system: System, here: PartitionId, value: bytes = b"3") -> None:
    assert exactness(system, here) is Exactness.EXACT
    found = system.read_log(here)
    assert sorted((each.key, each.value) for each in found) == sorted(
        (b"key-%d" % number, value) for number in range(KEYS)
    )
    for settings in (AUTO, TASK, replace(AUTO, force=True)):
        assert plan(system.catalog, system.clock, settings).jobs == ()


def test_a_table_that_fills_unexpectedly_is_followed_by_the_exact_plan(system: System) -> None:
    """The planner makes that job by itself, says why, and has nothing to do once it is done."""
    here = overflown(system)
    assert exactness(system, here) is Exactness.DEDUP_INCOMPLETE

    planned = plan(system.catalog, system.clock, AUTO)

    (job,) = planned.jobs
    assert job.exact
    assert "left keys twice" in job.reason
    assert "an exact job follows" in planned.decisions[0].reason
    result = run_next(system, AUTO)
    assert result.counts["keys_outside_table"] == 0
    assert result.counts["records_out"] == KEYS
    check_exact(system, here)


def test_an_exact_job_is_owed_whatever_the_dirty_ratio(system: System) -> None:
    """Also where the topic asks to be cleaned only when all of it is dirty."""
    here = overflown(system)
    system.catalog.topics.alter_config("t", {"min.cleanable.dirty.ratio": "1"})
    run_next(system, AUTO)
    check_exact(system, here)


def test_who_runs_tasks_alone_makes_no_job_that_would_change_nothing(system: System) -> None:
    """Where jobs are forced to be tasks, none is planned until there is news, forced or not."""
    here = overflown(system)
    kept = len(system.read_log(here))
    for settings in (TASK, replace(TASK, force=True)):
        assert plan(system.catalog, system.clock, settings).jobs == ()
    for number in range(4, 8):
        produce(system, here, KEYS, b"%d" % number)
    result = run_next(system, TASK, PlanChoice.TASK)
    assert result.counts["records_in"] == kept + 4 * KEYS
    assert plan(system.catalog, system.clock, TASK).jobs == ()
    run_next(system, AUTO)
    check_exact(system, here, b"7")


def test_an_exact_job_that_is_run_as_a_task_is_not_planned_for_ever(system: System) -> None:
    """It drops nothing, so the partition rests; the next job, which news make due, is an exact one again."""
    here = overflown(system)
    result = run_next(system, AUTO, PlanChoice.TASK)
    assert result.counts["records_dropped"] == 0
    assert exactness(system, here) is Exactness.DEDUP_IMPOSSIBLE
    assert plan(system.catalog, system.clock, replace(AUTO, force=True)).jobs == ()
    (told,) = plan(system.catalog, system.clock, AUTO, explain="t").decisions
    assert "not exactly" in told.reason
    for number in range(4, 8):
        produce(system, here, KEYS, b"%d" % number)
    (job,) = plan(system.catalog, system.clock, AUTO).jobs
    assert job.exact
    run_next(system, AUTO)
    check_exact(system, here, b"7")
