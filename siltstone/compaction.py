"""Compaction as a user asks for it: plan, run on Spark, publish, and again until nothing is left to do.

One round plans and submits, claims every job that the catalog has in its queue (also those that an earlier
run left there), and runs them. Spark starts when there is a first job to run, and serves all rounds.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from planner.garbage import GarbageSettings, collect_garbage
from planner.planning import plan_and_submit
from siltstone.configuration import planner_settings
from spark_jobs.compact import JobOutcome, run_jobs
from spark_jobs.report import CompactionReport
from spark_jobs.session import SparkSettings, spark_session

if TYPE_CHECKING:
    import threading

    from pyspark.sql import SparkSession

    from planner.garbage import GarbageReport
    from siltstone.configuration import Settings
    from siltstone.output import Narrator
    from siltstone.rooms import Rooms

JOBS_AT_ONCE = 100
MAX_ROUNDS = 100
# Heartbeats come every few seconds; whoever missed this many is gone.
_DEAD_AFTER_MS = 60_000


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
    cancelled: threading.Event | None = None,
) -> CompactionRun:
    """Compact until nothing is left to do, or for `max_rounds`; failed jobs are in the report.

    Raises JobCancelledError when `cancelled` is set; what was published until then stays.
    """
    done = CompactionRun()
    with contextlib.ExitStack() as session:
        spark: SparkSession | None = None
        while done.rounds < max_rounds:
            rooms.catalog.jobs.release_expired(_DEAD_AFTER_MS)
            with narrator.phase(f"Plan round {done.rounds + 1}"):
                submission = plan_and_submit(
                    rooms.catalog, rooms.clock, rooms.ids, planner_settings(settings, force=force)
                )
            done.jobs_lost += submission.lost
            jobs = rooms.catalog.jobs.claim(f"siltstone-{rooms.ids.new_uuid()}", JOBS_AT_ONCE)
            if not jobs:
                break
            if spark is None:
                with narrator.phase(f"Start Spark at {settings.spark_master}"):
                    wanted = SparkSettings(master=settings.spark_master)
                    spark = session.enter_context(spark_session(wanted))
            files = sum(len(job.spec.inputs) for job in jobs)
            with narrator.phase(f"Compact {files:,} files in {_jobs(len(jobs))}", len(jobs)) as advance:

                def tell(outcome: JobOutcome) -> None:
                    advance(1)
                    _add(done.compaction, outcome)

                report = run_jobs(
                    spark,
                    jobs,
                    store=rooms.store_config,
                    book=rooms.catalog.jobs,
                    clock=rooms.clock,
                    ids=rooms.ids,
                    progress=tell,
                    cancelled=cancelled,
                )
            done.rounds += 1
            _close_round(done.compaction, report)
            if not report.jobs_completed:
                break
    return done


def collect(rooms: Rooms, settings: Settings) -> GarbageReport:
    """Delete what is past its grace."""
    wanted = GarbageSettings(grace_ms=settings.grace_seconds * 1000)
    return collect_garbage(rooms.catalog, rooms.store, rooms.clock, wanted)


def _add(total: CompactionReport, outcome: JobOutcome) -> None:
    if outcome.result is not None:
        total.add(outcome.result)
    if outcome.failure is not None:
        total.failures.append(outcome.failure)


def _close_round(total: CompactionReport, report: CompactionReport) -> None:
    total.jobs += report.jobs
    total.seconds["total"] = total.seconds.get("total", 0.0) + report.seconds.get("total", 0.0)


def _jobs(count: int) -> str:
    return f"{count:,} job{'' if count == 1 else 's'}"
