"""Runs compaction jobs that the caller has claimed, on Spark; the catalog publishes their results.

While Spark works, a thread of the driver keeps the attempts alive in the catalog. A job ends in one of four
ways: its result is published in one transaction; the catalog refuses the result, because the world moved on;
it fails for good; or it goes back to the queue, since it may succeed later or the run was interrupted.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from core.errors import SiltstoneError, StaleStateError
from spark_jobs.errors import JobCancelledError
from spark_jobs.heartbeats import Heartbeats, Pulse, attempt_of
from spark_jobs.queries import JobQueries
from spark_jobs.report import CompactionReport, CutFile, JobFailure
from spark_jobs.session.worker_memory import fitted, worker_limit_bytes
from spark_jobs.shuffle.plan import PlanChoice, choose_plan
from spark_jobs.task.entry import PackedJob
from spark_jobs.transport import pack_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from uuid import UUID

    from pyspark.sql import SparkSession

    from catalog.model import Job, JobResult, JobSpec
    from core.clock import Clock
    from core.ids import Ids
    from object_store.open import StoreConfig
    from spark_jobs.shuffle.plan import ShufflePlan

MAX_ATTEMPTS = 3
_POLL_SECONDS = 0.25
_MAX_MS = (1 << 63) - 1  # as the catalog holds it


class JobBook(Pulse, Protocol):
    """What a run needs of the catalog: `Catalog.jobs`."""

    def complete(self, result: JobResult) -> None:
        """Publish in one transaction; StaleStateError when the attempt or an input is not what it was."""

    def fail(self, job_id: UUID, attempt_id: UUID, reason: str, *, lasting: bool = True) -> None:
        """Give the job up; unless `lasting`, the reason may pass."""

    def release(self, job_id: UUID, attempt_id: UUID) -> None:
        """Let somebody else, or the next run, have it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """What became of one job, for whoever shows progress."""

    job: Job
    result: JobResult | None
    failure: JobFailure | None
    cut_files: tuple[CutFile, ...] = ()


def _say_nothing(_outcome: JobOutcome) -> None:
    """Reports to nobody."""


def run_jobs(
    spark: SparkSession,
    jobs: Sequence[Job],
    *,
    store: StoreConfig,
    book: JobBook,
    clock: Clock,
    ids: Ids,
    progress: Callable[[JobOutcome], None] = _say_nothing,
    cancelled: threading.Event | None = None,
    plan: PlanChoice = PlanChoice.AUTO,
) -> CompactionReport:
    """Runs claimed jobs to their end and says what they did; one that fails does not harm the others.

    Jobs whose keys will probably not fit one key table go through Spark's shuffle, unless `plan` says which
    way all go.
    `store` must mean the same to the executors. When `cancelled` is set, or the call is interrupted, Spark's
    tasks are stopped, jobs that are not over go back to the catalog's queue, and JobCancelledError (or the
    interrupt) is raised.
    """
    run = _Run(jobs, book, clock, progress, cancelled or threading.Event())
    return run.run(spark, store, ids, plan)


