"""One run of compaction: plan, run on Spark, publish, and repeat until nothing is left to do.

One round plans jobs and submits them, claims all jobs in the catalog's queue, including those of earlier
runs, and runs them. Spark starts when there is a first job to run, and serves all rounds. Jobs are claimed
only after it has started and its workers were checked: a cluster may keep a session waiting for longer than
the lease of a claimed job. During a pause of compaction, nothing is planned, and Spark does not start.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from core.clock import SystemClock
from core.quantities import count
from maintenance.garbage_collection import collect_garbage
from maintenance.retention import RetentionReport
from siltstone.compaction.pause import pause_fields, waiting_pause
from siltstone.compaction.shared_look import LookOutcome, look, shared_look
from siltstone.interrupts import Interrupts
from spark_jobs.compact import JobOutcome, release_jobs
from spark_jobs.errors import JobCancelledError
from spark_jobs.report import CompactionReport
from spark_jobs.session.spark_session import SparkSettings
from spark_jobs.session_manager import SparkSessionManager
from spark_jobs.shuffle.plan import PlanChoice

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from catalog.jobs.circuit_breaker import CompactionPause
    from catalog.model import Job
    from maintenance.report import MaintenanceReport
    from maintenance.settings import MaintenanceSettings
    from planner.planner import LookCursor
    from planner.settings import PlannerSettings
    from siltstone.console import ProgressDisplay
    from siltstone.context import AppContext
    from siltstone.settings.configuration import Settings

MAX_ROUNDS = 100
_LOOK_SECONDS = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompactionOptions:
    """Options of a run.

    `force` cleans every partition with cleanable records; `max_rounds` bounds the rounds; `plan` chooses how
    jobs run.
    """

    force: bool = False
    max_rounds: int = MAX_ROUNDS
    plan: PlanChoice = PlanChoice.AUTO

    def planner(self, settings: Settings) -> PlannerSettings:
        """Return the planner's settings; no exact jobs are planned if every job runs as one task."""
        return replace(settings.planner, force=self.force, exact=self.plan is not PlanChoice.TASK)


