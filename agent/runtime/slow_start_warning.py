"""Says what an agent that starts is busy with, where that takes long: who waits for it shall not wonder."""

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
    """One line of the log."""
    _log.warning("the agent is not ready yet", doing=doing)


@contextlib.contextmanager
def warn_if_slow(doing: str, seconds: float | None = None) -> Iterator[None]:
    """Log what is done, once, when the block takes longer than `seconds` (3).

    By a thread of its own, for much of a start leaves no event loop, or none that gets its turn.
    """
    timer = threading.Timer(SLOW_SECONDS if seconds is None else seconds, _log_warning, (doing,))
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
