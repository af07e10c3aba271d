"""Output of `siltstone fsck --readopt`: lost files, with their old and new offsets."""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from core.quantities import count
from maintenance.readopt import Outcome, readopt
from siltstone.console import emit_json, report_console, table

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
    rows = [
        (
            file.object_name,
            file.outcome.value,
            _ACKNOWLEDGED[file.acknowledged],
            file.records,
            _offsets(file.old_offsets, names),
            file.detail if file.outcome is Outcome.UNREADABLE else _offsets(file.new_offsets, names),
        )
        for file in report.files
    ]
    console = report_console()
    console.print(
        table(
            "Lost files",
            "object",
            "outcome",
            "acknowledged",
            ">records",
            "old offsets",
            "new offsets",
            rows=rows,
        )
    )
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
