"""Lookup of offsets by time: the first record of a partition at or after a timestamp."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from agent.cluster.errors import ReadFailedError
from agent.read.caches.range_cache import ByteRange
from agent.read.fetch_plan import data_range, index_range, parse_index
from agent.read.object_reader import RangeRequest
from object_format.record_batch.headers import trim_batches
from object_format.record_batch.records import decode_batches
from object_format.segment_file import parse_data_blocks
from object_store.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from agent.read.object_reader import ObjectReader
    from agent.runtime.byte_budget import ByteBudget
    from agent.runtime.pools import Pools
    from agent.settings import AgentSettings
    from catalog.model import Extent, Topic
    from local_tier.segment.time_index import TimestampOffset
    from object_format.segment_file import SectionIndex

_MAX_STEPS = 64
_NO_LIMIT = 2**62


class TimedExtents(Protocol):
    """The operations of the catalog that the lookup needs."""

    def first_at_or_after_timestamp(self, topic_id: UUID, partition: int, timestamp: int, /) -> Extent | None:
        """Return the first extent in offset order with a record at or after `timestamp`."""
        ...

    def from_offset(
        self, topic_id: UUID, partition: int, offset: int, *, max_extents: int, max_bytes: int
    ) -> Sequence[Extent]:
        """Return live extents in offset order. The first one covers `offset`."""
        ...


class TimedTailCache(Protocol):
    """Lookups by time in the tail cache on this agent's disks."""

    async def offset_in_extent(
        self, topic: Topic, extent: Extent, timestamp: int, log_start_offset: int, /
    ) -> TimestampOffset | None:
        """Return the first record at or after a timestamp if it lies in `extent` and is in the tail cache."""
        ...


@dataclass(frozen=True, slots=True)
class TimedOffset:
    """The offset and the timestamp of a record."""

    offset: int
    timestamp: int


class TimestampLookup:
    """Finds records by time. Belongs to the event loop."""

    def __init__(
        self,
        log: TimedExtents,
        reader: ObjectReader,
        pools: Pools,
        settings: AgentSettings,
        tail_cache: TimedTailCache,
    ) -> None:
        self._log = log
        self._tail_cache = tail_cache
        self._reader = reader
        self._pools = pools
        self._settings = settings

    async def find(
        self, topic: Topic, partition: int, timestamp: int, *, log_start_offset: int, budget: ByteBudget
    ) -> TimedOffset | None:
        """Return the first record from `log_start_offset` on at or after `timestamp`, or None.

        The bytes that it reads are reserved in `budget`.
        """
        search = partial(self._search, timestamp=timestamp, log_start_offset=log_start_offset, budget=budget)
        first = partial(self._log.first_at_or_after_timestamp, topic.topic_id, partition, timestamp)
        extent = await self._pools.lookups.run(first)
        for _ in range(_MAX_STEPS):
            if extent is None:
                return None
            near = await self._tail_cache.offset_in_extent(topic, extent, timestamp, log_start_offset)
            if near is not None:
                return TimedOffset(near.offset, near.timestamp)
            try:
                found = await search(extent)
            except ObjectNotFoundError:  # replaced since the lookup
                extent = await self._pools.lookups.run(first)
                continue
            if found is not None:
                return found
            extent = await self._pools.lookups.run(partial(self._after, extent, timestamp))
        raise ReadFailedError(
            f"the offset for timestamp {timestamp} of {topic.name}-{partition} was not found in time",
            remedy="try again",
        )

    def _after(self, extent: Extent, timestamp: int) -> Extent | None:
        """Return the next extent that may have such a record, if the first one has none left. Blocking."""
        offset = extent.last_offset + 1
        while page := self._log.from_offset(
            extent.topic_id,
            extent.partition,
            offset,
            max_extents=self._settings.max_fetch_extents,
            max_bytes=_NO_LIMIT,
        ):
            for candidate in page:
                if candidate.max_timestamp >= timestamp and candidate.record_count > 0:
                    return candidate
            offset = page[-1].last_offset + 1
        return None

    async def _search(
        self, extent: Extent, *, timestamp: int, log_start_offset: int, budget: ByteBudget
    ) -> TimedOffset | None:
        index = await self._index(extent)
        wanted: ByteRange | None = data_range(extent)
        if index is not None:
            stored = max(log_start_offset - extent.offset_shift, 0)
            wanted = self._range(extent, index, timestamp, index.range_for_offset(stored, 1)[0])
        while wanted is not None:
            with budget.reserving(wanted.length):
                (data,) = await self._reader.read([RangeRequest(wanted, is_hot=False)])
                look = partial(_first_record, extent, wanted, data, timestamp, log_start_offset)
                found = await self._pools.rendering.run(look)
                del data, look
            if found is not None:
                return found
            # The late records lie below the log start offset: continue after them.
            end = wanted.position + wanted.length - extent.position
            wanted = None if index is None else self._range(extent, index, timestamp, end)
        return None

    async def _index(self, extent: Extent) -> SectionIndex | None:
        if not extent.index_length or extent.length < self._settings.index_threshold_bytes:
            return None
        (block,) = await self._reader.read([RangeRequest(index_range(extent), is_hot=False)])
        return parse_index(extent, block)

    def _range(
        self, extent: Extent, index: SectionIndex, timestamp: int, from_position: int
    ) -> ByteRange | None:
        found = index.range_for_timestamp(
            timestamp, self._settings.default_fetch_bytes, from_position=from_position
        )
        return found and ByteRange(extent.object_name, extent.position + found[0], found[1])


def _first_record(
    extent: Extent, part: ByteRange, data: memoryview, timestamp: int, log_start_offset: int
) -> TimedOffset | None:
    payloads = parse_data_blocks(
        data,
        name=extent.object_name,
        file_id=extent.file_id,
        position=part.position,
        section=(extent.topic_id, extent.partition),
    )
    for payload in payloads:
        batches = trim_batches(
            payload,
            first_offset=max(extent.base_offset, log_start_offset),
            last_offset=extent.last_offset,
            offset_shift=extent.offset_shift,
        )
        for columns in decode_batches(batches, offset_shift=extent.offset_shift):
            late = np.flatnonzero((columns.timestamps >= timestamp) & (columns.offsets >= log_start_offset))
            if late.size:
                first = int(late[0])
                return TimedOffset(int(columns.offsets[first]), int(columns.timestamps[first]))
    return None
