"""A lock that is held until the write under it has ended."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T")


class WriteLock:
    """Fair lock for writes of one group to the catalog.

    A client that disconnects cancels its request, but not the thread that writes. The lock stays locked until
    that thread is done, so that the next write cannot overtake it. Belongs to the event loop.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._write: asyncio.Task[object] | None = None

    def locked(self) -> bool:
        """Return True if a write is in progress."""
        return self._lock.locked()

    async def __aenter__(self) -> None:
        """Wait for earlier writes."""
        await self._lock.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Release the lock when the current write has ended."""
        write, self._write = self._write, None
        if write is None or write.done():
            self._lock.release()
        else:
            write.add_done_callback(lambda _: self._lock.release())

    async def run(self, write: asyncio.Task[T]) -> T:
        """Await `write`, which continues if the caller is cancelled: call it under the lock."""
        self._write = write
        return await asyncio.shield(write)
