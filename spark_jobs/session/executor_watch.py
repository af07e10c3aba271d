"""Detection of a cluster that runs none of this session's tasks.

A cluster without free resources keeps queries waiting, for ever by default. Their jobs are claimed meanwhile,
and no other driver can run them.

Tasks that fail may leave a cluster without executors, too: Spark excludes an executor on which a task failed.
It then fails the query after two minutes, and names the failure, which a watch must not hide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

from spark_jobs.errors import NoExecutorError
from spark_jobs.session.spark_session import is_classic
from spark_jobs.settings import DEFAULT_WAIT_SECONDS

if TYPE_CHECKING:
    from typing import Self

    from pyspark.sql import SparkSession
    from pyspark.sql.connect.shell.progress import ProgressHandler

    from core.clock import Clock

_PAUSE_SECONDS: Final = 1.0
# spark.scheduler.excludeOnFailure.unschedulableTaskSetTimeout is 120 s.
_EXCLUSION_SECONDS: Final = 150.0


class ExecutorWatch:
    """Context manager that notices when no task has run for `wait_seconds`, although queries wait.

    After failures of their tasks it waits until Spark has had time to fail the queries. A task that fails
    has run, also if it did so between two looks. A classic session counts its tasks; a Connect server reports
    those of each query that run.
    """

    def __init__(self, spark: SparkSession, clock: Clock, wait_seconds: float = DEFAULT_WAIT_SECONDS) -> None:
        self._spark = spark
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._tasks_of_query: dict[str, int] = {}
        self._failed = 0
        self._checked = self._active = clock.monotonic()

    def __enter__(self) -> Self:
        if not is_classic(self._spark):
            self._spark.registerProgressHandler(cast("ProgressHandler", self._on_progress))
        return self

    def __exit__(self, *_: object) -> None:
        if not is_classic(self._spark):
            self._spark.removeProgressHandler(cast("ProgressHandler", self._on_progress))

    def check(self) -> None:
        """Raise NoExecutorError if no task has run for too long; call it often while queries run."""
        now = self._clock.monotonic()
        if now - self._checked < _PAUSE_SECONDS:
            return
        self._checked = now
        running, failed = self._tasks()
        before, self._failed = self._failed, failed
        seconds = max(self._wait_seconds, _EXCLUSION_SECONDS) if failed else self._wait_seconds
        if running or failed > before:
            self._active = now
        elif now - self._active >= seconds:
            granted = f"no executor after {failed} tasks had failed" if failed else "no executor"
            raise NoExecutorError(
                f"Spark ran no task for {seconds:g} s: the cluster granted {granted}",
                remedy="free resources of the cluster, or give the session smaller executors; "
                "executor_wait_seconds is the time to wait",
            )

    def _tasks(self) -> tuple[int, int]:
        """Return how many tasks run, and how many have failed in the present stages, as far as is known."""
        if not is_classic(self._spark):
            return sum(self._tasks_of_query.copy().values()), 0
        tracker = self._spark.sparkContext.statusTracker()
        found = (tracker.getStageInfo(number) for number in tracker.getActiveStageIds())
        stages = [stage for stage in found if stage is not None]
        return sum(each.numActiveTasks for each in stages), sum(each.numFailedTasks for each in stages)

    def _on_progress(self, *, inflight_tasks: int, operation_id: str | None, done: bool, **_: object) -> None:
        if operation_id is None:
            return
        if done:
            self._tasks_of_query.pop(operation_id, None)
            self._active = self._clock.monotonic()
        else:
            self._tasks_of_query[operation_id] = inflight_tasks
