"""A limit for bytes in memory: a reservation beyond it is rejected at once, or waits."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, Final

from agent.runtime.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Iterator

MIN_BYTES_PER_SECOND: Final = 64 * 1024
"""Rate at which a client must send a large request while the memory for requests is scarce."""


class ByteBudget:
    """Counter of reserved bytes with a limit. A reservation is all or nothing.

    Belongs to the event loop: it is not safe to use from other threads.
    """

    def __init__(self, name: str, limit: int, *, retry_after_seconds: float = 1.0) -> None:
        self.name = name
        self.limit = limit
        self.used = 0
        self.rejections = 0
        self._released: asyncio.Future[None] | None = None  # shared by all waiters
        self._retry_after_seconds = retry_after_seconds

    def reserve(self, count: int) -> None:
        """Reserve `count` more bytes, or raise `BusyError` and reserve none."""
        if count > self.limit - self.used:
            raise self.rejection(count)
        self.used += count

    def rejection(self, count: int) -> BusyError:
        """Count a rejected reservation of `count` bytes, and return its error."""
        self.rejections += 1
        return BusyError(
            f"{self.name} is full: {self.used} of {self.limit} bytes are in use, {count} more do not fit",
            remedy="retry the request later",
            retry_after_seconds=self._retry_after_seconds,
        )

    @property
    def is_full(self) -> bool:
        """Return True if no byte is free."""
        return self.used >= self.limit

    @property
    def is_scarce(self) -> bool:
        """Return True if more than half of the bytes are reserved."""
        return self.used > self.limit // 2

    def reserve_unchecked(self, count: int) -> None:
        """Reserve `count` bytes that are in memory already, even beyond the limit."""
        self.used += count

    async def wait_for_space(self, count: int, seconds: float) -> bool:
        """Wait until `count` bytes (or the whole budget, if smaller) are free; return False after `seconds`.

        The bytes are not reserved.
        """
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
        """Bytes that are not reserved."""
        return self.limit - self.used

    @contextlib.contextmanager
    def reserving(self, count: int) -> Iterator[None]:
        """Reserve `count` bytes for the duration of the block."""
        self.reserve(count)
        try:
            yield
        finally:
            self.release(count)

    def release(self, count: int) -> None:
        """Release `count` reserved bytes."""
        if count > self.used:
            raise ValueError(f"{self.name}: {count} bytes released while {self.used} are reserved")
        self.used -= count
        if self._released is not None:
            self._released.set_result(None)
            self._released = None
