"""A limit on bytes per second that several threads share.

Source: Throttler of org.apache.kafka.storage.internals.utils: at the end of each interval, whoever is ahead
of the rate sleeps until it is met.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from core.clock import Clock

NO_LIMIT: Final = float("inf")
INTERVAL_SECONDS: Final = 0.3


class Throttle:
    """Keeps what is passed to `spend` at or below `bytes_per_second`, measured over intervals of 300 ms."""

    def __init__(self, clock: Clock, bytes_per_second: float = NO_LIMIT) -> None:
        self._clock = clock
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._began = clock.monotonic()
        self._spent = 0

    def spend(self, count: int) -> None:
        """Account for `count` bytes, and sleep when they came too fast."""
        if self._rate == NO_LIMIT:
            return
        with self._lock:
            self._spent += count
            elapsed = self._clock.monotonic() - self._began
            if elapsed < INTERVAL_SECONDS and self._spent < self._rate * INTERVAL_SECONDS:
                return
            ahead = self._spent / self._rate - elapsed
            if ahead > 0:
                self._clock.sleep(ahead)
            self._began, self._spent = self._clock.monotonic(), 0
