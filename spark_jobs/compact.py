"""Run claimed compaction jobs on Spark; the catalog alone publishes their results.

While Spark works, a thread of the driver renews the attempts in the catalog. Each job is reported as soon as
it ends, in one of these ways:

- The catalog publishes its result in one transaction.
- A file is proven to be corrupt, or the log has changed: the job fails.
- A worker died, or the environment failed: the job returns to the queue and waits there. If unrelated jobs
  fail alike, the catalog pauses compaction, and the run stops.
- Spark was lost while the job ran: the same, and from the second time on the job runs alone, because one of
  the jobs may have ended Spark.
- The run was interrupted, or the cluster runs no task: the job returns to the queue at once. So does a job
  whose end could not be reported, because the catalog did not respond: once it responds again.
"""

from __future__ import annotations

import threading
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from core.errors import RetryableError, SiltstoneError, StaleStateError
from spark_jobs.errors import JobCancelledError, SparkUnavailableError, WorkerDiedError
from spark_jobs.heartbeats import Heartbeats, Pulse, attempt_of
from spark_jobs.queries import JobQueries, QueryJob
from spark_jobs.report import CompactionReport, CutFile, JobFailure
from spark_jobs.session.executor_watch import ExecutorWatch
from spark_jobs.session.spark_session import gone_sessions_named
from spark_jobs.session.worker_memory import fit_table, worker_limit_bytes
from spark_jobs.settings import DEFAULT_WAIT_SECONDS
from spark_jobs.shuffle.plan import PlanChoice, choose_plan
from spark_jobs.task.entry import PackedJob
from spark_jobs.transport import pack_spec
from spark_jobs.write_amplification import with_amplification

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence

    from pyspark.sql import SparkSession

    from catalog.jobs.circuit_breaker import BackOff
    from catalog.model import Job, JobResult, JobSpec
    from core.clock import Clock
    from core.ids import Ids
    from object_store.open import StoreConfig
    from spark_jobs.shuffle.plan import ShufflePlan

_POLL_SECONDS = 0.25
_MAX_MS = (1 << 63) - 1  # of a bigint column


