"""Packed jobs as Spark queries, on classic Spark and on Spark Connect alike.

A job is one task, or a separate query if its shuffle plan spreads it. Jobs of one task share a bounded
number of concurrent queries, so that results arrive as they are ready, while Spark alone decides where and
when each task runs. A query fails as a whole when one of its tasks returns no row in any of Spark's attempts,
because its worker was killed or its executor lost. Each of its jobs is then tried alone, so that only the job
that cannot run fails.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # py4j carries no types
from pyspark.errors import PySparkException

from spark_jobs.errors import SparkUnavailableError
from spark_jobs.report import JobFailure
from spark_jobs.session.spark_session import is_classic
from spark_jobs.shuffle.query import run_shuffled
from spark_jobs.task.entry import RESULT_SCHEMA, JobFunction, PackedJob, read_result_row

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self
    from uuid import UUID

    from pyspark.sql import SparkSession

    from catalog.model import JobResult
    from object_store.open import StoreConfig
    from spark_jobs.shuffle.plan import ShufflePlan

MAX_QUERIES = 32
_INTERRUPT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class QueryJob:
    """A packed job; with a `shuffle` plan it is spread over many tasks, otherwise it is one task."""

    packed: PackedJob
    shuffle: ShufflePlan | None = None


class JobQueries:
    """Context manager for queries in flight over `jobs`; leaving it cancels what still runs.

    `tag` must be unique to this run: Spark cancels queries by tag.
    """

    def __init__(
        self, spark: SparkSession, store: StoreConfig, jobs: Sequence[QueryJob], *, tag: str
    ) -> None:
        self._spark = spark
        self._store = store
        self._tag = tag
        whole = [job for job in jobs if job.shuffle is None]
        spread = [job for job in jobs if job.shuffle is not None]
        self._groups = [
            tuple(spread[start : start + 1]) for start in range(len(spread))
        ]  # first, because they take longest
        self._groups += [tuple(whole[start::MAX_QUERIES]) for start in range(min(MAX_QUERIES, len(whole)))]
        self._outcomes: queue.SimpleQueue[tuple[UUID, JobResult | JobFailure]] = queue.SimpleQueue()
        self._stopped = threading.Event()
        self._running: set[Future[None]] = set()
        self._threads = ThreadPoolExecutor(
            min(max(len(self._groups), 1), MAX_QUERIES), thread_name_prefix="spark-query"
        )

    def __enter__(self) -> Self:
        self._running = {self._threads.submit(self._run_group, group) for group in self._groups}
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        running = wait(self._running, timeout=0).not_done
        while running:  # repeat, because a query may have been about to start
            with suppress(PySparkException, Py4JError):  # Spark is gone, and its queries with it
                self._interrupt()
            running = wait(running, timeout=_INTERRUPT_SECONDS).not_done
        self._threads.shutdown()

    def next_outcome(self, timeout_seconds: float) -> tuple[UUID, JobResult | JobFailure] | None:
        """Return the next finished job with its result or failure; None if none finishes in time."""
        with suppress(queue.Empty):
            return self._outcomes.get(timeout=timeout_seconds)
        return None

    def _run_group(self, group: tuple[QueryJob, ...]) -> None:
        failure = self._try(group)
        if failure is None:
            return
        for job in group:
            alone = failure if len(group) == 1 else self._try((job,))
            if alone is not None:
                job_id = job.packed.job_id
                self._outcomes.put((job_id, JobFailure.of(job_id, alone)))

    def _try(self, jobs: tuple[QueryJob, ...]) -> Exception | None:
        """Run one query and queue its outcomes; return the error if the query failed."""
        if self._stopped.is_set():
            return SparkUnavailableError("the run was stopped before the job began")
        try:
            for job_id, outcome in self._outcomes_of(jobs):
                self._outcomes.put((job_id, outcome))
        except Exception as error:  # noqa: BLE001 -- the caller waits for these jobs, so every error must reach it
            return SparkUnavailableError(f"Spark could not finish the job: {_reason(error)}")
        return None

    def _outcomes_of(self, jobs: tuple[QueryJob, ...]) -> Iterator[tuple[UUID, JobResult | JobFailure]]:
        self._mark_thread()
        packed = tuple(job.packed for job in jobs)
        count = len(packed)
        plan = jobs[0].shuffle
        if plan is not None:
            yield packed[0].job_id, run_shuffled(self._spark, self._store, packed[0], plan)
            return
        function = JobFunction(self._store, packed)
        rows = self._spark.range(0, count, 1, count).mapInArrow(function.results, RESULT_SCHEMA).collect()
        for row in rows:
            yield packed[row["job"]].job_id, read_result_row(row.asDict())

    def _mark_thread(self) -> None:
        """Tag the queries of this thread so that they can be cancelled.

        A classic session keeps the tags of each thread apart, so that no thread could cancel another's
        queries. Its SparkContext does not.
        """
        if is_classic(self._spark):
            self._spark.sparkContext.addJobTag(self._tag)
            self._spark.sparkContext.setInterruptOnCancel(True)
        else:
            self._spark.addTag(self._tag)

    def _interrupt(self) -> None:
        if is_classic(self._spark):
            self._spark.sparkContext.cancelJobsWithTag(self._tag)
        else:
            self._spark.interruptTag(self._tag)


def _reason(error: Exception) -> str:
    """Return an exception's message in one line; a Java exception has it on the second line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[1].removeprefix(": ") if isinstance(error, Py4JJavaError) and lines[1:] else lines[0]
