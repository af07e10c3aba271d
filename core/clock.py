"""Clocks, which are injected, so that tests and simulations control time."""

from __future__ import annotations

import time
from typing import Final, Protocol

DAY_MS: Final = 24 * 60 * 60 * 1000


class Clock(Protocol):
    """Wall time, monotonic time and a blocking sleep."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        ...

    def monotonic(self) -> float:
        """Return seconds since a fixed point in time; the value never decreases."""
        ...

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        ...


class SystemClock:
    """Clock of the machine."""

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds since a fixed point in time; the value never decreases."""
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        """Block the calling thread."""
        time.sleep(seconds)


class ManualClock:
    """Clock that advances only by `advance` and `sleep`."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._start_ms = now_ms
        self._elapsed = 0.0

    def now_ms(self) -> int:
        """Return milliseconds since the Unix epoch."""
        return self._start_ms + round(self._elapsed * 1000)

    def monotonic(self) -> float:
        """Return seconds since the clock was created."""
        return self._elapsed

    def sleep(self, seconds: float) -> None:
        """Advance the clock without blocking."""
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Advance the clock by `seconds`."""
        if seconds < 0:
            raise ValueError("a clock cannot go back")
        self._elapsed += seconds
