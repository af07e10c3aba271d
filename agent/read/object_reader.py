"""Reads of object ranges from the cache, or by as few GETs as possible."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agent.cluster.errors import ReadFailedError
from agent.read.range_cache import ByteRange
from object_store.accounting import Purpose
from object_store.errors import ObjectNotFoundError, StoreAccessError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.read.range_cache import RangeCache
    from agent.runtime.health import CallHealth
    from agent.runtime.pools import Pools
    from object_store.interface import Buffer, ObjectStore


@dataclass(frozen=True, slots=True)
class RangeRequest:
    """A range to read; a hot range was written recently."""

    range: ByteRange
    is_hot: bool


def coalesce(ranges: Sequence[ByteRange], *, gap: int, limit: int) -> list[ByteRange]:
    """Join ranges of one object that overlap or are at most `gap` apart, up to `limit` bytes.

    A single range may be larger. Each given range lies within one range of the result, which is sorted.
    """
    joined: list[ByteRange] = []
    for each in sorted(ranges, key=lambda r: (r.object_name, r.position, -r.length)):
        last = joined[-1] if joined else None
        if last is not None and last.object_name == each.object_name:
            end = max(last.end, each.end)
            is_inside = each.end <= last.end
            if is_inside or (each.position - last.end <= gap and end - last.position <= limit):
                joined[-1] = ByteRange(last.object_name, last.position, end - last.position)
                continue
        joined.append(each)
    return joined


class ObjectReader:
    """Reads ranges for fetches. Belongs to the event loop."""

    def __init__(
        self,
        store: ObjectStore,
        cache: RangeCache,
        pools: Pools,
        *,
        gap: int,
        limit: int,
        health: CallHealth,
    ) -> None:
        self.cache = cache
        self._store = store
        self._pools = pools
        self._gap = gap
        self._limit = limit
        self._health = health

    def has(self, wanted: ByteRange) -> bool:
        """Return True if a read of `wanted` causes no further request."""
        return self.cache.has(wanted)

    async def read(
        self, wanted: Sequence[RangeRequest], *, limiter: asyncio.Semaphore | None = None
    ) -> list[memoryview]:
        """Return the bytes of each range, read-only, in the order of `wanted`.

        With a `limiter`, each request acquires it first, and other reads cannot join the request until then.
        Raises `ObjectNotFoundError` if an object is gone because its extents were replaced after the lookup,
        and `RetryableError` if the store does not respond.
        """
        results = {each.range: self.cache.get(each.range) for each in wanted}
        missing: dict[bool, list[ByteRange]] = defaultdict(list)
        for each in wanted:
            if results[each.range] is None:
                missing[each.is_hot].append(each.range)
        reads = [
            (joined, asyncio.ensure_future(self._read_joined(joined, is_hot, limiter)))
            for is_hot, ranges in missing.items()
            for joined in coalesce(ranges, gap=self._gap, limit=self._limit)
        ]
        try:
            loaded = [(joined, await read) for joined, read in reads]
        except BaseException:
            for _, read in reads:
                read.cancel()
            await asyncio.gather(*(read for _, read in reads), return_exceptions=True)
            raise
        return [self._pick(each.range, results[each.range], loaded) for each in wanted]

    async def _read_joined(
        self, joined: ByteRange, is_hot: bool, limiter: asyncio.Semaphore | None
    ) -> memoryview:
        async with limiter or nullcontext():
            return await self.cache.read(joined, partial(self._load, joined, is_hot))

    @staticmethod
    def _pick(
        wanted: ByteRange, found: memoryview | None, loaded: Sequence[tuple[ByteRange, memoryview]]
    ) -> memoryview:
        if found is not None:
            return found
        joined, data = next(each for each in loaded if each[0].covers(wanted))
        start = wanted.position - joined.position
        return data[start : start + wanted.length]

    async def _load(self, wanted: ByteRange, is_hot: bool) -> Buffer:
        pool = self._pools.hot_reads if is_hot else self._pools.cold_reads
        read = partial(
            self._store.read_range, wanted.object_name, wanted.position, wanted.length, purpose=Purpose.FETCH
        )
        try:
            data = await pool.run(read)
        except ObjectNotFoundError:
            self.cache.invalidate(wanted.object_name)
            raise
        except StoreAccessError as error:
            raise ReadFailedError(
                f"the object store cannot be read: {error.message}", remedy=error.remedy
            ) from error
        self._health.succeeded()
        return data
