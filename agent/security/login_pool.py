"""Threads that verify clients, shared fairly among addresses.

One call of an address runs or waits in the pool at a time; its other calls wait for their turn. So a flood of
logins from one address delays those of the same address only, and occupies one thread. The addresses of an
IPv6 network (a /64) count as one. A call whose caller has left runs to its end meanwhile.
"""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from agent.runtime.errors import BusyError
from core.addresses import network_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from agent.runtime.work_pool import WorkPool

T = TypeVar("T")


@dataclass(slots=True)
class _Line:
    """The callers of one address: one of them holds the lock, the others wait."""

    callers: int = 0
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


class LoginPool:
    """A pool with one turn for each address. Belongs to the event loop."""

    def __init__(self, pool: WorkPool, max_waiting: int) -> None:
        """Take the pool, and how many callers of one address may wait."""
        self._pool = pool
        self._max_waiting = max_waiting
        self._lines: dict[str, _Line] = {}

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[WorkPool]:
        """Wait for the turn of a caller, and return the pool; raise BusyError if too many wait.

        What the caller needs may be known by then, because of an earlier caller.
        """
        network = network_of(address)
        line = self._lines.setdefault(network, _Line())
        if line.callers > self._max_waiting:
            raise BusyError(
                f"{line.callers} logins from {address} wait",
                remedy="retry the request later",
                retry_after_seconds=1.0,
            )
        line.callers += 1
        try:
            async with line.lock:
                yield self._pool
        finally:
            line.callers -= 1
            if not line.callers:
                del self._lines[network]
