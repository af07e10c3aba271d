"""Detection of a cluster that runs none of this session's tasks.

A cluster without free resources keeps queries waiting, for ever by default. Their jobs are claimed meanwhile,
and no other driver can run them.
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


class ExecutorWatch:
    """Context manager that notices when no task has run for `wait_seconds`, although queries wait.

    A classic session counts its active tasks; a Connect server reports those of each query.
    """

    def __init__(self, spark: SparkSession, clock: Clock, wait_seconds: float = DEFAULT_WAIT_SECONDS) -> None:
        self._spark = spark
        self._clock = clock
        self._wait_seconds = wait_seconds
        self._tasks_of_query: dict[str, int] = {}
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
        if self._running_tasks():
            self._active = now
        elif now - self._active >= self._wait_seconds:
            raise NoExecutorError(
                f"Spark ran no task for {self._wait_seconds:g} s: the cluster granted no executor",
                remedy="free resources of the cluster, or give the session smaller executors; "
                "executor_wait_seconds is the time to wait",
            )

    def _running_tasks(self) -> int:
        if not is_classic(self._spark):
            return sum(self._tasks_of_query.copy().values())
        tracker = self._spark.sparkContext.statusTracker()
        stages = (tracker.getStageInfo(number) for number in tracker.getActiveStageIds())
        return sum(stage.numActiveTasks for stage in stages if stage is not None)

    def _on_progress(self, *, inflight_tasks: int, operation_id: str | None, done: bool, **_: object) -> None:
        if operation_id is None:
            return
        if done:
            self._tasks_of_query.pop(operation_id, None)
            self._active = self._clock.monotonic()
        else:
            self._tasks_of_query[operation_id] = inflight_tasks