class JobBook(Pulse, Protocol):
    """The part of the catalog (`Catalog.jobs`) that a run needs."""

    def complete(self, result: JobResult, spec: JobSpec) -> None:
        """Publish in one transaction; `spec` is the job's own. StaleStateError: attempt or inputs changed."""

    def fail(self, job_id: UUID, attempt_id: UUID, reason: str, *, suspects: Collection[UUID] = ()) -> None:
        """Fail the job; `suspects` are the files that are proven to be corrupt."""

    def back_off(
        self,
        job_id: UUID,
        attempt_id: UUID,
        *,
        error: str,
        reason: str,
        died: bool = False,
        session_lost: bool = False,
    ) -> BackOff:
        """Return the job to the queue after a fault, unless its processes died too often."""

    def release(self, job_id: UUID, attempt_id: UUID) -> None:
        """Return the job to the queue."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOutcome:
    """Outcome of one job, for progress displays.

    `unreported` if the catalog did not respond to the report: it may still count the job as running.
    """

    job: Job
    result: JobResult | None
    failure: JobFailure | None
    cut_files: tuple[CutFile, ...] = ()
    unreported: bool = False


def _say_nothing(_outcome: JobOutcome) -> None:
    """Report nothing."""


def no_more(_running: int) -> Sequence[Job]:
    """Return no further jobs."""
    return ()


def run_jobs(
    spark: SparkSession,
    jobs: Sequence[Job],
    *,
    store: StoreConfig,
    book: JobBook,
    clock: Clock,
    ids: Ids,
    more: Callable[[int], Sequence[Job]] = no_more,
    progress: Callable[[JobOutcome], None] = _say_nothing,
    cancelled: threading.Event | None = None,
    plan: PlanChoice = PlanChoice.AUTO,
    executor_wait_seconds: float = DEFAULT_WAIT_SECONDS,
) -> CompactionReport:
    """Run claimed jobs to their end and report on them; a job that fails does not affect the others.

    While jobs run, `more` is called several times a second with their number, after all finished jobs were
    published, and at once when jobs have started. It returns further claimed jobs to run. It is called no
    more after Spark was lost. An exception that it raises ends the run.

    Jobs whose keys will probably not fit one key table go through Spark's shuffle, unless `plan` chooses one
    way for all. `store` must mean the same to the executors. If `cancelled` is set, or the call is
    interrupted, Spark's tasks are stopped, unfinished jobs return to the catalog's queue, and
    JobCancelledError (or the interrupt) is raised. The same happens, with NoExecutorError, if the cluster
    runs no task for `executor_wait_seconds`. If the catalog pauses compaction, unfinished jobs return to the
    queue, and the report is returned. If the session is found dead, SparkUnavailableError is raised, and the
    unfinished jobs wait in the queue.
    """
    run = _Run(book, clock, more, progress, cancelled or threading.Event())
    return run.run(spark, jobs, store, ids, plan, executor_wait_seconds)


class _Run:
    """Run of one call. Jobs are found by their attempts.

    A driver that was frozen may lose a job and claim it again, while a task of the earlier attempt runs.
    """

    def __init__(
        self,
        book: JobBook,
        clock: Clock,
        more: Callable[[int], Sequence[Job]],
        progress: Callable[[JobOutcome], None],
        cancelled: threading.Event,
    ) -> None:
        self._running: dict[UUID, Job] = {}
        self._unreported: dict[UUID, Job] = {}
        self._book = book
        self._clock = clock
        self._more = more
        self._progress = progress
        self._cancelled = cancelled
        self._report = CompactionReport()
        self._paused = False
        self._plans: dict[UUID, ShufflePlan] = {}

    def run(
        self,
        spark: SparkSession,
        jobs: Sequence[Job],
        store: StoreConfig,
        ids: Ids,
        plan: PlanChoice,
        executor_wait_seconds: float,
    ) -> CompactionReport:
        begin = self._clock.monotonic()
        self._add(jobs)
        try:
            limit_bytes = worker_limit_bytes(spark)
            with (
                Heartbeats(self._book) as heartbeats,
                ExecutorWatch(spark, self._clock, executor_wait_seconds) as watch,
                JobQueries(spark, store, tag=f"siltstone-{ids.new_uuid()}") as queries,
                self._backing_off_if_lost(),
            ):
                while jobs or (self._running and not self._paused):
                    if jobs:
                        heartbeats.add(jobs)
                        queries.start(self._packed(jobs, plan, limit_bytes))
                    # Plan ahead as soon as jobs have started: a plan takes about as long as a job.
                    finished = queries.next_outcome(0 if jobs else _POLL_SECONDS)
                    if finished is None and self._cancelled.is_set():
                        raise JobCancelledError("the run was stopped", remedy="run it again")
                    while finished is not None:  # all of them: `more` may plan for as long as a job runs
                        self._finish(*finished)
                        heartbeats.drop(finished[0])
                        ends = self._paused or not self._running
                        finished = None if ends else queries.next_outcome(0)
                    watch.check()
                    self._release_unreported()
                    jobs = () if self._paused else self._more(len(self._running))
                    self._add(jobs)
        finally:
            self._release_rest()
        self._report.seconds["total"] = self._clock.monotonic() - begin
        return self._report

    @contextmanager
    def _backing_off_if_lost(self) -> Iterator[None]:
        """Back off the jobs that run if the session is found dead: one of them may have ended it."""
        try:
            with gone_sessions_named():
                yield
        except SparkUnavailableError as error:
            for job in self._running.values():
                self._give_back(job, JobFailure.of(job.spec.job_id, error))
            self._running.clear()
            raise

    def _add(self, jobs: Sequence[Job]) -> None:
        self._running |= {attempt_of(job): job for job in jobs}
        self._report.jobs += len(jobs)

    def _packed(self, jobs: Sequence[Job], plan: PlanChoice, limit_bytes: int | None) -> list[QueryJob]:
        now_ms = self._clock.now_ms()
        packed = [_pack(job, plan, limit_bytes, now_ms) for job in jobs]
        self._plans |= {each.packed.attempt_id: each.shuffle for each in packed if each.shuffle is not None}
        return packed

    def _finish(self, attempt_id: UUID, outcome: JobResult | JobFailure) -> None:
        job = self._running.pop(attempt_id, None)
        if job is None:  # already finished, by a query that failed afterwards
            return
        cut_files = tuple(_cut_files(job, self._plans.pop(attempt_id, None)))
        if not isinstance(outcome, JobFailure):
            outcome = with_amplification(outcome, job.spec)
        failure = outcome if isinstance(outcome, JobFailure) else self._publish(job, outcome, cut_files)
        result = None if isinstance(outcome, JobFailure) or failure is not None else outcome
        if failure is not None:
            failure = self._give_back(job, failure)
            self._report.failures.append(failure)
        if result is None:
            cut_files = ()
        self._progress(
            JobOutcome(
                job=job,
                result=result,
                failure=failure,
                cut_files=cut_files,
                unreported=attempt_id in self._unreported,
            )
        )

    def _publish(self, job: Job, result: JobResult, cut_files: tuple[CutFile, ...]) -> JobFailure | None:
        try:
            self._book.complete(result, job.spec)
        except SiltstoneError as error:
            return JobFailure.of(result.job_id, error)
        self._report.add(result, cut_files)
        return None

    def _give_back(self, job: Job, failure: JobFailure) -> JobFailure:
        """Fail a job that cannot succeed; otherwise return it to the queue."""
        try:
            released = self._report_failure(job.spec.job_id, attempt_of(job), failure)
        except StaleStateError:  # another process has it, or it is finished
            return failure
        except SiltstoneError as error:  # if it is not retriable, the attempt ends when its heartbeats stop
            if isinstance(error, RetryableError):
                self._unreported[attempt_of(job)] = job
            return replace(
                failure, message=f"{failure.message}; and the catalog could not be reached: {error}"
            )
        return replace(failure, released=released)

    def _report_failure(self, job_id: UUID, attempt_id: UUID, failure: JobFailure) -> bool:
        """Report a failure to the catalog; return True if the job returned to the queue."""
        if failure.is_final:
            suspects = [] if failure.file_id is None else [UUID(failure.file_id)]
            self._book.fail(job_id, attempt_id, failure.message, suspects=suspects)
            return False
        session_lost = failure.error == SparkUnavailableError.__name__
        if session_lost:
            self._more = no_more  # they would fail alike
        if session_lost and self._cancelled.is_set():  # the signal ended Java, too
            self._book.release(job_id, attempt_id)
            return True
        done = self._book.back_off(
            job_id,
            attempt_id,
            error=failure.error,
            reason=failure.message,
            died=failure.error == WorkerDiedError.__name__,
            session_lost=session_lost,
        )
        self._paused = self._paused or done.pause is not None
        return done.released

    def _release_unreported(self) -> None:
        """Return jobs to the queue whose ends could not be reported.

        Otherwise the catalog would take the driver for dead: it sends no heartbeats for them any more.
        """
        with suppress(SiltstoneError):  # tried again
            for attempt_id, job in list(self._unreported.items()):
                self._book.release(job.spec.job_id, attempt_id)
                del self._unreported[attempt_id]

    def _release_rest(self) -> None:
        release_jobs(self._book, (self._running | self._unreported).values())
        self._running.clear()


def release_jobs(book: JobBook, jobs: Iterable[Job]) -> None:
    """Return claimed jobs to the queue, unless they have already been taken from the caller."""
    for job in jobs:
        with suppress(SiltstoneError):  # the attempt ends when its heartbeats stop
            book.release(job.spec.job_id, attempt_of(job))


def _cut_files(job: Job, plan: ShufflePlan | None) -> Iterator[CutFile]:
    """Yield the files that the job's plan cuts, for its report."""
    for index, shares in plan.cut_files.items() if plan is not None else ():
        assert plan is not None
        ranges = [each for number in shares if (each := plan.shares[number].byte_range) is not None]
        yield CutFile(
            job_id=str(job.spec.job_id),
            object_name=job.spec.inputs[index].object_name,
            size=job.spec.inputs[index].size,
            shares=shares,
            ends=[each.end for each in ranges],
        )


def restart_grace(spec: JobSpec, now_ms: int) -> JobSpec:
    """Return the job with the grace of its tombstones counted from now.

    Until the job publishes, readers meet the records that a tombstone deletes, however long the job has
    waited.
    """
    waited_ms = max(0, now_ms - spec.now_ms)
    longer = [
        replace(each, delete_retention_ms=min(each.delete_retention_ms + waited_ms, _MAX_MS))
        for each in spec.partitions
    ]
    return replace(spec, partitions=tuple(longer))


def _pack(job: Job, choice: PlanChoice, limit_bytes: int | None, now_ms: int) -> QueryJob:
    spec = restart_grace(fit_table(job.spec, limit_bytes), now_ms)
    try:
        shuffle = choose_plan(spec, choice)
    except SiltstoneError:  # a task will find the same error and return it
        shuffle = None
    return QueryJob(PackedJob(job.spec.job_id, attempt_of(job), pack_spec(spec)), shuffle)
