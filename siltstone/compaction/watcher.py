"""Compaction that goes on: plan, run what is due, collect garbage, wait, and again until it is told to stop.

Several watchers of one catalog share its work. The catalog gives each job to one of them (rows are locked and
passed over by the others), and each takes no more at a time than its Spark has room for, so that the rest is
there for the others. What a watcher that died has claimed is in the queue again after a minute of silence.

One Spark session serves all rounds. It starts when there is something to run; when it turns out to be gone,
the next round starts another. What may pass by itself (the catalog or the store do not answer) is logged and
tried again after the interval.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import structlog

from core.errors import RetryableError
from siltstone.compaction.compactor import CompactionRun, claim_jobs, collect, plan_jobs
from spark_jobs.compact import release_jobs
from spark_jobs.errors import JobCancelledError, SparkUnavailableError
from spark_jobs.session.manager import KeptSession
from spark_jobs.session.spark_session import SparkSettings

if TYPE_CHECKING:
    import threading

    from planner.settings import PlannerSettings
    from siltstone.compaction.compactor import CompactionOptions
    from siltstone.context import AppContext
    from siltstone.interrupts import Interrupts
    from siltstone.settings.configuration import Settings
    from spark_jobs.compact import JobOutcome

DEFAULT_INTERVAL_SECONDS: Final = 10.0
_MAX_JOBS: Final = 100
_MAX_HISTORY: Final = 100


@dataclass(slots=True)
class WatcherStatus:
    """What a watcher has done since it began, for its metrics and its last word.

    Failures and cut files are kept as far as the last hundred. `rounds` are those in which jobs were run,
    `looks` all, and `looks_failed` those that ended early. As of the last look: what waits, for a worker
    (`jobs_waiting`), for the budget (`jobs_deferred`) or to be planned (ingestion files, with the age of the
    oldest), and the files that spoil jobs.
    """

    run: CompactionRun = field(default_factory=CompactionRun)
    polls: int = 0
    polls_failed: int = 0
    jobs_failed: int = 0
    jobs_running: int = 0
    last_poll_ms: int = 0
    jobs_waiting: int = 0
    jobs_deferred: int = 0
    ingestion_files: int = 0
    ingestion_bytes: int = 0
    ingestion_age_ms: int = 0
    suspected_files: int = 0
    quarantined_files: int = 0
    dead_files: int = 0
    dead_bytes: int = 0
    orphans: int = 0
    orphan_bytes: int = 0

    def add(self, outcome: JobOutcome) -> None:
        """Take in what became of one job."""
        self.run.add(outcome)
        self.jobs_running -= 1
        self.jobs_failed += outcome.failure is not None
        for kept in (self.run.compaction.failures, self.run.compaction.cut_files):
            del kept[:-_MAX_HISTORY]


class Watcher:
    """A long-running scheduler over `rooms`, in the main thread; `watch` is what others may look at."""

    def __init__(
        self,
        context: AppContext,
        settings: Settings,
        options: CompactionOptions,
        *,
        interval_seconds: float = DEFAULT_INTERVAL_SECONDS,
        session: KeptSession | None = None,
    ) -> None:
        self.status = WatcherStatus()
        self._context = context
        self._settings = settings
        self._options = options
        self._planner: PlannerSettings = options.planner(settings)
        self._interval_seconds = interval_seconds
        self._session = session or KeptSession(SparkSettings(master=settings.spark_master))
        self._log = structlog.get_logger("siltstone.watch")

    def run(self, interrupts: Interrupts) -> WatcherStatus:
        """Go on until `interrupts` has one. Jobs that are not over then go back to the queue."""
        try:
            with self._session:
                while True:
                    busy = self._poll_and_log(interrupts)
                    if not busy:
                        interrupts.requested.wait(self._interval_seconds)
        except (KeyboardInterrupt, JobCancelledError):
            self._log.info("stopped", polls=self.status.polls, jobs=self.status.run.compaction.jobs)
        return self.status

    def _poll_and_log(self, interrupts: Interrupts) -> bool:
        """One round; whether there may be more to do at once."""
        self.status.polls += 1
        try:
            return self._poll(interrupts)
        except JobCancelledError:
            raise
        except RetryableError as error:
            self.status.polls_failed += 1
            self._log.warning(
                "a round ended early", error=str(error), again_in_seconds=self._interval_seconds
            )
            if isinstance(error, SparkUnavailableError):
                self._session.drop()
            return False
        finally:
            self.status.last_poll_ms = self._context.clock.now_ms()

    def _poll(self, interrupts: Interrupts) -> bool:
        with interrupts.shielded():
            planned = plan_jobs(self._context, self._planner)
            self.status.run.add_plan(planned)
            self.status.jobs_waiting, self.status.jobs_deferred = planned.waiting, planned.deferred
        completed = 0
        if planned.waiting:
            self._start()
            with interrupts.shielded() as stopped:
                completed = self._run_round(stopped)
        with interrupts.shielded():
            self._collect()
        return completed > 0

    def _start(self) -> None:
        """Have a session; not in a held block, as its start may take minutes and is broken off in order."""
        if not self._session.is_started:
            self._log.info("starting Spark", master=self._settings.spark_master)
            self._session.start()

    def _run_round(self, stopped: threading.Event) -> int:
        jobs = claim_jobs(self._context, min(self._session.slots, _MAX_JOBS))
        if not jobs:
            return 0
        self.status.jobs_running = len(jobs)
        self._log.info("running jobs", jobs=[str(job.spec.job_id) for job in jobs])
        try:
            report = self._session.run(
                jobs,
                store=self._context.store_config,
                book=self._context.catalog.jobs,
                clock=self._context.clock,
                ids=self._context.ids,
                progress=self._record_outcome,
                cancelled=stopped,
                plan=self._options.plan,
            )
        except BaseException:
            release_jobs(self._context.catalog.jobs, jobs)  # those that are over are nobody's, and stay so
            raise
        finally:
            self.status.jobs_running = 0
        self.status.run.end_round(report)
        return report.jobs_completed

    def _record_outcome(self, outcome: JobOutcome) -> None:
        self.status.add(outcome)
        job = str(outcome.job.spec.job_id)
        if outcome.failure is not None:
            failure = outcome.failure
            self._log.warning("job failed", job=job, reason=failure.message, again=failure.released)
        elif outcome.result is not None:
            counts = outcome.result.counts
            self._log.info(
                "job done",
                job=job,
                records_in=counts.get("records_in", 0),
                records_out=counts.get("records_out", 0),
            )

    def _collect(self) -> None:
        status, left = self.status, self._context.catalog.planning.backlog()
        status.ingestion_files, status.ingestion_bytes = left.ingestion_files, left.ingestion_bytes
        now_ms = self._context.catalog.clock.now_ms()
        status.ingestion_age_ms = 0 if left.oldest_ms is None else max(0, now_ms - left.oldest_ms)
        status.suspected_files, status.quarantined_files = left.suspected_files, left.quarantined_files
        report = collect(self._context, self._settings)
        self.status.dead_files += report.dead_files
        self.status.dead_bytes += report.dead_bytes
        self.status.orphans += report.orphans
        self.status.orphan_bytes += report.orphan_bytes
