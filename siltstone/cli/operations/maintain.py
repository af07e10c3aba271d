"""`siltstone maintain`: retention, garbage collection and expiry without an agent and without Spark."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final

import click

from core.clock import SystemClock
from core.quantities import count, human_bytes
from maintenance.metrics import MaintenanceCollector
from maintenance.report import MaintenanceReport
from maintenance.runner import MaintenanceRunner
from maintenance.tasks import maintenance_tasks
from siltstone.cli.options import check_metrics_address, json_option, metrics_option, with_settings
from siltstone.compaction.watcher_metrics import serve_collector
from siltstone.console import emit_json, report_console
from siltstone.context import check_data_exists, check_store, open_context, start_wait
from siltstone.interrupts import Interrupts

if TYPE_CHECKING:
    from core.outage import StartWait
    from siltstone.context import AppContext
    from siltstone.settings.configuration import Settings

_LOOK_SECONDS: Final = 1.0


@click.command()
@click.option("--once", is_flag=True, help="Run one round of each task and exit; the default. For cron.")
@click.option("--watch", is_flag=True, help="Run until SIGTERM or ^C.")
@metrics_option
@json_option
@with_settings()
@click.pass_context
def command(
    context: click.Context,
    settings: Settings,
    *,
    once: bool,
    watch: bool,
    metrics: tuple[str, int] | None,
    as_json: bool,
) -> None:
    """Apply retention and delete garbage, without Spark.

    Agents do this by themselves unless maintenance_enabled is off. Records expire by retention.ms,
    retention.bytes and the log start offset. An object is deleted when none of its records is live and the
    grace period has passed. Silent sessions and job attempts are fenced.

    A task that fails does not hold up the others. Without --watch, the exit code then is that of its error.
    With --watch, every task continues after any outage of the catalog or the store. A migration that excludes
    this version ends them, with exit code 78.
    """
    if once and watch:
        raise click.UsageError("--once cannot be combined with --watch.")
    if metrics is not None and not watch:
        raise click.UsageError("--metrics needs --watch.")
    check_metrics_address(settings, metrics)
    check_data_exists(settings)
    wait = start_wait(settings) if watch else None
    check_store(settings, wait=wait)
    if watch:
        _watch(settings, wait, metrics, as_json=as_json)
        context.exit(0)
    failures = _once(settings, as_json=as_json)
    for name, error in failures.items():
        click.echo(f"{name}: {error}", err=True)
    if failures:
        raise next(iter(failures.values()))
    context.exit(0)


def _once(settings: Settings, *, as_json: bool) -> dict[str, Exception]:
    with open_context(settings, create=False) as opened:
        report, failures = _runner(opened, settings).run_once()
    _print(report, as_json=as_json)
    return failures


def _watch(
    settings: Settings, wait: StartWait | None, metrics: tuple[str, int] | None, *, as_json: bool
) -> None:
    with Interrupts() as interrupts, open_context(settings, create=False, wait=wait) as opened:
        runner = _runner(opened, settings)
        with (
            serve_collector(MaintenanceCollector(runner), metrics) as address,
            contextlib.suppress(KeyboardInterrupt),
            interrupts.shielded(),
        ):
            runner.start()
            where = "" if address is None else f"; metrics at http://{address[0]}:{address[1]}/metrics"
            click.echo(f"Maintaining the log until SIGTERM or ^C{where}", err=True)
            try:
                while runner.excluded is None and not interrupts.wait(_LOOK_SECONDS):
                    pass
            finally:
                runner.stop()
        report = MaintenanceReport()
        for totals in runner.totals.values():
            report.add(totals.report)
    _print(report, as_json=as_json)
    if runner.excluded is not None:
        raise runner.excluded


def _runner(opened: AppContext, settings: Settings) -> MaintenanceRunner:
    tasks = maintenance_tasks(opened.catalog, opened.store, settings.maintenance_settings())
    return MaintenanceRunner(tasks, opened.catalog, clock=SystemClock(), ids=opened.ids)


def _print(report: MaintenanceReport, *, as_json: bool) -> None:
    if as_json:
        emit_json(report.as_dict())
        return
    expired = f"Expired {count(report.expired_extents, 'extent')} ({human_bytes(report.expired_bytes)})."
    report_console().print(f"{expired} {describe_deleted(report)}")


def describe_deleted(report: MaintenanceReport) -> str:
    """Return a sentence about the deleted objects."""
    return (
        f"Deleted {count(report.dead_files, 'unreferenced file')} ({human_bytes(report.dead_bytes)}) "
        f"and {count(report.orphans, 'orphan')} ({human_bytes(report.orphan_bytes)})."
    )
