"""Who writes of a group to the catalog: one at a time, in the order in which they came."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from types import TracebackType

T = TypeVar("T")


class WriteLock:
    """A lock that is kept until the write under it has ended, also when whoever asked for it is gone.

    A client that hangs up cancels its request, not what a thread does: the next write must not overtake that.
    Belongs to the event loop.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._under_way: asyncio.Task[object] | None = None

    def locked(self) -> bool:
        """Whether somebody writes."""
        return self._lock.locked()

    async def __aenter__(self) -> None:
        """Wait for those who came before."""
        await self._lock.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Let the next one write, once nothing is under way."""
        under_way, self._under_way = self._under_way, None
        if under_way is None or under_way.done():
            self._lock.release()
        else:
            under_way.add_done_callback(lambda _: self._lock.release())

    async def until_done(self, write: asyncio.Task[T]) -> T:
        """What `write` gives, which goes on when whoever waits for it is cancelled; only under the lock."""
        self._under_way = write
        return await asyncio.shield(write)