class _Run:
    def __init__(
        self,
        jobs: Sequence[Job],
        book: JobBook,
        clock: Clock,
        progress: Callable[[JobOutcome], None],
        cancelled: threading.Event,
    ) -> None:
        self._running = {job.spec.job_id: job for job in jobs}
        self._book = book
        self._clock = clock
        self._progress = progress
        self._cancelled = cancelled
        self._report = CompactionReport(jobs=len(jobs))
        self._plans: dict[UUID, ShufflePlan] = {}

    def run(self, spark: SparkSession, store: StoreConfig, ids: Ids, plan: PlanChoice) -> CompactionReport:
        begin = self._clock.monotonic()
        limit_bytes = worker_limit_bytes(spark)
        now_ms = self._clock.now_ms()
        packed = [_pack(job, plan, limit_bytes, now_ms) for job in self._running.values()]
        self._plans = {each.job_id: each.shuffle for each in packed if each.shuffle is not None}
        try:
            with (
                Heartbeats(self._book, self._running.values()) as heartbeats,
                JobQueries(spark, store, packed, tag=f"siltstone-{ids.new_uuid()}") as queries,
            ):
                while self._running:
                    answer = queries.next_answer(_POLL_SECONDS)
                    if answer is not None:
                        self._settle(*answer)
                        heartbeats.drop(answer[0])
                    elif self._cancelled.is_set():
                        raise JobCancelledError("the run was stopped", remedy="run it again")
        finally:
            self._release_rest()
        self._report.seconds["total"] = self._clock.monotonic() - begin
        return self._report

    def _settle(self, job_id: UUID, answer: JobResult | JobFailure) -> None:
        job = self._running.pop(job_id, None)
        if job is None:  # answered before, in a query that then died
            return
        cut_files = tuple(_cut_files(job, self._plans.get(job_id)))
        failure = answer if isinstance(answer, JobFailure) else self._publish(answer, cut_files)
        result = None if isinstance(answer, JobFailure) or failure is not None else answer
        if failure is not None:
            failure = self._give_back(job, failure)
            self._report.failures.append(failure)
        told = cut_files if result is not None else ()
        self._progress(JobOutcome(job=job, result=result, failure=failure, cut_files=told))

    def _publish(self, result: JobResult, cut_files: tuple[CutFile, ...]) -> JobFailure | None:
        try:
            self._book.complete(result)
        except SiltstoneError as error:
            return JobFailure.of(result.job_id, error)
        self._report.add(result, cut_files)
        return None

    def _give_back(self, job: Job, failure: JobFailure) -> JobFailure:
        """To the queue when it may succeed later, and was not tried too often; else as failed."""
        released = failure.retryable and job.attempts < MAX_ATTEMPTS
        try:
            if released:
                self._book.release(job.spec.job_id, attempt_of(job))
            else:
                reason = failure.message
                self._book.fail(job.spec.job_id, attempt_of(job), reason, lasting=not failure.retryable)
        except StaleStateError:  # it is somebody else's by now, or over
            return failure
        except SiltstoneError as error:  # the catalog finds out itself once heartbeats stop
            return replace(failure, message=f"{failure.message}; and the catalog was not told: {error}")
        return replace(failure, released=released)

    def _release_rest(self) -> None:
        release_jobs(self._book, self._running.values())
        self._running.clear()


def release_jobs(book: JobBook, jobs: Iterable[Job]) -> None:
    """Gives claimed jobs back to the queue, as far as they are still the caller's."""
    for job in jobs:
        with suppress(SiltstoneError):  # what cannot be told, the catalog finds out once heartbeats stop
            book.release(job.spec.job_id, attempt_of(job))


def _cut_files(job: Job, plan: ShufflePlan | None) -> Iterator[CutFile]:
    """What the job's plan cuts, for its report."""
    for index, shares in plan.cut_files.items() if plan is not None else ():
        assert plan is not None
        stretches = [stretch for number in shares if (stretch := plan.shares[number].stretch) is not None]
        yield CutFile(
            job_id=str(job.spec.job_id),
            object_name=job.spec.inputs[index].object_name,
            size=job.spec.inputs[index].size,
            shares=shares,
            ends=[stretch.end for stretch in stretches],
        )


def begun(spec: JobSpec, now_ms: int) -> JobSpec:
    """The job with the grace of its tombstones counted from now on.

    Until it publishes readers meet the records that a tombstone deletes, however long the job has waited.
    """
    waited_ms = max(0, now_ms - spec.now_ms)
    longer = [
        replace(each, delete_retention_ms=min(each.delete_retention_ms + waited_ms, _MAX_MS))
        for each in spec.partitions
    ]
    return replace(spec, partitions=tuple(longer))


def _pack(job: Job, choice: PlanChoice, limit_bytes: int | None, now_ms: int) -> PackedJob:
    spec = begun(fitted(job.spec, limit_bytes), now_ms)
    try:
        shuffle = choose_plan(spec, choice)
    except SiltstoneError:  # a task will find the same, and answer with it
        shuffle = None
    return PackedJob(job.spec.job_id, attempt_of(job), pack_spec(spec), shuffle)
