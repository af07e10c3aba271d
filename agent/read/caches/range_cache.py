"""Cache of byte ranges of objects. Concurrent reads of the same range cause one request.

Cached bytes never change: objects are immutable, and readers patch their own copies.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from agent.read.caches.cache_memory import CacheMemory
    from object_store.interface import Buffer


_EXTRACTED_SHARE = 0.75  # the rest are headers of sections, and gaps between them


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes [position, position + length) of one object."""

    object_name: str
    position: int
    length: int

    @property
    def end(self) -> int:
        """The position after the last byte."""
        return self.position + self.length

    def covers(self, other: ByteRange) -> bool:
        """Return True if `other` lies within this range."""
        return (
            self.object_name == other.object_name
            and self.position <= other.position
            and other.end <= self.end
        )


class RangeCache:
    """The byte ranges that were used last. A range that is being read is read only once.

    A range is found if a cached range covers it. Belongs to the event loop.
    """

    def __init__(self, memory: CacheMemory) -> None:
        self.hits = 0
        self.misses = 0
        self.joined = 0
        self._memory = memory
        self._ranges: dict[ByteRange, Buffer] = {}
        self._extracted: dict[ByteRange, int] = {}
        self._by_object: dict[str, list[ByteRange]] = {}
        self._flights: dict[str, dict[ByteRange, asyncio.Task[Buffer]]] = {}  # by object

    def get(self, wanted: ByteRange) -> memoryview | None:
        """Return the bytes of `wanted`, read-only, or None."""
        for cached in self._by_object.get(wanted.object_name, ()):
            if cached.covers(wanted):
                self._memory.use(cached)
                self.hits += 1
                return _part(self._ranges[cached], cached, wanted)
        return None

    def has(self, wanted: ByteRange) -> bool:
        """Return True if the bytes of `wanted` are cached or being read."""
        name = wanted.object_name
        ranges = (*self._by_object.get(name, ()), *self._flights.get(name, ()))
        return any(each.covers(wanted) for each in ranges)

    def put(self, cached: ByteRange, data: Buffer) -> None:
        """Cache `data` if it fits. Its owner must not change it any more."""
        if len(data) != cached.length:
            raise ValueError(f"{len(data)} bytes given for {cached}")
        if cached.length > self._memory.limit or cached in self._ranges:
            return
        self._ranges[cached] = data
        self._by_object.setdefault(cached.object_name, []).append(cached)
        self._memory.add(cached, cached.length, partial(self._drop, cached))

    def extracted(self, parts: Iterable[ByteRange]) -> None:
        """Note that the batches of these parts are cached elsewhere.

        If most of a cached range was extracted, it becomes the next one to evict.
        """
        for part in parts:
            for cached in self._by_object.get(part.object_name, ()):
                if cached.covers(part):
                    taken = self._extracted[cached] = self._extracted.get(cached, 0) + part.length
                    if taken >= _EXTRACTED_SHARE * cached.length:
                        self._memory.expire(cached)
                    break

    def invalidate(self, object_name: str) -> None:
        """Remove the ranges of an object that is gone."""
        for cached in list(self._by_object.get(object_name, ())):
            self._memory.remove(cached)
            self._drop(cached)

    async def read(self, wanted: ByteRange, load: Callable[[], Awaitable[Buffer]]) -> memoryview:
        """Return the bytes of `wanted` from the cache, from a read in progress that covers it, or by `load`.

        A read in progress continues when its caller is cancelled, because other callers may have joined it.
        """
        found = self.get(wanted)
        if found is not None:
            return found
        flights = self._flights.setdefault(wanted.object_name, {})
        for loading, flight in flights.items():
            if loading.covers(wanted):
                self.joined += 1
                return _part(await asyncio.shield(flight), loading, wanted)
        self.misses += 1
        task = asyncio.get_running_loop().create_task(self._load(wanted, load), name="read a range")
        flights[wanted] = task
        task.add_done_callback(lambda done: self._landed(wanted, done))
        return _part(await asyncio.shield(task), wanted, wanted)

    async def _load(self, wanted: ByteRange, load: Callable[[], Awaitable[Buffer]]) -> Buffer:
        data = await load()
        self.put(wanted, data)
        return data

    def _landed(self, wanted: ByteRange, task: asyncio.Task[Buffer]) -> None:
        flights = self._flights[wanted.object_name]
        del flights[wanted]
        if not flights:
            del self._flights[wanted.object_name]
        if not task.cancelled():
            task.exception()  # mark it as retrieved, even if all callers were cancelled

    def _drop(self, cached: ByteRange) -> None:
        del self._ranges[cached]
        self._extracted.pop(cached, None)
        ranges = self._by_object[cached.object_name]
        ranges.remove(cached)
        if not ranges:
            del self._by_object[cached.object_name]


def _part(data: Buffer, cached: ByteRange, wanted: ByteRange) -> memoryview:
    start = wanted.position - cached.position
    return memoryview(data).toreadonly()[start : start + wanted.length]
