"""The pause of compaction while unrelated jobs fail alike (`catalog.jobs.circuit_breaker`), for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from catalog.jobs.circuit_breaker import is_due
from core.errors import RetryableError
from core.quantities import count

if TYPE_CHECKING:
    from catalog.jobs.circuit_breaker import CompactionPause
    from siltstone.context import AppContext

RESUME = "remove the cause; siltstone quarantine --resume ends the pause at once"


class CompactionPausedError(RetryableError):
    """Compaction is paused, because unrelated jobs failed alike."""


def waiting_pause(context: AppContext) -> CompactionPause | None:
    """Return the pause of compaction; None if there is none, or if a job may test whether it can end."""
    pause = context.catalog.circuit_breaker.pause()
    return None if pause is None or is_due(pause, context.clock.now_ms()) else pause


def pause_fields(pause: CompactionPause | None) -> dict[str, Any] | None:
    """Return the pause for `--json`."""
    if pause is None:
        return None
    return {
        "error": pause.error,
        "message": pause.message,
        "jobs": pause.jobs,
        "paused_ms": pause.paused_ms,
        "not_before_ms": pause.not_before_ms,
        "is_probing": pause.is_probing,
    }


def describe_pause(pause: CompactionPause, now_ms: int) -> str:
    """Return a sentence about the cause and the end of a pause."""
    seconds = max(0, pause.not_before_ms - now_ms) // 1000
    until = "a job tests it now" if pause.is_probing else f"a job tests it in {seconds} s"
    return (
        f"compaction is paused, because {count(pause.jobs, 'unrelated job')} failed alike and {until};"
        f" the last failure: {pause.message}"
    )
