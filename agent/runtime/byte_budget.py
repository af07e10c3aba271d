"""A bound on bytes held in memory: what does not fit is refused at once, or waits without holding any."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

from agent.runtime.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Iterator


class ByteBudget:
    """Counts bytes that are held; one reservation is all or nothing.

    Belongs to the event loop: it is not safe to use from other threads.
    """

    def __init__(self, name: str, limit: int, *, retry_after_seconds: float = 1.0) -> None:
        self.name = name
        self.limit = limit
        self.used = 0
        self.rejections = 0
        self._released: asyncio.Future[None] | None = None  # whoever waits for room shares it
        self._retry_after_seconds = retry_after_seconds

    def reserve(self, count: int) -> None:
        """Hold `count` more bytes, or raise `BusyError` and hold none of them."""
        if count > self.limit - self.used:
            raise self.rejection(count)
        self.used += count

    def rejection(self, count: int) -> BusyError:
        """Note, and say, that `count` more bytes have no room."""
        self.rejections += 1
        return BusyError(
            f"{self.name} is full: it holds {self.used} of {self.limit} bytes, {count} more do not fit",
            remedy="wait and send the same request again",
            retry_after_seconds=self._retry_after_seconds,
        )

    @property
    def is_full(self) -> bool:
        """Whether not one more byte fits."""
        return self.used >= self.limit

    @property
    def is_scarce(self) -> bool:
        """Whether more than half of it is held."""
        return self.used > self.limit // 2

    def reserve_unchecked(self, count: int) -> None:
        """Hold `count` more bytes that are there already, whether or not they fit."""
        self.used += count

    async def wait_for_space(self, count: int, seconds: float) -> bool:
        """Wait until `count` bytes (or all there are) fit, without holding them; whether they did in time."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + seconds
        while self.free < min(count, self.limit):
            left = deadline - loop.time()
            if left <= 0:
                return False
            if self._released is None:
                self._released = loop.create_future()
            await asyncio.wait([self._released], timeout=left)
        return True

    @property
    def free(self) -> int:
        """Bytes that are not held."""
        return self.limit - self.used

    @contextlib.contextmanager
    def reserving(self, count: int) -> Iterator[None]:
        """Hold `count` bytes for as long as the block runs."""
        self.reserve(count)
        try:
            yield
        finally:
            self.release(count)

    def release(self, count: int) -> None:
        """Let go of `count` bytes that were reserved before."""
        if count > self.used:
            raise ValueError(f"{self.name}: {count} bytes released while {self.used} are held")
        self.used -= count
        if self._released is not None:
            self._released.set_result(None)
            self._released = None