@dataclass(slots=True, kw_only=True)
class CompactionRun:
    """Result of a run: `compaction` is the sum over its rounds, `expired` what retention removed first.

    `pause` is the pause of compaction at the end. `garbage` is None if no garbage was collected.
    """

    compaction: CompactionReport = field(default_factory=CompactionReport)
    expired: RetentionReport = field(default_factory=RetentionReport)
    rounds: int = 0
    jobs_lost: int = 0
    pause: CompactionPause | None = None
    garbage: MaintenanceReport | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the result for `--json`."""
        return {
            "rounds": self.rounds,
            "jobs_lost": self.jobs_lost,
            "expired_extents": self.expired.extents,
            "expired_bytes": self.expired.size,
            **self.compaction.as_dict(),
            "pause": pause_fields(self.pause),
            "garbage": None if self.garbage is None else self.garbage.as_dict(),
        }

    def begin(self, jobs: int) -> None:
        """Count claimed jobs, which run now."""
        self.compaction.jobs += jobs

    def add(self, outcome: JobOutcome) -> None:
        """Add the outcome of one job."""
        if outcome.result is not None:
            self.compaction.add(outcome.result, outcome.cut_files)
        if outcome.failure is not None:
            self.compaction.failures.append(outcome.failure)

    def add_plan(self, planned: PlannedJobs) -> None:
        """Add the outcome of planning."""
        self.jobs_lost += planned.lost
        self.expired.extents += planned.expired.extents
        self.expired.size += planned.expired.size

    def end_round(self, report: CompactionReport) -> None:
        """Add what is known only of a round as a whole; its jobs have been added."""
        self.rounds += 1
        seconds = self.compaction.seconds
        seconds["total"] = seconds.get("total", 0.0) + report.seconds.get("total", 0.0)


def compact(
    context: AppContext,
    settings: Settings,
    display: ProgressDisplay,
    options: CompactionOptions | None = None,
    *,
    interrupts: Interrupts | None = None,
) -> CompactionRun:
    """Compact until nothing is left to do, or for `max_rounds`; the report contains failed jobs.

    Raises KeyboardInterrupt when `interrupts` receives a signal, in any phase. Published results stay, and
    unfinished jobs are returned to the queue.
    """
    done = CompactionRun(pause=waiting_pause(context))
    if done.pause is None:
        _compact(context, settings, display, options or CompactionOptions(), done, interrupts or Interrupts())
        done.pause = context.catalog.circuit_breaker.pause()
    return done


def _compact(
    context: AppContext,
    settings: Settings,
    display: ProgressDisplay,
    options: CompactionOptions,
    done: CompactionRun,
    interrupts: Interrupts,
) -> None:
    shielded = interrupts.shielded
    planner, maintenance = options.planner(settings), settings.maintenance_settings()
    jobs: list[Job] = []
    application_id = new_application_id(context)
    try:
        with shielded() as cancelled:
            waiting = _plan(context, planner, maintenance, display, done, cancelled)
        if not waiting:
            return
        with new_session(settings) as session:
            with display.phase(f"Start Spark at {session.address}"):
                session.start()
                check_session(context, session)
            run = partial(
                session.run,
                store=context.store_config,
                book=context.catalog.jobs,
                clock=context.clock,
                ids=context.ids,
                plan=options.plan,
            )
            while waiting:
                with shielded() as cancelled:
                    jobs = claim_jobs(context, application_id, planner.max_look_jobs)
                    progressed = _run_round(partial(run, cancelled=cancelled), jobs, display, done)
                    jobs = []
                    if not progressed or done.rounds == options.max_rounds or cancelled.is_set():
                        break
                    waiting = _plan(context, planner, maintenance, display, done, cancelled)
    except JobCancelledError:
        raise KeyboardInterrupt from None
    finally:
        _release_unfinished(context, jobs, shielded)


def new_session(settings: Settings) -> SparkSessionManager:
    """Return the manager of a session that is not started yet."""
    return SparkSessionManager(
        SparkSettings(master=settings.spark_master), executor_wait_seconds=settings.executor_wait_seconds
    )


def check_session(context: AppContext, session: SparkSessionManager) -> None:
    """Check the workers of a session before jobs are claimed; raise PreflightError or NoExecutorError."""
    recorded = context.catalog.store_binding.recorded()
    store_id = None if recorded is None else recorded.store_id
    session.check(context.store_config, store_id, clock=SystemClock(), ids=context.ids)


class PlannedJobs(NamedTuple):
    """Number of jobs that wait, that another planner submitted first, and that the budget deferred.

    `expired` is what retention removed before planning. `is_elsewhere` if another watcher plans now.
    """

    waiting: int
    lost: int
    deferred: int
    expired: RetentionReport
    is_elsewhere: bool = False


def plan_jobs(
    context: AppContext,
    planner: PlannerSettings,
    maintenance: MaintenanceSettings,
    stopped: threading.Event | None = None,
    *,
    slots: int = 1,
    shares_looks: bool = False,
    cursor: LookCursor | None = None,
    may_wait: bool = True,
) -> PlannedJobs:
    """Plan and submit jobs for `slots` tasks, after releasing the jobs of runs that have stopped.

    Nothing is planned if the queue has enough jobs, or if `shares_looks` and no look is due. `cursor` is
    where the last look ended. Runs send heartbeats every few seconds. `catalog.lifecycle.reachability` says
    when a silent one loses its jobs. If only jobs of a silent run are left and `may_wait` is True, wait for
    at most twice `fence_confirm_ms`. The wait ends when these jobs are released, that run sends a heartbeat,
    or `stopped` is set. SchemaVersionError: a migration has excluded this code.
    """
    release = partial(
        context.catalog.jobs.release_expired, maintenance.job_silence_ms, maintenance.fence_confirm_ms
    )
    context.catalog.sessions.check_schema()
    release()
    outcome = LookOutcome()
    waiting = _waiting(context)
    if waiting < min(slots, planner.max_look_jobs):
        outcome = (shared_look if shares_looks else look)(context, planner, slots, cursor, stopped)
        waiting = _waiting(context)
    pause = stopped or threading.Event()
    looks = round(2 * maintenance.fence_confirm_ms / 1000 / _LOOK_SECONDS) if may_wait else 0
    for _ in range(looks):
        if waiting or not context.catalog.jobs.suspected() or pause.wait(_LOOK_SECONDS):
            break
        waiting = len(release())
    done = outcome.submission
    return PlannedJobs(waiting, done.lost, done.deferred, outcome.expired, outcome.is_elsewhere)


def _waiting(context: AppContext) -> int:
    """Return the number of jobs that can be claimed; to test whether a pause can end, any job will do."""
    is_paused = context.catalog.circuit_breaker.pause() is not None
    return context.catalog.jobs.claimable(is_probe=is_paused)


def new_application_id(context: AppContext) -> str:
    """Return the name under which a driver claims all its jobs."""
    return f"siltstone-{context.ids.new_uuid()}"


def claim_jobs(context: AppContext, application_id: str, limit: int) -> list[Job]:
    """Claim up to `limit` jobs of the queue; none if other drivers have claimed them."""
    return context.catalog.jobs.claim(application_id, limit)


def _release_unfinished(
    context: AppContext, jobs: list[Job], shielded: Callable[[], AbstractContextManager[object]]
) -> None:
    """Release claimed jobs that are not finished; a second ^C must not interrupt this."""
    if jobs:
        with contextlib.suppress(KeyboardInterrupt), shielded():
            release_jobs(context.catalog.jobs, jobs)


def _plan(
    context: AppContext,
    planner: PlannerSettings,
    maintenance: MaintenanceSettings,
    display: ProgressDisplay,
    done: CompactionRun,
    cancelled: threading.Event,
) -> int:
    with display.phase("Plan" if not done.rounds else "Plan again"):
        planned = plan_jobs(context, planner, maintenance, cancelled, slots=planner.max_look_jobs)
    done.add_plan(planned)
    return planned.waiting


def _run_round(
    run: Callable[..., CompactionReport], jobs: list[Job], display: ProgressDisplay, done: CompactionRun
) -> bool:
    """Run jobs to their end; return True if any was completed."""
    if not jobs:
        return False
    files = sum(len(job.spec.inputs) for job in jobs)
    done.begin(len(jobs))
    with display.phase(f"Compact {count(files, 'file')} in {count(len(jobs), 'job')}", len(jobs)) as advance:

        def report_outcome(outcome: JobOutcome) -> None:
            advance(1)
            done.add(outcome)

        report = run(jobs, progress=report_outcome)
    done.end_round(report)
    return report.jobs_completed > 0


def collect(context: AppContext, settings: Settings) -> MaintenanceReport:
    """Delete garbage that is past the grace period."""
    return collect_garbage(context.catalog, context.store, context.clock, settings.maintenance_settings())
