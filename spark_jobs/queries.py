"""Packed jobs as Spark queries, on classic Spark and on Spark Connect alike.

Each job is a separate query, so that its result arrives as soon as it is ready, and a driver that dies loses
only the jobs that are not finished. A job is one task, or many if its shuffle plan spreads it. Spark alone
decides where and when each task runs. A query fails if one of its tasks fails in each of Spark's attempts.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError  # type: ignore[import-untyped]  # py4j carries no types
from pyspark.errors import PySparkException

from spark_jobs.query_failures import failure_of
from spark_jobs.session.spark_session import is_classic
from spark_jobs.shuffle.query import run_shuffled
from spark_jobs.task.entry import RESULT_SCHEMA, JobFunction, PackedJob, read_result_row

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self
    from uuid import UUID

    from pyspark.sql import SparkSession

    from catalog.model import JobResult
    from object_store.open import StoreConfig
    from spark_jobs.report import JobFailure
    from spark_jobs.shuffle.plan import ShufflePlan

MAX_QUERIES = 100
_INTERRUPT_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class QueryJob:
    """A packed job; with a `shuffle` plan it is spread over many tasks, otherwise it is one task."""

    packed: PackedJob
    shuffle: ShufflePlan | None = None


class TaggedQueries:
    """Context manager for threads that run queries; leaving it cancels the queries that still run.

    `tag` must be unique to this run: Spark cancels queries by tag.
    """

    def __init__(self, spark: SparkSession, threads: int, *, tag: str) -> None:
        self._spark = spark
        self._tag = tag
        self._running: list[Future[None]] = []
        self._stopped = threading.Event()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="spark-query")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        running = wait(self._running, timeout=0).not_done
        while running:  # repeat, because a query may have been about to start
            with suppress(PySparkException, Py4JError, OSError):  # Spark is gone, and its queries with it
                self._interrupt()
            running = wait(running, timeout=_INTERRUPT_SECONDS).not_done
        self._threads.shutdown()

    def submit(self, query: Callable[[], None]) -> None:
        """Run a function with queries in a thread, unless the queries are cancelled before."""
        self._running = [each for each in self._running if not each.done()]
        self._running.append(self._threads.submit(self._run, query))

    def _run(self, query: Callable[[], None]) -> None:
        if self._stopped.is_set():
            return
        self._mark_thread()
        query()

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


class JobQueries:
    """Context manager for jobs that run as queries; leaving it cancels what still runs.

    At most `MAX_QUERIES` run at a time, the others wait.
    """

    def __init__(self, spark: SparkSession, store: StoreConfig, *, tag: str) -> None:
        self._spark = spark
        self._store = store
        self._outcomes: queue.SimpleQueue[tuple[UUID, JobResult | JobFailure]] = queue.SimpleQueue()
        self._queries = TaggedQueries(spark, MAX_QUERIES, tag=tag)

    def __enter__(self) -> Self:
        self._queries.__enter__()
        return self

    def __exit__(self, *details: object) -> None:
        self._queries.__exit__(*details)

    def start(self, jobs: Iterable[QueryJob]) -> None:
        """Start jobs; shuffled ones first, because they take longest."""
        for job in sorted(jobs, key=lambda job: job.shuffle is None):
            self._queries.submit(partial(self._run, job))

    def next_outcome(self, timeout_seconds: float) -> tuple[UUID, JobResult | JobFailure] | None:
        """Return the next finished attempt with its result or failure; None if none finishes in time."""
        with suppress(queue.Empty):
            return self._outcomes.get(timeout=timeout_seconds)
        return None

    def _run(self, job: QueryJob) -> None:
        try:
            outcome = self._outcome_of(job)
        except Exception as error:  # noqa: BLE001 -- the caller waits for the job, so every error must reach it
            outcome = failure_of(job.packed.job_id, error)
        self._outcomes.put((job.packed.attempt_id, outcome))

    def _outcome_of(self, job: QueryJob) -> JobResult | JobFailure:
        if job.shuffle is not None:
            return run_shuffled(self._spark, self._store, job.packed, job.shuffle)
        function = JobFunction(self._store, (job.packed,))
        (row,) = self._spark.range(0, 1, 1, 1).mapInArrow(function.results, RESULT_SCHEMA).collect()
        return read_result_row(row.asDict())
