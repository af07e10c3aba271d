"""Continuous compaction: plan, run jobs, wait, and repeat until a signal arrives.

Several watchers of one catalog share its work. The catalog gives each job to one watcher (the others skip
locked rows). A watcher plans until every task slot of its Spark session has a job, and claims no more jobs
than slots, so that the other watchers get the rest. When a job ends, its slot gets another one, while the
other jobs go on (`siltstone.compaction.job_supply`). The jobs of a watcher that died return to the queue
after 90 s without heartbeats.

One Spark session serves all polls. It starts when there is a job to run. If it is lost, the next poll starts
another one.

Small amounts of new data wait for more (`planner.pace`), so a trickle is not rewritten several times. If
nothing is due, a watcher rests for the interval. Watchers share their looks at the catalog
(`siltstone.compaction.shared_look`): while nothing has changed, none of them plans.

A watcher survives any outage of the catalog or the store: it polls again, after pauses of at most the
interval. A store that rejects the credentials counts as an outage, because they may be renewed. While the
catalog pauses compaction, because unrelated jobs failed alike, a watcher runs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import TYPE_CHECKING, Final

import structlog

from core.clock import SystemClock
from core.errors import RetryableError, StaleStateError
from core.outage import FIRST_PAUSE_SECONDS, Outage
from object_store.errors import StoreAccessError
from planner.planner import LookCursor
from siltstone.compaction.compactor import (
    CompactionRun,
    check_session,
    claim_jobs,
    new_application_id,
    new_session,
    plan_jobs,
)
from siltstone.compaction.job_supply import FoundJobs, JobSupply
from siltstone.compaction.pause import describe_pause, waiting_pause
from spark_jobs.compact import release_jobs
from spark_jobs.errors import JobCancelledError, SparkUnavailableError

if TYPE_CHECKING:
    import threading

    from catalog.model import Job
    from planner.settings import PlannerSettings
    from siltstone.compaction.compactor import CompactionOptions
    from siltstone.context import AppContext
    from siltstone.interrupts import Interrupts
    from siltstone.settings.configuration import Settings
    from spark_jobs.compact import JobOutcome
    from spark_jobs.session_manager import SparkSessionManager

DEFAULT_INTERVAL_SECONDS: Final = 10.0
_MAX_HISTORY: Final = 100
_LOOK_SECONDS: Final = 1.0
_SURVIVED: Final = (RetryableError, StaleStateError, StoreAccessError)


@dataclass(slots=True)
class WatcherStatus:
    """Counts since the start of a watcher, for its metrics and its final report.

    `siltstone.compaction.watcher_metrics` describes each field. Of failures and cut files, only the last
    `_MAX_HISTORY` are kept.
    """

    run: CompactionRun = field(default_factory=CompactionRun)
    polls: int = 0
    polls_failed: int = 0
    jobs_failed: int = 0
    jobs_running: int = 0
    paused: int = 0
    last_poll_ms: int = 0
    outage_seconds: float = 0.0
    jobs_waiting: int = 0
    jobs_deferred: int = 0
    ingestion_files: int = 0
    ingestion_bytes: int = 0
    ingestion_age_ms: int = 0
    quarantine_candidate_files: int = 0
    quarantined_files: int = 0

    def add(self, outcome: JobOutcome) -> None:
        """Add the outcome of one job."""
        self.run.add(outcome)
        self.jobs_running -= 1
        self.jobs_failed += outcome.failure is not None
        for kept in (self.run.compaction.failures, self.run.compaction.cut_files):
            del kept[:-_MAX_HISTORY]
        self.run.compaction.topics.trim()


class Watcher:
    """Long-running scheduler of compaction, in the main thread; other threads may read `status`."""

    def __init__(
        self,
        context: AppContext,
        settings: Settings,
        options: CompactionOptions,
        *,
        interval_seconds: float = DEFAULT_INTERVAL_SECONDS,
        session: SparkSessionManager | None = None,
    ) -> None:
        self.status = WatcherStatus()
        self._context = context
        self._application_id = new_application_id(context)
        self._settings = settings
        self._options = options
        self._planner: PlannerSettings = replace(options.planner(settings), paced=True)
        self._interval_seconds = interval_seconds
        self._looks_elsewhere = False
        self._may_have_jobs = False  # that it does not run: the catalog did not respond to a claim or report
        self._unclaimed = 0  # jobs that waited after the last plan, without those that were claimed since
        # Not the catalog's clock, which is a query: an outage must not stop the loop itself.
        self._machine_clock = SystemClock()
        self._outage = Outage(
            "compaction",
            clock=self._machine_clock,
            ids=context.ids,
            first_pause_seconds=min(FIRST_PAUSE_SECONDS, interval_seconds),
            max_pause_seconds=interval_seconds,
        )
        self._session = session or new_session(settings)
        self._cursor = LookCursor()
        self._log = structlog.get_logger("siltstone.compaction")

    def run(self, interrupts: Interrupts) -> WatcherStatus:
        """Run until `interrupts` receives a signal; unfinished jobs then return to the queue."""
        try:
            with self._session:
                while True:
                    interrupts.wait(self.poll(interrupts))
                    with interrupts.shielded():  # a signal within the poll may have been deferred
                        pass
        except (KeyboardInterrupt, JobCancelledError):
            self._log.info("stopped", polls=self.status.polls, jobs=self.status.run.compaction.jobs)
        return self.status

    def poll(self, interrupts: Interrupts) -> float:
        """Plan, and run jobs until there are none; return the number of seconds until the next poll.

        An error that a later poll may not meet is logged.
        """
        self.status.polls += 1
        try:
            self._context.catalog.sessions.check_schema()
            busy = self._poll(interrupts)
        except JobCancelledError:
            raise
        except _SURVIVED as error:
            self.status.polls_failed += 1
            self._may_have_jobs = True
            if isinstance(error, SparkUnavailableError):
                self._session.drop()
            return self._outage.failed(error)
        else:
            self._outage.succeeded()
            return 0.0 if busy else self._rest_seconds()
        finally:
            self.status.outage_seconds = self._outage.seconds
            self.status.last_poll_ms = self._machine_clock.now_ms()

    def _rest_seconds(self) -> float:
        """Return the time to the next look after one that found nothing."""
        return min(_LOOK_SECONDS if self._looks_elsewhere else inf, self._interval_seconds)

    def _poll(self, interrupts: Interrupts) -> bool:
        with interrupts.shielded():
            self._release_all()
            is_paused = self._is_paused()
        completed = 0 if is_paused else self._compact(interrupts)
        with interrupts.shielded():
            self._measure_backlog()
        return completed > 0

    def _release_all(self) -> None:
        """Return the jobs of this watcher to the queue after an error. It runs none between two polls."""
        if self._may_have_jobs:
            self._context.catalog.jobs.release_all(self._application_id)
            self._may_have_jobs = False

    def _is_paused(self) -> bool:
        """Return True while the catalog pauses compaction, and log the beginning of a pause."""
        pause = waiting_pause(self._context)
        if pause is not None and not self.status.paused:
            self._log.warning("compaction paused", reason=describe_pause(pause, self._context.clock.now_ms()))
        self.status.paused = int(pause is not None)
        return pause is not None

    def _compact(self, interrupts: Interrupts) -> int:
        """Plan jobs and run some; return the number of completed jobs."""
        slots = self._session.slots if self._session.is_started else 1
        with interrupts.shielded() as stopped:
            waiting = self._plan(slots, stopped)
        if not waiting:
            return 0
        is_new = self._start()
        with interrupts.shielded() as stopped:
            if is_new and self._session.slots > slots:
                self._plan(self._session.slots, stopped)
            return self._run_round(stopped)

    def _plan(self, slots: int, stopped: threading.Event, *, may_wait: bool = True) -> int:
        """Plan jobs for `slots` tasks; return the number of jobs that can be claimed."""
        maintenance = self._settings.maintenance_settings()
        planned = plan_jobs(
            self._context,
            self._planner,
            maintenance,
            stopped,
            slots=slots,
            shares_looks=True,
            cursor=self._cursor,
            may_wait=may_wait,
        )
        self._looks_elsewhere = planned.is_elsewhere
        self.status.run.add_plan(planned)
        self.status.jobs_waiting, self.status.jobs_deferred = planned.waiting, planned.deferred
        self._unclaimed = planned.waiting
        return planned.waiting

    def _start(self) -> bool:
        """Start the session if there is none, and check its workers; also before a job ends a pause.

        Return True if it is new. Not shielded, because this may take minutes.
        """
        is_new = not self._session.is_started
        if is_new:
            self._log.info("starting Spark", master=self._session.address)
            self._session.start()
        if is_new or self._context.catalog.circuit_breaker.pause() is not None:
            check_session(self._context, self._session)
        return is_new

    def _run_round(self, stopped: threading.Event) -> int:
        jobs = self._claim(self._slots())
        if not jobs:
            return 0
        supply = JobSupply(
            partial(self._further_jobs, stopped), self._slots, self._machine_clock, self._rest_seconds
        )
        try:
            report = self._session.run(
                jobs,
                store=self._context.store_config,
                book=self._context.catalog.jobs,
                clock=self._context.clock,
                ids=self._context.ids,
                more=supply.more,
                progress=self._record_outcome,
                cancelled=stopped,
                plan=self._options.plan,
            )
        except BaseException:
            release_jobs(self._context.catalog.jobs, jobs)  # has no effect on finished jobs
            raise
        finally:
            self.status.jobs_running = 0
        self.status.run.end_round(report)
        supply.check()
        return report.jobs_completed

    def _slots(self) -> int:
        return min(self._session.slots, self._planner.max_look_jobs)

    def _claim(self, limit: int) -> list[Job]:
        jobs = claim_jobs(self._context, self._application_id, limit) if limit else []
        if jobs:
            self._log.debug("running jobs", jobs=[str(job.spec.job_id) for job in jobs])
        self.status.jobs_running += len(jobs)
        self._unclaimed = max(0, self._unclaimed - len(jobs))
        self.status.run.begin(len(jobs))
        return jobs

    def _further_jobs(self, stopped: threading.Event, free: int) -> FoundJobs:
        """Claim jobs for `free` slots, or plan ahead for the next one, while jobs run.

        Plan before the claim only if no job waits, because free slots are idle meanwhile. The claim is last,
        because an error after it would forget the jobs.
        """
        if stopped.is_set():
            return FoundJobs()
        if self._context.catalog.circuit_breaker.pause() is not None:
            return FoundJobs()  # the next poll checks the workers before a job tests whether it can end
        if free and self._unclaimed:
            self._context.catalog.sessions.check_schema()
            self._note_success()
            if jobs := self._claim(free):
                return FoundJobs(jobs, self._unclaimed)
        self._plan(max(free, 1), stopped, may_wait=False)
        self._note_success()
        jobs = self._claim(free)
        return FoundJobs(jobs, self._unclaimed)

    def _note_success(self) -> None:
        """Update the status after the catalog has responded while jobs run."""
        self._measure_backlog()
        self.status.last_poll_ms = self._machine_clock.now_ms()
        self._outage.succeeded()
        self.status.outage_seconds = self._outage.seconds

    def _record_outcome(self, outcome: JobOutcome) -> None:
        self.status.add(outcome)
        self._may_have_jobs |= outcome.unreported
        job = str(outcome.job.spec.job_id)
        if outcome.failure is not None:
            failure = outcome.failure
            self._log.warning("job failed", job=job, reason=failure.message, retried=failure.released)
        elif outcome.result is not None:
            counts = outcome.result.counts
            self._log.info(
                "job completed",
                job=job,
                records_in=counts.get("records_in", 0),
                records_out=counts.get("records_out", 0),
            )

    def _measure_backlog(self) -> None:
        status, backlog = self.status, self._context.catalog.planning.backlog()
        status.ingestion_files, status.ingestion_bytes = backlog.ingestion_files, backlog.ingestion_bytes
        now_ms = self._context.catalog.clock.now_ms()
        status.ingestion_age_ms = 0 if backlog.oldest_ms is None else max(0, now_ms - backlog.oldest_ms)
        status.quarantine_candidate_files, status.quarantined_files = (
            backlog.quarantine_candidate_files,
            backlog.quarantined_files,
        )
