"""What consumer groups need of the catalog with each heartbeat, remembered so that none waits for long."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

import structlog

from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from core.clock import Clock

T = TypeVar("T")
_log = structlog.get_logger(__name__)
# Heartbeats of members wait for it, and a catalog that hangs answers after half a minute or more.
_PATIENCE_SECONDS = 1.0


class Remembered(Generic[T]):
    """Something looked up at most once in a while, by one look-up for all who ask. Belongs to the event loop.

    Whoever asks while a look-up is under way has what was known before, once that has taken a second; only
    before the first answer there is nothing to tell, and its errors are raised.
    """

    def __init__(
        self, what: str, look_up: Callable[[], Awaitable[T]], *, clock: Clock, refresh_ms: int
    ) -> None:
        self.last: T | None = None
        self._what = what
        self._look_up = look_up
        self._clock = clock
        self._refresh_seconds = refresh_ms / 1000
        self._until = float("-inf")
        self._looking: asyncio.Task[T] | None = None
        self._patient_until = 0.0  # by the loop's time

    async def current(self) -> T:
        """It as it is, or was a moment ago; as last known when nobody tells in time."""
        if self.last is not None and self._clock.monotonic() < self._until:
            return self.last
        loop = asyncio.get_running_loop()
        looking = self._looking
        if looking is None or looking.done():
            looking = self._looking = loop.create_task(self._look(), name=self._what)
            self._patient_until = loop.time() + _PATIENCE_SECONDS
        left = None if self.last is None else self._patient_until - loop.time()
        if left is None or left > 0:
            await asyncio.wait([looking], timeout=left)
        return looking.result() if self.last is None or looking.done() else self.last

    async def _look(self) -> T:
        try:
            self.last = await self._look_up()
        except SiltstoneError as error:
            if self.last is None:
                raise
            _log.warning(f"{self._what} could not be looked up", reason=str(error))
        self._until = self._clock.monotonic() + self._refresh_seconds
        return self.last
