"""Compaction as a user asks for it: plan, run on Spark, publish, and again until nothing is left to do.

One round plans and submits, claims every job that the catalog has in its queue (also those that an earlier
run left there), and runs them. Spark starts when there is a first job to run, and serves all rounds.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

from planner.garbage import GarbageSettings, collect_garbage
from planner.planning import plan_and_submit
from siltstone.configuration import planner_settings
from siltstone.interrupts import Interrupts
from siltstone.output import count
from spark_jobs.compact import JobOutcome, release_jobs, run_jobs
from spark_jobs.errors import JobCancelledError
from spark_jobs.report import CompactionReport
from spark_jobs.session import SparkSettings, spark_session

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextlib import AbstractContextManager

    from catalog.model import Job
    from planner.garbage import GarbageReport
    from planner.settings import PlannerSettings
    from siltstone.configuration import Settings
    from siltstone.output import Narrator
    from siltstone.rooms import Rooms

JOBS_AT_ONCE = 100
MAX_ROUNDS = 100
# Heartbeats come every few seconds; whoever missed this many is gone.
DEAD_AFTER_MS = 60_000


@dataclass(slots=True, kw_only=True)
class CompactionRun:
    """What a run did: `compaction` summed over its rounds; `garbage` when it was collected."""

    compaction: CompactionReport = field(default_factory=CompactionReport)
    rounds: int = 0
    jobs_lost: int = 0
    garbage: GarbageReport | None = None

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "rounds": self.rounds,
            "jobs_lost": self.jobs_lost,
            **self.compaction.as_dict(),
            "garbage": None if self.garbage is None else self.garbage.as_dict(),
        }


def compact(
    rooms: Rooms,
    settings: Settings,
    narrator: Narrator,
    *,
    force: bool = False,
    max_rounds: int = MAX_ROUNDS,
    interrupts: Interrupts | None = None,
) -> CompactionRun:
    """Compact until nothing is left to do, or for `max_rounds`; failed jobs are in the report.

    Raises KeyboardInterrupt when `interrupts` has one, in whatever phase; what was published until then
    stays, and jobs that are not over are back in the queue.
    """
    done = CompactionRun()
    held = (interrupts or Interrupts()).held
    planner = planner_settings(settings, force=force)
    jobs: list[Job] = []
    try:
        with held():
            jobs = _next_jobs(rooms, planner, narrator, done)
        if not jobs:
            return done
        with contextlib.ExitStack() as session:
            with narrator.phase(f"Start Spark at {settings.spark_master}"):
                spark = session.enter_context(spark_session(SparkSettings(master=settings.spark_master)))
            run = partial(
                run_jobs,
                spark,
                store=rooms.store_config,
                book=rooms.catalog.jobs,
                clock=rooms.clock,
                ids=rooms.ids,
            )
            while jobs:
                with held() as cancelled:
                    progressed = _run_round(partial(run, cancelled=cancelled), jobs, narrator, done)
                    jobs = []
                    if not progressed or done.rounds == max_rounds or cancelled.is_set():
                        break
                    jobs = _next_jobs(rooms, planner, narrator, done)
    except JobCancelledError:
        raise KeyboardInterrupt from None
    finally:
        _give_back(rooms, jobs, held)
    return done


def _give_back(rooms: Rooms, jobs: list[Job], held: Callable[[], AbstractContextManager[object]]) -> None:
    """Release what was claimed and did not come to its end; a second ^C must not get in between."""
    if jobs:
        with contextlib.suppress(KeyboardInterrupt), held():
            release_jobs(rooms.catalog.jobs, jobs)


def _next_jobs(rooms: Rooms, planner: PlannerSettings, narrator: Narrator, done: CompactionRun) -> list[Job]:
    """Plan and submit, then claim what is in the queue."""
    with narrator.phase("Plan" if not done.rounds else "Plan again"):
        rooms.catalog.jobs.release_expired(DEAD_AFTER_MS)
        done.jobs_lost += plan_and_submit(rooms.catalog, rooms.clock, rooms.ids, planner).lost
        # An application that claims twice is given the same jobs, so each round is one of its own.
        return rooms.catalog.jobs.claim(f"siltstone-{rooms.ids.new_uuid()}", JOBS_AT_ONCE)


def _run_round(
    run: Callable[..., CompactionReport], jobs: list[Job], narrator: Narrator, done: CompactionRun
) -> bool:
    """Run jobs to their end; whether any was completed."""
    files = sum(len(job.spec.inputs) for job in jobs)
    with narrator.phase(f"Compact {count(files, 'file')} in {count(len(jobs), 'job')}", len(jobs)) as advance:

        def tell(outcome: JobOutcome) -> None:
            advance(1)
            _add(done.compaction, outcome)

        report = run(jobs, progress=tell)
    done.rounds += 1
    done.compaction.jobs += report.jobs
    seconds = done.compaction.seconds
    seconds["total"] = seconds.get("total", 0.0) + report.seconds.get("total", 0.0)
    return report.jobs_completed > 0


def collect(rooms: Rooms, settings: Settings) -> GarbageReport:
    """Delete what is past its grace."""
    wanted = GarbageSettings(grace_ms=settings.grace_seconds * 1000)
    return collect_garbage(rooms.catalog, rooms.store, rooms.clock, wanted)


def _add(total: CompactionReport, outcome: JobOutcome) -> None:
    if outcome.result is not None:
        total.add(outcome.result)
    if outcome.failure is not None:
        total.failures.append(outcome.failure)
