"""`siltstone fsck`: check that the catalog, the object store and the stored bytes agree."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from core.quantities import count
from maintenance.fsck import fsck
from siltstone.cli.options import json_option, with_settings
from siltstone.console import emit_json, report_console, table
from siltstone.context import check_data_exists, check_store, open_context

if TYPE_CHECKING:
    from catalog.lifecycle.repair import RemovedWriters
    from maintenance.fsck import Difference, FsckReport
    from siltstone.settings.configuration import Settings

#: Agents and Spark drivers send several heartbeats in this time; one that sends none counts as stopped.
SILENT_FOR_MS: Final = 60_000


@click.command()
@click.option("--deep", is_flag=True, help="Read every live file completely and check every batch.")
@click.option("--repair", is_flag=True, help="Correct sums, counts and claims, which follow from other rows.")
@click.option(
    "--restored",
    is_flag=True,
    help="After restoring the catalog from a backup: first remove the sessions and unfinished jobs of the "
    "backup. Otherwise garbage collection would delete objects that they wrote after the backup. No agent "
    "and no compaction may run.",
)
@click.option(
    "--force",
    is_flag=True,
    help="With --restored: ignore that agents or Spark drivers sent recent heartbeats.",
)
@json_option
@with_settings()
def command(
    settings: Settings, *, deep: bool, repair: bool, restored: bool, force: bool, as_json: bool
) -> None:
    """Check that the catalog and the object store agree.

    Nothing is changed without --repair or --restored. The exit code is 1 if a difference is left unrepaired.
    Unreferenced files that wait for garbage collection do not count as differences. Neither do objects that a
    running agent or job may still commit.
    """
    if force and not restored:
        raise click.UsageError("--force needs --restored.")
    check_data_exists(settings)
    check_store(settings)
    removed_writers: RemovedWriters | None = None
    with open_context(settings, check_binding=False, create=False) as context:
        if restored:
            removed_writers = context.catalog.repair.remove_active_writers(0 if force else SILENT_FOR_MS)
        report = fsck(
            context.catalog,
            context.store,
            context.clock,
            deep=deep,
            repair=repair,
            grace_ms=settings.grace_seconds * 1000,
        )
    report = replace(report, removed_writers=removed_writers)
    if as_json:
        emit_json(report.as_dict())
    else:
        _print(report)
    if report.differences_total > report.repaired_total:
        click.get_current_context().exit(1)


def _print(report: FsckReport) -> None:
    console = report_console()
    if (removed_writers := report.removed_writers) is not None:
        console.print(
            f"Removed {count(removed_writers.sessions, 'session')} and "
            f"{count(removed_writers.jobs, 'unfinished job')} of the backup."
        )
    checked = [(name.replace("_", " "), count) for name, count in report.checked.items()]
    console.print(table("Checked", "what", ">count", rows=checked))
    if report.pending:
        waiting = [(name.replace("_", " "), count) for name, count in report.pending.items()]
        console.print(table("Other objects (not differences)", "what", ">amount", rows=waiting))
    for each in report.differences:
        console.print(f"{each.kind.value}: {_location(each)}", style="bold red", markup=False)
        console.print(f"  expected {each.expected}; found {each.found}", markup=False)
        console.print("  repaired" if each.repaired else f"  {each.remedy}", markup=False)
    if not report.differences_total:
        console.print("✓ no differences", style="green")
        return
    hidden = report.differences_total - len(report.differences)
    more = f"; {hidden:,} are not shown" if hidden else ""
    console.print(f"✗ {count(report.differences_total, 'difference')}{more}", style="bold red")


def _location(difference: Difference) -> str:
    parts = []
    if difference.topic is not None:
        parts.append(f"{difference.topic}-{difference.partition}")
    if difference.object_name is not None:
        parts.append(difference.object_name)
    return ", ".join(parts)
