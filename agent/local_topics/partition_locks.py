"""Locks of partitions, for coroutines that must not change the same partition at the same time."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from catalog.model import PartitionId


class PartitionLocks:
    """A lock for each partition that is in use. They are given in the order in which they are asked for."""

    def __init__(self) -> None:
        self._locks: dict[PartitionId, asyncio.Lock] = {}
        self._users: Counter[PartitionId] = Counter()

    @asynccontextmanager
    async def hold(self, partition: PartitionId) -> AsyncIterator[None]:
        """Hold the lock of a partition."""
        lock = self._locks.setdefault(partition, asyncio.Lock())
        self._users[partition] += 1
        try:
            async with lock:
                yield
        finally:
            self._users[partition] -= 1
            if not self._users[partition]:
                del self._users[partition], self._locks[partition]
