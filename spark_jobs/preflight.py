"""Check of the workers before a driver claims jobs, so that a broken environment fails no job.

As many tasks as the session has slots run `spark_jobs.task.worker_check`. Spark decides where they run, so a
worker may be missed; each task of a job therefore compares the kernels again (`spark_jobs.transport`).
"""

from __future__ import annotations

import queue
from contextlib import suppress
from typing import TYPE_CHECKING, Final

from spark_jobs.errors import PreflightError
from spark_jobs.queries import TaggedQueries
from spark_jobs.query_failures import reason_of
from spark_jobs.session.executor_watch import ExecutorWatch
from spark_jobs.session.spark_session import task_slots
from spark_jobs.settings import DEFAULT_WAIT_SECONDS
from spark_jobs.task.worker_check import CHECK_SCHEMA, WorkerCheck, WorkerReport, report_of_this_process

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from uuid import UUID

    from pyspark.sql import SparkSession

    from core.clock import Clock
    from core.ids import Ids
    from object_store.open import StoreConfig

_POLL_SECONDS: Final = 0.1
_MAX_TASKS: Final = 64


def check_workers(
    spark: SparkSession,
    store: StoreConfig,
    store_id: UUID | None,
    *,
    clock: Clock,
    ids: Ids,
    executor_wait_seconds: float = DEFAULT_WAIT_SECONDS,
) -> list[WorkerReport]:
    """Check the session's workers and return their reports.

    `store_id` is the store that the catalog has recorded. Raise PreflightError, with all that must be fixed,
    if a worker cannot run jobs, and NoExecutorError if no worker starts in time.
    """
    check = WorkerCheck(store, store_id)
    tasks = min(task_slots(spark), _MAX_TASKS)
    outcomes: queue.SimpleQueue[list[WorkerReport] | Exception] = queue.SimpleQueue()

    def query() -> None:
        try:
            rows = spark.range(0, tasks, 1, tasks).mapInArrow(check.reports, CHECK_SCHEMA).collect()
            outcomes.put([WorkerReport.unpack(bytes(row["worker"])) for row in rows])
        except Exception as error:  # noqa: BLE001 -- the caller waits for the outcome
            outcomes.put(error)

    with (
        TaggedQueries(spark, 1, tag=f"siltstone-{ids.new_uuid()}") as queries,
        ExecutorWatch(spark, clock, executor_wait_seconds) as watch,
    ):
        queries.submit(query)
        while (outcome := _next(outcomes)) is None:
            watch.check()
    if isinstance(outcome, Exception):
        raise PreflightError(
            f"Spark's workers cannot run Siltstone: {reason_of(outcome)}",
            remedy="install the same Siltstone in the Python environment of the driver and of all workers",
        ) from outcome
    _require_no_problems(outcome)
    return outcome


def _next(
    outcomes: queue.SimpleQueue[list[WorkerReport] | Exception],
) -> list[WorkerReport] | Exception | None:
    """Return the outcome of the query as soon as there is one; None if it takes longer."""
    with suppress(queue.Empty):
        return outcomes.get(timeout=_POLL_SECONDS)
    return None


def _require_no_problems(reports: Iterable[WorkerReport]) -> None:
    expected = report_of_this_process().versions
    problems = {problem: None for report in reports for problem in _problems_of(report, expected)}
    if problems:
        raise PreflightError(f"Spark's workers cannot run jobs: {'; '.join(problems)}; no job was claimed")


def _problems_of(report: WorkerReport, expected: dict[str, str]) -> Iterator[str]:
    for problem in report.problems:
        yield f"{report.host}: {problem}"
    different = [
        f"{name} {found} instead of {expected[name]}"
        for name, found in report.versions.items()
        if found != expected.get(name, found)
    ]
    if different:
        yield (
            f"{report.host} has {', '.join(different)} (install what the driver has on all workers, then"
            " restart them)"
        )
