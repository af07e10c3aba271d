"""Whether the other sides answer, judged by the calls that are made anyway: no probe costs a request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.clock import Clock


class CallHealth:
    """Healthy until calls have failed for `limit_seconds` without one success in between.

    Safe across threads.
    """

    def __init__(self, clock: Clock, *, limit_seconds: float) -> None:
        self._clock = clock
        self._limit = limit_seconds
        self._failing_since: float | None = None

    def succeeded(self) -> None:
        """A call came back well."""
        self._failing_since = None

    def failed(self) -> None:
        """A call failed for a reason on the other side."""
        if self._failing_since is None:
            self._failing_since = self._clock.monotonic()

    @property
    def failing_seconds(self) -> float:
        """For how long nothing has succeeded; 0 while all is well."""
        since = self._failing_since
        return 0.0 if since is None else self._clock.monotonic() - since

    @property
    def is_healthy(self) -> bool:
        """Whether the other side counts as there."""
        return self.failing_seconds < self._limit


class LoopLag:
    """How late the event loop is: what should take no time on it, and does."""

    def __init__(self, *, interval_seconds: float = 0.5) -> None:
        self._interval = interval_seconds
        self._task: asyncio.Task[None] | None = None
        self.seconds = 0.0

    def start(self) -> None:
        """Begin to measure."""
        self._task = asyncio.get_running_loop().create_task(self._measure(), name="loop lag")

    async def stop(self) -> None:
        """Measure no more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._interval
            await asyncio.sleep(self._interval)
            self.seconds = max(0.0, loop.time() - due)
