"""`siltstone fsck`: check that the catalog, the object store and the stored bytes agree."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from core.quantities import count
from maintenance.fsck import fsck
from siltstone.cli.operations.readoption import print_readoption
from siltstone.cli.options import json_option, with_settings
from siltstone.console import emit_json, print_whole, report_console, table
from siltstone.context import check_data_exists, check_store, open_context

if TYPE_CHECKING:
    from maintenance.fsck import Difference, FsckReport
    from siltstone.settings.configuration import Settings


@click.command()
@click.option("--deep", is_flag=True, help="Read every live file completely and check every batch.")
@click.option("--repair", is_flag=True, help="Correct sums, counts and claims, which follow from other rows.")
@click.option(
    "--restored",
    is_flag=True,
    help="Declare that the catalog was restored, and begin a new epoch. Siltstone notices most restores by "
    "itself, but not that of a snapshot to the same server if no agent has run since.",
)
@click.option(
    "--readopt",
    is_flag=True,
    help="List the files that a failover or a restore has lost, instead of the checks.",
)
@click.option(
    "--apply", "apply_", is_flag=True, help="With --readopt: commit these files again behind the log ends."
)
@click.option(
    "--acknowledged-only",
    is_flag=True,
    help="With --readopt: leave files to garbage collection that no agent reported as acknowledged.",
)
@click.option(
    "--discard-unknown-topics",
    is_flag=True,
    help="With --readopt --apply: reject the records of topics and partitions that the catalog lacks. "
    "Otherwise their files wait.",
)
@json_option
@with_settings()
def command(
    settings: Settings,
    *,
    deep: bool,
    repair: bool,
    restored: bool,
    readopt: bool,
    apply_: bool,
    acknowledged_only: bool,
    discard_unknown_topics: bool,
    as_json: bool,
) -> None:
    """Check that the catalog and the object store agree.

    Nothing is changed without --repair, --restored or --apply. The exit code is 1 if a difference is left
    unrepaired. Unreferenced files that wait for garbage collection do not count as differences. Neither do
    objects that a running agent or job may still commit.
    """
    if (apply_ or acknowledged_only) and not readopt:
        raise click.UsageError("--apply and --acknowledged-only need --readopt.")
    if discard_unknown_topics and not apply_:
        raise click.UsageError("--discard-unknown-topics needs --readopt --apply.")
    if readopt and (deep or repair):
        raise click.UsageError("--readopt excludes --deep and --repair.")
    check_data_exists(settings)
    check_store(settings)
    epoch: int | None = None
    with open_context(settings, check_binding=False, create=False) as context:
        if restored:
            declared = context.catalog.incarnations.declare_restore("`siltstone fsck --restored`")
            epoch = declared.epoch
        if readopt:
            print_readoption(
                context,
                apply=apply_,
                acknowledged_only=acknowledged_only,
                discard_unknown_topics=discard_unknown_topics,
                as_json=as_json,
            )
            return
        report = fsck(
            context.catalog,
            context.store,
            context.clock,
            deep=deep,
            repair=repair,
            grace_ms=settings.grace_seconds * 1000,
        )
    report = replace(report, epoch=epoch)
    if as_json:
        emit_json(report.as_dict())
    else:
        _print(report)
    if report.differences_total > report.repaired_total:
        click.get_current_context().exit(1)


def _print(report: FsckReport) -> None:
    console = report_console()
    if report.epoch is not None:
        console.print(f"Epoch {report.epoch} begins. Agents register again by themselves.")
    checked = [(name.replace("_", " "), count) for name, count in report.checked.items()]
    console.print(table("Checked", "what", ">count", rows=checked))
    if report.pending:
        waiting = [(name.replace("_", " "), count) for name, count in report.pending.items()]
        console.print(table("Other objects (not differences)", "what", ">amount", rows=waiting))
    for each in report.differences:
        print_whole(console, f"{each.kind.value}: {_location(each)}", style="bold red")
        print_whole(console, f"  expected {each.expected}; found {each.found}")
        print_whole(console, "  repaired" if each.repaired else f"  {each.remedy}")
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
