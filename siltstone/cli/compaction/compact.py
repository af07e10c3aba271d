"""`siltstone compact`: plan jobs and run them on Spark; once, until done, or continuously."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from core.clock import SystemClock
from core.quantities import count, human_bytes
from planner.planner import plan
from siltstone.cli.compaction.plan import amplification_in_words, plan_report, print_plan
from siltstone.cli.operations.maintain import describe_deleted
from siltstone.cli.options import check_metrics_address, json_option, metrics_option, with_settings
from siltstone.compaction.compactor import MAX_ROUNDS, CompactionOptions, collect, compact
from siltstone.compaction.pause import RESUME, CompactionPausedError, describe_pause
from siltstone.compaction.unfinished_jobs import describe_jobs, job_fields, unfinished_jobs
from siltstone.compaction.watcher import DEFAULT_INTERVAL_SECONDS, Watcher
from siltstone.compaction.watcher_metrics import serve_metrics
from siltstone.console import ProgressDisplay, emit_json, report_console, table
from siltstone.context import check_data_exists, check_store, open_context, start_wait
from siltstone.interrupts import Interrupts
from spark_jobs.shuffle.plan import PlanChoice

if TYPE_CHECKING:
    from siltstone.compaction.compactor import CompactionRun
    from siltstone.settings.configuration import Settings

_SINGLE_RUN = ("dry_run", "once", "rounds")
_WATCH_ONLY = ("interval", "metrics")


@click.command()
@click.option("--dry-run", is_flag=True, help="Print the plan and run nothing, like siltstone plan.")
@click.option("--once", is_flag=True, help="Plan once, run the jobs and exit. For cron and Airflow.")
@click.option(
    "--rounds",
    type=click.IntRange(1, MAX_ROUNDS),
    default=MAX_ROUNDS,
    show_default=True,
    help="Maximum number of rounds; a round plans once and runs the jobs.",
)
@click.option(
    "--watch", is_flag=True, help="Run until SIGTERM or ^C. Several watchers of one catalog share the work."
)
@click.option(
    "--interval",
    type=click.FloatRange(0.1, 86_400),
    default=DEFAULT_INTERVAL_SECONDS,
    show_default=True,
    metavar="SECONDS",
    help="With --watch: seconds between polls while there is nothing to do.",
)
@metrics_option
@click.option(
    "--force", is_flag=True, help="Clean all partitions with cleanable records, at any dirty ratio."
)
@click.option(
    "--plan",
    "choice",
    type=click.Choice(PlanChoice, case_sensitive=False),
    default=PlanChoice.AUTO,
    help="How a job runs. task: as one Spark task, whose key table may be too small. shuffle: over "
    "many tasks with Spark's shuffle, exact at any size. auto: chosen by the estimated number of keys. A job "
    "that deduplicates nothing always runs as one task.  [default: auto]",
)
@json_option
@with_settings("spark_master")
@click.pass_context
def command(
    context: click.Context,
    settings: Settings,
    *,
    dry_run: bool,
    once: bool,
    rounds: int,
    watch: bool,
    interval: float,
    metrics: tuple[str, int] | None,
    force: bool,
    choice: PlanChoice,
    as_json: bool,
) -> None:
    """Plan compaction jobs, and run them on Spark.

    Rounds repeat until nothing is left to do. Then the command deletes garbage that is past the grace period;
    files that this run replaces are deleted by a later one. The exit code is 1 if a job failed, and 75 if
    compaction is paused because unrelated jobs failed alike.

    With --watch, the command runs until SIGTERM or ^C. It then returns its unfinished jobs to the queue and
    exits with code 0. It deletes no garbage: agents do.
    """
    _check_option_combination(context, watch=watch, once=once)
    check_metrics_address(settings, metrics)
    options = CompactionOptions(force=force, max_rounds=1 if once else rounds, plan=choice)
    if dry_run:
        _print_dry_run(settings, force=force, as_json=as_json)
        return
    if watch:
        _watch(settings, options, interval, metrics, as_json=as_json)
        return
    check_data_exists(settings)
    check_store(settings)
    run = _compact(settings, options, as_json=as_json)
    if run.pause is not None:
        raise CompactionPausedError(describe_pause(run.pause, SystemClock().now_ms()), remedy=RESUME)
    if run.compaction.failures:
        context.exit(1)


def _check_option_combination(context: click.Context, *, watch: bool, once: bool) -> None:
    """Reject options that contradict each other or have no effect."""
    given = {
        name
        for name in context.params
        if context.get_parameter_source(name)
        not in (click.core.ParameterSource.DEFAULT, click.core.ParameterSource.DEFAULT_MAP)
    }
    if watch:
        for name in _SINGLE_RUN:
            if name in given:
                raise click.UsageError(f"--{name.replace('_', '-')} cannot be combined with --watch.")
    else:
        for name in _WATCH_ONLY:
            if name in given:
                raise click.UsageError(f"--{name} needs --watch.")
    if once and "rounds" in given:
        raise click.UsageError("--once means --rounds 1; give only one of them.")
    if "dry_run" in given and "choice" in given:
        raise click.UsageError("--plan has no effect with --dry-run, which runs no jobs.")


def _print_dry_run(settings: Settings, *, force: bool, as_json: bool) -> None:
    check_data_exists(settings)
    check_store(settings)
    with Interrupts(), open_context(settings, create=False) as context:
        planned = plan(context.catalog, context.clock, replace(settings.planner, force=force))
        jobs = unfinished_jobs(context)
    if as_json:
        emit_json({"dry_run": True, **plan_report(planned, jobs)})
    else:
        print_plan(planned, jobs, settings.maintenance_settings().takeover_ms)


def _watch(
    settings: Settings,
    options: CompactionOptions,
    interval: float,
    metrics: tuple[str, int] | None,
    *,
    as_json: bool,
) -> None:
    display = ProgressDisplay(SystemClock())
    wait = start_wait(settings)
    check_store(settings, wait=wait)
    with Interrupts() as interrupts, open_context(settings, wait=wait) as context:
        watcher = Watcher(context, settings, options, interval_seconds=interval)
        with serve_metrics(watcher.status, metrics) as address:
            where = "" if address is None else f"; metrics at http://{address[0]}:{address[1]}/metrics"
            display.say(f"Polling every {interval:g} s{where}")
            status = watcher.run(interrupts)
    if as_json:
        emit_json({"polls": status.polls, "jobs_failed": status.jobs_failed, **status.run.as_dict()})
    else:
        _print(status.run, [])


def _compact(settings: Settings, options: CompactionOptions, *, as_json: bool) -> CompactionRun:
    with Interrupts() as interrupts, open_context(settings, create=False) as context:
        display = ProgressDisplay(SystemClock())
        run = compact(context, settings, display, options, interrupts=interrupts)
        with display.phase("Delete garbage"):
            run.garbage = collect(context, settings)
        jobs = unfinished_jobs(context)
        now_ms = context.clock.now_ms()
    if as_json:
        emit_json({**run.as_dict(), "unfinished_jobs": job_fields(jobs, now_ms)})
    else:
        _print(run, describe_jobs(jobs, now_ms, settings.maintenance_settings().takeover_ms))
    return run


def _print(run: CompactionRun, unfinished: list[str]) -> None:
    console = report_console()
    done = run.compaction
    if not done.jobs:
        console.print("Nothing more to compact." if unfinished else "Nothing to compact.")
    else:
        rows = (
            ("jobs", f"{done.jobs_completed:,} of {done.jobs:,} in {count(run.rounds, 'round')}"),
            ("GETs", f"{done.get_requests:,}, {done.gets_in_words()}"),
            ("records in", f"{done.records_in:,}"),
            ("records out", f"{done.records_out:,}"),
            ("compacted files", f"{done.compacted_files:,}, {human_bytes(done.compacted_bytes)}"),
            ("write amplification", amplification_in_words(done.ingested_bytes, done.rewritten_bytes)),
            ("keys", f"{done.keys:,}; {done.keys_outside_table:,} outside the table"),
            ("peak memory of a task", human_bytes(done.peak_rss_bytes)),
            ("seconds", f"{done.seconds.get('total', 0.0):.1f}"),
        )
        console.print(table("Compaction", "what", ">how much", rows=rows))
    for sentence in unfinished:
        console.print(sentence, markup=False, soft_wrap=True)
    for failure in done.failures:
        result = "returned to the queue" if failure.released else "failed"
        console.print(f"job {failure.job_id} {result}: {failure.message}", style="red", markup=False)
    expired, size = run.expired.extents, run.expired.size
    if run.garbage is not None:
        expired, size = expired + run.garbage.expired_extents, size + run.garbage.expired_bytes
    if expired:
        console.print(f"Expired by retention: {count(expired, 'extent')} ({human_bytes(size)}).")
    if run.garbage is not None:
        console.print(describe_deleted(run.garbage))
