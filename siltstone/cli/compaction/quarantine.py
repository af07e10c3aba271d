"""`siltstone quarantine`: files that make every job fail, and how to retry them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from core.errors import NotFoundError
from core.quantities import count, human_bytes
from siltstone.cli.options import json_option, with_settings
from siltstone.compaction.pause import RESUME, describe_pause, pause_fields
from siltstone.console import emit_json, print_whole, report_console
from siltstone.context import open_context

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from catalog.jobs.quarantine import QuarantineCandidate
    from siltstone.settings.configuration import Settings


@click.command()
@click.option(
    "--retry",
    type=click.UUID,
    metavar="FILE",
    multiple=True,
    help="Retry the file with this identifier, which the list shows. May be repeated.",
)
@click.option("--retry-all", is_flag=True, help="Retry all files.")
@click.option("--resume", is_flag=True, help="End a pause of compaction, because its cause was removed.")
@json_option
@with_settings()
def command(
    settings: Settings, *, retry: tuple[UUID, ...], retry_all: bool, resume: bool, as_json: bool
) -> None:
    """List the files that compaction leaves out, or allow it to retry them.

    Compaction leaves a file out if its bytes are proven to be corrupt, or if workers die repeatedly over this
    file alone. Consumers read its records as before, and nothing is deleted.

    If unrelated jobs fail alike, for example because a token has expired, no file is left out. Compaction
    pauses instead, tests with one job from time to time whether the cause is gone, and continues by itself.
    """
    with open_context(settings, check_binding=False, create=False) as context:
        retried = 0
        if not retry_all:
            _check_present(retry, context.catalog.quarantine.list())
        if retry or retry_all:
            retried = context.catalog.quarantine.release(None if retry_all else retry)
        resumed = resume and context.catalog.circuit_breaker.reset()
        pause = context.catalog.circuit_breaker.pause()
        now_ms = context.clock.now_ms()
        candidates = context.catalog.quarantine.list()
    if as_json:
        fields = {"retried": retried, "resumed": resumed, "pause": pause_fields(pause)}
        emit_json({**fields, **candidate_fields(candidates)})
        return
    if retry or retry_all:
        report_console().print(f"{count(retried, 'file')} will be retried.")
    if resume:
        report_console().print("Compaction continues." if resumed else "Compaction was not paused.")
    if pause is not None:
        sentence = f"Note: {describe_pause(pause, now_ms)} ({RESUME})."
        report_console().print(sentence, markup=False, soft_wrap=True)
    if not candidates:
        report_console().print("No files are in quarantine.")
    print_candidates(candidates)


def _check_present(named: Sequence[UUID], candidates: Sequence[QuarantineCandidate]) -> None:
    """Raise NotFoundError if one of the named files is not left out, for example because of a slip."""
    absent = set(named) - {each.file_id for each in candidates}
    if absent:
        raise NotFoundError(
            f"not in quarantine: {', '.join(sorted(map(str, absent)))}", remedy="see: siltstone quarantine"
        )


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
        console.print("In quarantine", style="bold")
    for each in quarantined:
        print_whole(console, each.object_name)
        print_whole(console, f"  file {each.file_id}, {human_bytes(each.size)}")
        print_whole(console, f"  {each.reason}")
    if len(candidates) > len(quarantined):
        waiting = len(candidates) - len(quarantined)
        console.print(f"{count(waiting, 'file')} under suspicion will be retried in smaller jobs.")


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
