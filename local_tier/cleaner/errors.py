"""Why a clean ends early."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import FatalError, StaleStateError

if TYPE_CHECKING:
    from local_tier.log.unified_log import UnifiedLog


class CleaningAbortedError(StaleStateError):
    """Somebody else needs the log; it is cleaned again later."""


class CleanerStoppedError(StaleStateError):
    """The cleaner is on its way out."""


class CleaningFailedError(FatalError):
    """A clean failed for no known reason, and would again; `log` is left alone from now on."""

    def __init__(self, message: str, *, log: UnifiedLog) -> None:
        super().__init__(message, remedy="look for what was logged with it; a restart tries once more")
        self.log = log
