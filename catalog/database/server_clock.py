"""The time that decides about leases, graces and retention: the catalog's, never that of one machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from catalog.database.pool import Database
    from core.clock import Clock


class CatalogClock:
    """A `Clock` whose wall time is the catalog's; pauses and intervals are those of this machine.

    `now_ms` is a query, unless the catalog was opened with a clock that is not the machine's.
    """

    def __init__(self, database: Database, machine: Clock) -> None:
        self._database = database
        self._machine = machine

    def now_ms(self) -> int:
        """Milliseconds since the Unix epoch, by the catalog."""
        return self._database.now_ms()

    def monotonic(self) -> float:
        """Seconds since some fixed point; never goes back."""
        return self._machine.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        self._machine.sleep(seconds)
