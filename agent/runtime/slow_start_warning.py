"""Warning about a slow start: the log names the step that takes long."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

import structlog

if TYPE_CHECKING:
    from collections.abc import Iterator

SLOW_SECONDS: Final = 3.0
_log = structlog.get_logger(__name__)


def _log_warning(doing: str) -> None:
    """Log the step that the agent is in."""
    _log.warning(
        f"the agent is not ready yet: {doing}"
    )  # the step is part of the event, so each one is written


@contextlib.contextmanager
def warn_if_slow(doing: str, seconds: float | None = None) -> Iterator[None]:
    """Log `doing` once if the block takes longer than `seconds` (default 3).

    A timer thread logs it, because the event loop does not run yet or is busy during most of the start.
    """
    timer = threading.Timer(SLOW_SECONDS if seconds is None else seconds, _log_warning, (doing,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
