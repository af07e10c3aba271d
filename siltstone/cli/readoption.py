"""Output of `siltstone fsck --readopt`: lost files, with their old and new offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import click

from agent.settings import AgentSettings
from core.quantities import count
from maintenance.readopt import readopt, wait_for_agents
from siltstone.console import emit_json, print_whole, report_console

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from catalog.model import OffsetRange
    from maintenance.readopt import ReadoptReport
    from siltstone.context import AppContext

_ACKNOWLEDGED = {True: "yes", None: "unknown"}
_MAX_PARTITIONS = 8


def print_readoption(context: AppContext, *, apply: bool, acknowledged_only: bool, as_json: bool) -> None:
    """Run a readoption and print its report."""
    console = report_console()

    def show_progress(done: int, total: int) -> None:
        if done % 100 == 0 or done == total:
            console.print(f"{done:,} of {count(total, 'lost file')}")

    if apply:
        wait_for_agents(
            context.catalog,
            context.clock,
            AgentSettings().broker_silent_ms,
            lambda agents: click.echo(
                f"Waiting for {count(agents, 'agent')} to report lost commits.", err=True
            ),
        )
    report = readopt(
        context.catalog,
        context.store,
        apply=apply,
        acknowledged_only=acknowledged_only,
        on_progress=show_progress if apply and not as_json else None,
    )
    if as_json:
        emit_json(report.as_dict())
        return
    names = {topic.topic_id: topic.name for topic in context.catalog.topics.list()}
    _print_files(report, names)
    if not report.files:
        console.print("✓ no file is lost", style="green")
    elif not apply:
        console.print("Nothing was changed. --apply commits these files again behind the log ends.")
    if apply:
        console.print(f"Settled {count(report.settled_sessions, 'session')}.")


def _print_files(report: ReadoptReport, names: Mapping[UUID, str]) -> None:
    if not report.files:
        return
    console = report_console()
    console.print("Lost files", style="bold")
    for file in report.files:
        print_whole(console, file.object_name)
        acknowledged = _ACKNOWLEDGED[file.acknowledged]
        print_whole(
            console, f"  {file.outcome.value}, acknowledged: {acknowledged}, {count(file.records, 'record')}"
        )
        if file.detail is not None:
            print_whole(console, f"  {file.detail}")
        for title, ranges in (("old", file.old_offsets), ("new", file.new_offsets)):
            if ranges:
                print_whole(console, f"  {title} offsets: {_offsets(ranges, names)}")
    total = sum(report.counts.values())
    if total > len(report.files):
        console.print(f"{count(total - len(report.files), 'further file')} not shown")
    console.print(
        f"{count(report.records, 'record')}; of these {report.duplicates:,} are in the log already, "
        f"and {report.rejected:,} are rejected, for example because their topic was deleted"
    )


def _offsets(ranges: Sequence[OffsetRange], names: Mapping[UUID, str]) -> str:
    shown = [
        f"{names.get(UUID(each.topic_id), each.topic_id)}-{each.partition}: "
        f"{each.base_offset} to {each.end_offset - 1}"
        for each in ranges[:_MAX_PARTITIONS]
    ]
    return ", ".join(shown) + (f", and {len(ranges) - len(shown)} more" if len(ranges) > len(shown) else "")
