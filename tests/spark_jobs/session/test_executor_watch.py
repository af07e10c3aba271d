"""A watch tells a cluster without executors from one whose tasks fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from core.clock import ManualClock
from spark_jobs.errors import NoExecutorError
from spark_jobs.session.executor_watch import ExecutorWatch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def session(*, running: int = 0, failed: int = 0) -> SparkSession:
    """Return the parts of a classic session that a watch uses, with one stage."""
    return session_of(SimpleNamespace(numActiveTasks=running, numFailedTasks=failed))


def session_of(stage: SimpleNamespace) -> SparkSession:
    """Return a session with a stage that may change."""
    tracker = SimpleNamespace(getActiveStageIds=lambda: [7, 8], getStageInfo={7: stage, 8: None}.get)
    context = SimpleNamespace(statusTracker=lambda: tracker)
    return cast("SparkSession", SimpleNamespace(_jvm=None, sparkContext=context))


@pytest.mark.parametrize(
    ("failed", "wait_seconds", "seconds", "reason"),
    [
        (0, 15, 15, "granted no executor "),
        (2, 15, 150, "granted no executor after 2 tasks had failed"),
        (2, 300, 300, "granted no executor after 2 tasks had failed"),
    ],
)
def test_after_failures_the_watch_waits_until_spark_has_had_time_to_name_them(
    failed: int, wait_seconds: float, seconds: float, reason: str
) -> None:
    clock = ManualClock()
    watch = ExecutorWatch(session(failed=failed), clock, wait_seconds)
    if failed:
        clock.advance(1)
        watch.check()
    clock.advance(seconds - 1)
    watch.check()
    clock.advance(1)
    with pytest.raises(NoExecutorError, match=rf"no task for {seconds} s: the cluster {reason}"):
        watch.check()


def test_a_task_that_runs_proves_an_executor() -> None:
    clock = ManualClock()
    watch = ExecutorWatch(session(running=1, failed=2), clock, 15)
    for _ in range(200):
        clock.advance(1)
        watch.check()


def test_a_task_that_fails_between_two_looks_proves_an_executor() -> None:
    """Python that cannot start fails at once. Spark names the failure 120 s after that."""
    clock = ManualClock()
    stages = SimpleNamespace(numActiveTasks=0, numFailedTasks=0)
    watch = ExecutorWatch(session_of(stages), clock, 300)
    clock.advance(290)
    watch.check()
    stages.numFailedTasks = 4
    for _ in range(149):
        clock.advance(1)
        watch.check()
