"""Lookup of offsets by time: the first record at or after a timestamp, or with the largest timestamp."""

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
    from collections.abc import Iterator, Sequence
    from uuid import UUID

    import numpy.typing as npt

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

    def latest_timestamp(self, topic_id: UUID, partition: int, /, *, from_offset: int | None = None) -> int:
        """Return the largest timestamp of a partition, or of its live extents from an offset on; -1: none."""
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

    async def find_largest(
        self, topic: Topic, partition: int, *, log_start_offset: int, budget: ByteBudget
    ) -> TimedOffset | None:
        """Return the first record from `log_start_offset` on with the largest timestamp, or None.

        The largest timestamp that the partition ever had may belong to a record that was removed. In that
        case the live extents are searched. One of them may begin before the log start offset, and its largest
        timestamp may be that of a record before it.
        """
        find = partial(self.find, topic, partition, log_start_offset=log_start_offset, budget=budget)
        latest = partial(self._log.latest_timestamp, topic.topic_id, partition)
        timestamp = await self._pools.lookups.run(latest)
        if timestamp < 0:
            return None
        if (found := await find(timestamp)) is not None:
            return found
        for _ in range(_MAX_STEPS):
            timestamp = await self._pools.lookups.run(partial(latest, from_offset=log_start_offset))
            cut = await self._pools.lookups.run(
                partial(self._extent_across, topic, partition, log_start_offset)
            )
            try:
                first = None if cut is None else await self._largest_in(cut, log_start_offset, budget)
            except ObjectNotFoundError:  # replaced since the lookup
                continue
            if timestamp < 0 or (first is not None and first.timestamp >= timestamp):
                return first
            return await find(timestamp) or first
        raise ReadFailedError(
            f"the largest timestamp of {topic.name}-{partition} was not found in time", remedy="try again"
        )

    def _extent_across(self, topic: Topic, partition: int, offset: int) -> Extent | None:
        """Return the extent that begins before an offset and has records from it on, or None. Blocking."""
        found = self._log.from_offset(topic.topic_id, partition, offset, max_extents=1, max_bytes=_NO_LIMIT)
        return next((each for each in found if each.base_offset < offset and each.record_count > 0), None)

    async def _largest_in(
        self, extent: Extent, log_start_offset: int, budget: ByteBudget
    ) -> TimedOffset | None:
        """Return the first record of `extent` from `log_start_offset` on with the largest timestamp, or None.

        Of an extent with an index, it reads the block of the log start offset, and one of the later blocks if
        that has a larger timestamp.
        """
        index = await self._index(extent)
        wanted = data_range(extent)
        if index is not None:
            begin, length = index.range_for_offset(max(log_start_offset - extent.offset_shift, 0), 1)
            wanted = ByteRange(extent.object_name, extent.position + begin, length)
        with budget.reserving(wanted.length):
            (data,) = await self._reader.read([RangeRequest(wanted, is_hot=False)])
            look = partial(_largest_record, extent, wanted, data, log_start_offset)
            found = await self._pools.rendering.run(look)
            del data, look
        if index is None:
            return found
        later = index.max_timestamp(wanted.position + wanted.length - extent.position)
        if later < 0 or (found is not None and found.timestamp >= later):
            return found
        in_later = await self._search(
            extent, timestamp=later, log_start_offset=log_start_offset, budget=budget
        )
        return in_later or found

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
    for offsets, timestamps in _records(extent, part, data, log_start_offset):
        late = np.flatnonzero(timestamps >= timestamp)
        if late.size:
            first = int(late[0])
            return TimedOffset(int(offsets[first]), int(timestamps[first]))
    return None


def _largest_record(
    extent: Extent, part: ByteRange, data: memoryview, log_start_offset: int
) -> TimedOffset | None:
    largest: TimedOffset | None = None
    for offsets, timestamps in _records(extent, part, data, log_start_offset):
        if timestamps.size:
            first = int(timestamps.argmax())
            timestamp = int(timestamps[first])
            if timestamp > (-1 if largest is None else largest.timestamp):
                largest = TimedOffset(int(offsets[first]), timestamp)
    return largest


def _records(
    extent: Extent, part: ByteRange, data: memoryview, log_start_offset: int
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield the offsets and timestamps of the records from `log_start_offset` on, in offset order."""
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
            remaining = columns.offsets >= log_start_offset
            yield columns.offsets[remaining], columns.timestamps[remaining]
