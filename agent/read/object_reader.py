"""Reads of object ranges from the cache, or by as few GETs as possible."""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from agent.cluster.errors import ReadFailedError
from agent.read.caches.range_cache import ByteRange
from core.errors import SiltstoneError
from object_store.accounting import Purpose
from object_store.errors import ObjectNotFoundError, ObjectTooShortError, StoreAccessError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from agent.read.caches.range_cache import RangeCache
    from agent.runtime.health import CallHealth
    from agent.runtime.pools import Pools
    from object_store.interface import Buffer, ObjectStore

T = TypeVar("T")


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

    def extracted(self, parts: Iterable[ByteRange]) -> None:
        """Note that the batches of these ranges are cached elsewhere."""
        self.cache.extracted(parts)

    async def read(
        self, wanted: Sequence[RangeRequest], *, limiter: asyncio.Semaphore | None = None
    ) -> list[memoryview]:
        """Return the bytes of each range, read-only, in the order of `wanted`.

        With a `limiter`, each request acquires it first, and other reads cannot join the request until then.
        Raises `ObjectNotFoundError` if an object is gone because its extents were replaced after the lookup,
        and `RetryableError` if the store does not respond.
        """
        found, missing, joined = self._plan(wanted)
        reads = [asyncio.ensure_future(self._read_joined(each, limiter)) for each in joined]
        try:
            loaded = {each.range: await read for each, read in zip(joined, reads, strict=True)}
        except BaseException:
            for read in reads:
                read.cancel()
            await asyncio.gather(*reads, return_exceptions=True)
            raise
        found.update(_pick_each(missing, loaded))
        return [found[each.range] for each in wanted]

    async def read_each(self, wanted: Sequence[RangeRequest]) -> list[memoryview | SiltstoneError]:
        """Do the same, but return the error of a range in its place.

        The ranges of one GET share its error. If the object is too short, each of them is read alone.
        """
        cached, missing, joined = self._plan(wanted)
        loaded = await self._try(joined)
        found: dict[ByteRange, memoryview | SiltstoneError] = {**cached}
        found.update(_pick_each(missing, loaded))
        cut = [each for each in missing if isinstance(found[each.range], ObjectTooShortError)]
        found.update(await self._try([each for each in cut if each.range not in loaded]))
        return [found[each.range] for each in wanted]

    def _plan(
        self, wanted: Sequence[RangeRequest]
    ) -> tuple[dict[ByteRange, memoryview], list[RangeRequest], list[RangeRequest]]:
        """Return the bytes of the cached ranges, the other ranges, and these as they are read."""
        cached = {each.range: data for each in wanted if (data := self.cache.get(each.range)) is not None}
        missing = [each for each in wanted if each.range not in cached]
        joined = []
        for is_hot in (False, True):
            ranges = [each.range for each in missing if each.is_hot is is_hot]
            joined += [
                RangeRequest(each, is_hot) for each in coalesce(ranges, gap=self._gap, limit=self._limit)
            ]
        return cached, missing, joined

    async def _try(self, joined: Sequence[RangeRequest]) -> dict[ByteRange, memoryview | SiltstoneError]:
        outcomes = await asyncio.gather(
            *(self._read_joined(each, None) for each in joined), return_exceptions=True
        )
        loaded: dict[ByteRange, memoryview | SiltstoneError] = {}
        for each, outcome in zip(joined, outcomes, strict=True):
            if isinstance(outcome, BaseException) and not isinstance(outcome, SiltstoneError):
                raise outcome
            loaded[each.range] = outcome
        return loaded

    async def _read_joined(self, joined: RangeRequest, limiter: asyncio.Semaphore | None) -> memoryview:
        async with limiter or nullcontext():
            return await self.cache.read(joined.range, partial(self._load, joined))

    async def _load(self, request: RangeRequest) -> Buffer:
        wanted = request.range
        pool = self._pools.hot_reads if request.is_hot else self._pools.cold_reads
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


def _pick_each(
    wanted: Sequence[RangeRequest], loaded: Mapping[ByteRange, T]
) -> Iterator[tuple[ByteRange, T | memoryview]]:
    """Yield each range with the part of the loaded range that covers it, or with the error of that range."""
    by_object: dict[str, list[ByteRange]] = {}
    for each in sorted(loaded, key=_position_of):
        by_object.setdefault(each.object_name, []).append(each)
    for request in wanted:
        part = request.range
        ranges = by_object[part.object_name]
        at = bisect_right(ranges, part.position, key=_position_of)
        joined = next(each for each in map(ranges.__getitem__, range(at - 1, -1, -1)) if each.covers(part))
        data = loaded[joined]
        if isinstance(data, memoryview):
            start = part.position - joined.position
            yield part, data[start : start + part.length]
        else:
            yield part, data


def _position_of(each: ByteRange) -> int:
    return each.position
