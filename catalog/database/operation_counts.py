"""Counts what the catalog does, by operation: how often, how long, how often again, how often in vain."""

from __future__ import annotations

import threading
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationCount:
    """The totals of one operation; `seconds` includes retries and the waits between them."""

    calls: int = 0
    retries: int = 0
    failures: int = 0
    statements: int = 0
    seconds: float = 0.0


_NOTHING = OperationCount()


class OperationCounts:
    """Totals by operation's name; safe to use from many threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, OperationCount] = {}

    def add(self, operation: str, *, retries: int, failed: bool, statements: int, seconds: float) -> None:
        """Note one call of `operation`."""
        with self._lock:
            old = self._counts.get(operation, _NOTHING)
            self._counts[operation] = replace(
                old,
                calls=old.calls + 1,
                retries=old.retries + retries,
                failures=old.failures + failed,
                statements=old.statements + statements,
                seconds=old.seconds + seconds,
            )

    def snapshot(self) -> dict[str, OperationCount]:
        """The totals up to now."""
        with self._lock:
            return dict(self._counts)
