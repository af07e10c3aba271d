"""`siltstone expire`: retention and garbage collection without compaction and without Spark."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from core.quantities import count, human_bytes
from maintenance.garbage_collection import GarbageSettings, collect_garbage
from siltstone.cli.options import json_option, with_settings
from siltstone.console import emit_json, report_console
from siltstone.context import check_data_exists, check_store, open_context

if TYPE_CHECKING:
    from maintenance.garbage_collection import GarbageReport
    from siltstone.settings.configuration import Settings


@click.command()
@json_option
@with_settings()
def command(settings: Settings, *, as_json: bool) -> None:
    """Apply retention and delete garbage, without Spark.

    This is the last step of siltstone compact, on its own. Records expire by retention.ms, retention.bytes
    and the log start offset. An object is deleted when none of its records is live and the grace period has
    passed.
    """
    check_data_exists(settings)
    check_store(settings)
    with open_context(settings, create=False) as context:
        wanted = GarbageSettings(grace_ms=settings.grace_seconds * 1000)
        report = collect_garbage(context.catalog, context.store, context.clock, wanted)
    if as_json:
        emit_json(report.as_dict())
        return
    expired = f"Expired {count(report.expired_extents, 'extent')} ({human_bytes(report.expired_bytes)})."
    report_console().print(f"{expired} {describe_deleted(report)}")


def describe_deleted(report: GarbageReport) -> str:
    """Return a sentence about the deleted objects."""
    return (
        f"Deleted {count(report.dead_files, 'unreferenced file')} ({human_bytes(report.dead_bytes)}) "
        f"and {count(report.orphans, 'orphan')} ({human_bytes(report.orphan_bytes)})."
    )
