"""Runs packed jobs as Spark queries, on classic Spark and on Spark Connect alike.

A job is one task, or a query of its own where the shuffle plan spreads it. The former share a bounded number
of queries that run at the same time, so that results come in as they are ready, while Spark alone decides
which task runs where and when. A query dies as a whole when one of its tasks does not answer in any of
Spark's attempts (its worker was killed, its executor lost): each of its jobs is then tried alone, so that
only the one that cannot be done fails.
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import TYPE_CHECKING

from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]  # py4j carries no types
from pyspark.errors import PySparkException

from spark_jobs.errors import SparkUnavailableError
from spark_jobs.report import JobFailure
from spark_jobs.session.spark_session import is_classic
from spark_jobs.shuffle.query import run_shuffled
from spark_jobs.task.entry import ANSWER_SCHEMA, JobKernel, PackedJob, read_answer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from typing import Self
    from uuid import UUID

    from pyspark.sql import SparkSession

    from catalog.model import JobResult
    from object_store.open import StoreConfig

MAX_QUERIES = 32
_INTERRUPT_SECONDS = 1.0


class JobQueries:
    """Queries in flight over `jobs`; a context manager, whose end cancels what still runs.

    `tag` must be this run's own: it is what Spark cancels by.
    """

    def __init__(
        self, spark: SparkSession, store: StoreConfig, jobs: Sequence[PackedJob], *, tag: str
    ) -> None:
        self._spark = spark
        self._store = store
        self._tag = tag
        whole = [job for job in jobs if job.shuffle is None]
        spread = [job for job in jobs if job.shuffle is not None]
        self._groups = [tuple(spread[start : start + 1]) for start in range(len(spread))]  # they take longest
        self._groups += [tuple(whole[start::MAX_QUERIES]) for start in range(min(MAX_QUERIES, len(whole)))]
        self._answers: queue.SimpleQueue[tuple[UUID, JobResult | JobFailure]] = queue.SimpleQueue()
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
        while running:  # again and again: a query may have been about to start
            with suppress(PySparkException, Py4JError):  # Spark is gone, and its queries with it
                self._interrupt()
            running = wait(running, timeout=_INTERRUPT_SECONDS).not_done
        self._threads.shutdown()

    def next_answer(self, timeout_seconds: float) -> tuple[UUID, JobResult | JobFailure] | None:
        """The next job that is over, with its result or failure; None when none is within the time."""
        with suppress(queue.Empty):
            return self._answers.get(timeout=timeout_seconds)
        return None

    def _run_group(self, group: tuple[PackedJob, ...]) -> None:
        failure = self._try(group)
        if failure is None:
            return
        for job in group:
            alone = failure if len(group) == 1 else self._try((job,))
            if alone is not None:
                self._answers.put((job.job_id, JobFailure.of(job.job_id, alone)))

    def _try(self, jobs: tuple[PackedJob, ...]) -> Exception | None:
        """Run one query and hand on its answers, or say why it died."""
        if self._stopped.is_set():
            return SparkUnavailableError("the run was stopped before the job began")
        try:
            for job, answer in self._answers_of(jobs):
                self._answers.put((job.job_id, answer))
        except Exception as error:  # noqa: BLE001 -- whatever it is, somebody waits for these jobs
            return SparkUnavailableError(f"Spark could not run the job to its end: {_reason(error)}")
        return None

    def _answers_of(self, jobs: tuple[PackedJob, ...]) -> Iterator[tuple[PackedJob, JobResult | JobFailure]]:
        self._mark_thread()
        count = len(jobs)
        plan = jobs[0].shuffle
        if plan is not None:
            yield jobs[0], run_shuffled(self._spark, self._store, jobs[0], plan)
            return
        kernel = JobKernel(self._store, jobs)
        rows = self._spark.range(0, count, 1, count).mapInArrow(kernel.answers, ANSWER_SCHEMA).collect()
        for row in rows:
            yield jobs[row["job"]], read_answer(row.asDict())

    def _mark_thread(self) -> None:
        """Let what this thread runs be found by the tag.

        A classic session keeps the tags of one thread apart from those of another, so that none could
        interrupt another's; its context does not.
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
    """What an exception says in one line; what Java has thrown begins on the second line."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[1].removeprefix(": ") if isinstance(error, Py4JJavaError) and lines[1:] else lines[0]
