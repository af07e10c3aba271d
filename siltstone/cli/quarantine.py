"""`siltstone quarantine`: files that make every job fail, and how to retry them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from core.quantities import count, human_bytes
from siltstone.cli.options import json_option, with_settings
from siltstone.console import emit_json, report_console, table
from siltstone.context import open_context

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from catalog.jobs.quarantine import QuarantineCandidate
    from siltstone.settings.configuration import Settings


@click.command()
@click.option(
    "--retry", type=click.UUID, metavar="FILE", multiple=True, help="Retry this file. May be repeated."
)
@click.option("--retry-all", is_flag=True, help="Retry all files.")
@json_option
@with_settings()
def command(settings: Settings, *, retry: tuple[UUID, ...], retry_all: bool, as_json: bool) -> None:
    """List the files that compaction leaves out, or allow it to retry them.

    When a job fails permanently, the planner splits its input in halves until the file that causes the
    failure is alone. Compaction then leaves that file out. Consumers read its records as before, and nothing
    is deleted.
    """
    with open_context(settings, check_binding=False, create=False) as context:
        retried = 0
        if retry or retry_all:
            retried = context.catalog.quarantine.release(None if retry_all else retry)
        candidates = context.catalog.quarantine.list()
    if as_json:
        emit_json({"retried": retried, **candidate_fields(candidates)})
        return
    if retry or retry_all:
        report_console().print(f"{count(retried, 'file')} will be retried.")
    if not candidates:
        report_console().print("No files are in quarantine.")
    print_candidates(candidates)


def candidate_fields(candidates: Sequence[QuarantineCandidate]) -> dict[str, Any]:
    """Return files in quarantine, and files of failed jobs that will be retried, for `--json`."""
    return {
        "quarantined": [_fields(each) for each in candidates if each.quarantined_ms is not None],
        "candidates": [_fields(each) for each in candidates if each.quarantined_ms is None],
    }


def print_candidates(candidates: Sequence[QuarantineCandidate]) -> None:
    """Print the files in quarantine, and the number of files that will be retried."""
    console = report_console()
    quarantined = [each for each in candidates if each.quarantined_ms is not None]
    if quarantined:
        rows = [(each.file_id, each.object_name, human_bytes(each.size), each.reason) for each in quarantined]
        console.print(table("In quarantine", "file", "object", ">size", "reason", rows=rows))
    if len(candidates) > len(quarantined):
        waiting = len(candidates) - len(quarantined)
        console.print(f"{count(waiting, 'file')} of failed jobs will be retried in smaller jobs.")


def _fields(candidate: QuarantineCandidate) -> dict[str, Any]:
    return {
        "file_id": str(candidate.file_id),
        "object": candidate.object_name,
        "size": candidate.size,
        "failures": candidate.failures,
        "job_id": str(candidate.job_id),
        "reason": candidate.reason,
        "failed_ms": candidate.failed_ms,
        "not_before_ms": candidate.not_before_ms,
    }
