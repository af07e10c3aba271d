"""`siltstone compact`: plan, run on Spark, publish, delete what is dead."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from bedrock.clock import SystemClock
from planner.planning import plan
from siltstone.command.options import json_option, with_settings
from siltstone.command.plan import plan_report, print_plan
from siltstone.compaction import MAX_ROUNDS, collect, compact
from siltstone.configuration import planner_settings
from siltstone.interrupts import Interrupts
from siltstone.open_jobs import describe_jobs, job_facts, open_jobs
from siltstone.output import Narrator, count, emit_json, human_bytes, report_console, table
from siltstone.rooms import opened, require_data, require_store

if TYPE_CHECKING:
    from siltstone.compaction import CompactionRun
    from siltstone.configuration import Settings


@click.command()
@click.option("--dry-run", is_flag=True, help="Only say what would be done, as siltstone plan does.")
@click.option(
    "--rounds",
    type=click.IntRange(1, MAX_ROUNDS),
    default=MAX_ROUNDS,
    show_default=True,
    help="Stop after so many rounds of planning and compacting.",
)
@click.option("--force", is_flag=True, help="Clean whatever has something to clean, however little.")
@json_option
@with_settings("spark_master")
def command(settings: Settings, *, dry_run: bool, rounds: int, force: bool, as_json: bool) -> None:
    """Compact on Spark until nothing is left to do, then delete what is dead.

    Objects are deleted once they have been dead for the grace period, so those that this run replaces are
    left to a later one. The exit code is 1 when a job failed.
    """
    if dry_run:
        require_data(settings)
    require_store(settings)
    with Interrupts() as interrupts, opened(settings, create=not dry_run) as rooms:
        if dry_run:
            planned = plan(rooms.catalog, rooms.clock, planner_settings(settings, force=force))
            jobs = open_jobs(rooms)
            if as_json:
                emit_json({"dry_run": True, **plan_report(planned, jobs)})
            else:
                print_plan(planned, jobs)
            return
        narrator = Narrator(SystemClock())
        run = compact(rooms, settings, narrator, force=force, max_rounds=rounds, interrupts=interrupts)
        with narrator.phase("Delete what is past its grace"):
            run.garbage = collect(rooms, settings)
        jobs = open_jobs(rooms)
        now_ms = rooms.clock.now_ms()
    if as_json:
        emit_json({**run.as_dict(), "open_jobs": job_facts(jobs, now_ms)})
    else:
        _print(run, describe_jobs(jobs, now_ms))
    if run.compaction.failures:
        click.get_current_context().exit(1)


def _print(run: CompactionRun, others: list[str]) -> None:
    console = report_console()
    done = run.compaction
    if not done.jobs:
        console.print("Nothing more to compact." if others else "Nothing to compact.")
    else:
        rows = (
            ("jobs", f"{done.jobs_completed:,} of {done.jobs:,} in {count(run.rounds, 'round')}"),
            ("GETs", f"{done.get_requests:,}, {done.gets_in_words()}"),
            ("records in", f"{done.records_in:,}"),
            ("records out", f"{done.records_out:,}"),
            ("compacted files", f"{done.compacted_files:,}, {human_bytes(done.compacted_bytes)}"),
            ("keys", f"{done.keys:,}; {done.keys_outside_table:,} outside the table"),
            ("peak memory of a task", human_bytes(done.peak_rss_bytes)),
            ("seconds", f"{done.seconds.get('total', 0.0):.1f}"),
        )
        console.print(table("Compaction", "what", ">how much", rows=rows))
    for sentence in others:
        console.print(sentence, markup=False, soft_wrap=True)
    for failure in done.failures:
        fate = "goes back to the queue" if failure.released else "failed"
        console.print(f"job {failure.job_id} {fate}: {failure.message}", style="red", markup=False)
    if run.garbage is not None:
        console.print(
            f"Deleted {count(run.garbage.dead_files, 'dead file')} ({human_bytes(run.garbage.dead_bytes)}) "
            f"and {count(run.garbage.orphans, 'orphan')} ({human_bytes(run.garbage.orphan_bytes)})."
        )
