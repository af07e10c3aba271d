"""Health of the object store and the catalog, judged by regular calls. No probe costs a request."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.clock import Clock


class CallHealth:
    """Health of a remote side: unhealthy once calls have failed for `limit_seconds` without a success.

    Thread-safe.
    """

    def __init__(self, clock: Clock, *, limit_seconds: float) -> None:
        self._clock = clock
        self._limit = limit_seconds
        self._failing_since: float | None = None

    def succeeded(self) -> None:
        """Note that a call succeeded."""
        self._failing_since = None

    def failed(self) -> None:
        """Note that a call failed because of the remote side."""
        if self._failing_since is None:
            self._failing_since = self._clock.monotonic()

    @property
    def failing_seconds(self) -> float:
        """Seconds since the first failure without a later success; 0 if the last call succeeded."""
        since = self._failing_since
        return 0.0 if since is None else self._clock.monotonic() - since

    @property
    def is_healthy(self) -> bool:
        """Return True unless calls have failed for `limit_seconds`."""
        return self.failing_seconds < self._limit


class LoopLag:
    """Measures how late the event loop runs its callbacks."""

    def __init__(self, *, interval_seconds: float = 0.5) -> None:
        self._interval = interval_seconds
        self._task: asyncio.Task[None] | None = None
        self.seconds = 0.0

    def start(self) -> None:
        """Start to measure."""
        self._task = asyncio.get_running_loop().create_task(self._measure(), name="loop lag")

    async def stop(self) -> None:
        """Stop measuring."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _measure(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + self._interval
            await asyncio.sleep(self._interval)
            self.seconds = max(0.0, loop.time() - due)
