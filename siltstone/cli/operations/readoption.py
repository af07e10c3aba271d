"""Output of `siltstone fsck --readopt`: lost files, with their old and new offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

import click

from agent.settings import AgentSettings
from core.quantities import count
from local_tier.files.metadata_files import uuid_text
from maintenance.readopt import Outcome, readopt, wait_for_agents
from siltstone.console import emit_json, print_whole, report_console

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from catalog.model import OffsetRange
    from maintenance.readopt.report import ReadoptedFile, ReadoptReport
    from siltstone.context import AppContext

_ACKNOWLEDGED = {True: "yes", None: "unknown"}
_MAX_PARTITIONS = 8


def print_readoption(
    context: AppContext,
    *,
    apply: bool,
    acknowledged_only: bool,
    discard_unknown_topics: bool,
    as_json: bool,
) -> None:
    """Run a readoption and print its report. Exit with code 1 if it leaves files that it should commit."""
    console = report_console()

    def show_progress(done: int, total: int) -> None:
        if done % 100 == 0 or done == total:
            console.print(f"{done:,} of {count(total, 'lost file')}")

    announced = 0

    def announce(agents: int) -> None:
        nonlocal announced
        if agents != announced:
            click.echo(f"Waiting at most 30 s for {count(agents, 'agent')} to report lost commits.", err=True)
        announced = agents

    if apply:
        wait_for_agents(context.catalog, context.clock, AgentSettings().broker_silent_ms, announce)
    report = readopt(
        context.catalog,
        context.store,
        apply=apply,
        acknowledged_only=acknowledged_only,
        discard_unknown_topics=discard_unknown_topics,
        on_progress=None if as_json else show_progress,
    )
    if as_json:
        emit_json(report.as_dict())
    else:
        _print_report(context, report)
    if apply and (report.counts.get(Outcome.WAITING.value, 0) or report.kept):
        click.get_current_context().exit(1)


def _print_report(context: AppContext, report: ReadoptReport) -> None:
    console = report_console()
    names = {topic.topic_id: topic.name for topic in context.catalog.topics.list()}
    _print_files(report, names)
    if not report.files:
        console.print("✓ found no lost file to commit again", style="green")
    _print_missing_topics(report)
    if report.applied:
        _print_settled(report)
    elif report.files:
        console.print("No file was committed. --apply commits these files again behind the log ends.")


def _print_files(report: ReadoptReport, names: Mapping[UUID, str]) -> None:
    if not report.files:
        return
    console = report_console()
    console.print("Lost files", style="bold")
    for file in report.files:
        print_whole(console, file.object_name)
        print_whole(console, f"  {', '.join(_facts(file))}")
        if file.detail is not None:
            print_whole(console, f"  {file.detail}")
        for title, ranges in (("old", file.old_offsets), ("new", file.new_offsets)):
            if ranges:
                print_whole(console, f"  {title} offsets: {_offsets(ranges, names)}")
    total = sum(report.counts.values())
    if total > len(report.files):
        console.print(f"{count(total - len(report.files), 'further file')} not shown")
    console.print(f"{count(total, 'lost file')} with {count(report.records, 'record')}; {_totals(report)}")


def _print_settled(report: ReadoptReport) -> None:
    console = report_console()
    console.print(f"Settled {count(report.settled_sessions, 'session')}.")
    if report.kept:
        console.print(
            f"{count(report.kept, 'acknowledged file')} cannot be read. The objects are kept, and their "
            "sessions stay unsettled. To give a file up, delete its object, and run this command again."
        )


def _print_missing_topics(report: ReadoptReport) -> None:
    if not report.missing_topics:
        return
    console = report_console()
    if report.applied:
        waiting = report.counts.get(Outcome.WAITING.value, 0)
        console.print(
            f"Left {count(waiting, 'file')}, because the catalog lacks topics or partitions. Create or "
            "undelete them, then run siltstone fsck --readopt --apply again:"
        )
    else:
        console.print(
            "The catalog lacks topics or partitions of these files, and --apply leaves such files. "
            "Create or undelete them first:"
        )
    for topic in report.missing_topics.values():
        print_whole(console, f"  {topic.command}")
        if topic.name is None:
            on_disks = uuid_text(topic.topic_id)
            print_whole(console, f"    partition.metadata in its directories on agents: {on_disks}")
    console.print("Or reject their records for ever, with --apply --discard-unknown-topics.")


def _facts(file: ReadoptedFile) -> Iterator[str]:
    yield file.outcome.value
    yield f"acknowledged: {_ACKNOWLEDGED[file.acknowledged]}"
    yield count(file.records, "record")
    if file.duplicates:
        yield f"{file.duplicates:,} in the log already"
    if file.rejected:
        yield f"{file.rejected:,} rejected"


def _totals(report: ReadoptReport) -> str:
    if report.applied:
        return (
            f"of these {report.duplicates:,} are in the log already, and {report.rejected:,} are rejected, "
            "for example because their topic was deleted"
        )
    verb = "is" if report.acknowledged == 1 else "are"
    return f"{report.acknowledged:,} of the files {verb} known to be acknowledged"


def _offsets(ranges: Sequence[OffsetRange], names: Mapping[UUID, str]) -> str:
    shown = [
        f"{names.get(UUID(each.topic_id), each.topic_id)}-{each.partition}: "
        f"{each.base_offset} to {each.end_offset - 1}"
        for each in ranges[:_MAX_PARTITIONS]
    ]
    return ", ".join(shown) + (f", and {len(ranges) - len(shown)} more" if len(ranges) > len(shown) else "")
