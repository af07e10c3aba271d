"""Read ahead of sequential readers of the object store.

If a fetch continues where the previous one of its partition ended, a window is read ahead: the ranges that a
fetch of the same size would read next and, in a large section, some more of the section by the same GET. The
window goes to the range cache. A fetch that arrives earlier joins the read in progress. A new window is due
when the next ranges are not in the cache.

Each further fetch of the same reader doubles how far is read ahead, up to `read_ahead_bytes`, as in the
read-ahead of Linux (mm/readahead.c). A slow store then serves several ranges at a time, and a reader that
stops costs no more needless bytes than it has read.

The position of the next fetch is known before the current one is served, so the window is read concurrently
with the ranges of the current fetch. It starts after whole extents. In a section that is read in ranges of
blocks, it starts with the last block of the current range, because the next fetch reads that block again if a
hole follows.

Limits:

- All windows together have a size limit. If a new window does not fit, it is not read, unless another
  partition was not read for a while: its reader is then considered gone, and its window belongs to the cache.
- The requests for windows are limited, so that a window of many small extents leaves threads to fetches.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import structlog

from agent.read.fetch_plan import Cursor, index_range, plan_cursor
from agent.read.object_reader import RangeRequest
from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from agent.read.batch_slicing import ExtentPart
    from agent.read.caches.range_cache import ByteRange
    from agent.read.fetch_plan import CursorPlan
    from agent.read.object_reader import ObjectReader
    from agent.runtime.metrics import AgentMetrics
    from agent.settings import AgentSettings
    from catalog.model import Extent, PartitionId
    from core.clock import Clock
    from object_format.segment_file import SectionIndex

_log = structlog.get_logger(__name__)
_MAX_READERS = 20_000
_MAX_WINDOWS = 1_000
# The window that a fetch waits for, and the next one.
_MAX_PENDING_WINDOWS = 2
_IDLE_SECONDS = 10.0


@dataclass(slots=True, eq=False)
class _Window:
    """A window of a partition, and the time of its reader's last fetch.

    Ranges of large sections may be longer than the next fetch needs. The others are exactly those of a fetch.
    """

    used: float
    size: int = 0
    ranges: frozenset[ByteRange] = frozenset()
    long_ranges: Sequence[ByteRange] = ()
    task: asyncio.Task[None] | None = None

    @property
    def is_done(self) -> bool:
        return self.task is not None and self.task.done()

    def covers(self, wanted: ByteRange) -> bool:
        """Return True if the window reads that range, now or later."""
        return wanted in self.ranges or any(each.covers(wanted) for each in self.long_ranges)


class ReadAhead:
    """Reads ahead of the sequential readers of one agent. Belongs to the event loop."""

    def __init__(
        self,
        reader: ObjectReader,
        *,
        read_indexes: Callable[
            [Sequence[Extent], asyncio.Semaphore], Awaitable[Mapping[ByteRange, SectionIndex]]
        ],
        is_hot: Callable[[Extent], bool],
        settings: AgentSettings,
        clock: Clock,
        metrics: AgentMetrics,
    ) -> None:
        self._reader = reader
        self._read_indexes = read_indexes
        self._is_hot = is_hot
        self._size = settings.read_ahead_bytes
        self._max_bytes = min(settings.max_read_ahead_bytes, settings.cache_bytes // 2)
        # Limits of windows and of their requests, so that threads are left to fetches.
        max_concurrent = max(settings.cold_read_threads // 2, 1)
        self._window_limiter = asyncio.Semaphore(max_concurrent)
        self._request_limiter = asyncio.Semaphore(max_concurrent)
        self._clock = clock
        self._metrics = metrics
        # The next fetches of sequential readers, by partition and offset, and how many bytes to read ahead.
        self._expected: OrderedDict[tuple[PartitionId, int], int] = OrderedDict()
        # Least recently read partitions first; the windows of one in the order in which they began.
        self._windows: OrderedDict[PartitionId, list[_Window]] = OrderedDict()

    def before_read(self, plans: Sequence[CursorPlan], indexes: Mapping[ByteRange, SectionIndex]) -> None:
        """Start the windows whose positions are known from the plans of the current reads."""
        for plan in plans if self._size else ():
            if plan.steps and self._reads_on(plan.cursor):
                self._begin(plan.cursor, _offset_behind(*plan.steps[-1], indexes), indexes)

    def after_read(self, cursors: Sequence[Cursor], indexes: Mapping[ByteRange, SectionIndex]) -> None:
        """Start the windows after these reads, and note where their readers continue."""
        for cursor in cursors if self._size else ():
            partition, offset = cursor.fetch.partition_id, cursor.served.next_offset
            if offset == cursor.fetch.offset:
                continue
            reach = 0
            if self._reads_on(cursor):
                self._begin(cursor, offset, indexes)
                reach = 2 * max(self._expected.pop((partition, cursor.fetch.offset)), cursor.limit)
            # The next fetch that needs objects continues behind what is in memory now, unless it is evicted.
            for position in {offset, max(offset, cursor.extracted)}:
                self._expected[partition, position] = min(reach, self._size)
            while len(self._expected) > _MAX_READERS:
                self._expected.popitem(last=False)

    async def idle(self) -> None:
        """Wait until no window is being read."""
        await asyncio.gather(*self._tasks(), return_exceptions=True)

    async def stop(self) -> None:
        """Cancel the windows that are being read."""
        self._size = 0
        for task in self._tasks():
            task.cancel()
        await self.idle()

    def _tasks(self) -> list[asyncio.Task[None]]:
        return [each.task for windows in self._windows.values() for each in windows if each.task is not None]

    def _reads_on(self, cursor: Cursor) -> bool:
        return (cursor.fetch.partition_id, cursor.fetch.offset) in self._expected

    def _begin(self, cursor: Cursor, offset: int, indexes: Mapping[ByteRange, SectionIndex]) -> None:
        """Read what the next fetches will need from `offset` on, unless it is cached."""
        partition, now = cursor.fetch.partition_id, self._clock.monotonic()
        windows = self._windows.setdefault(partition, [])
        self._windows.move_to_end(partition)
        for window in windows:
            window.used = now
        self._drop_idle(now)
        ahead = Cursor.at(replace(cursor.fetch, offset=offset))
        ahead.extents = [each for each in cursor.extents if each.last_offset >= offset]
        ahead.limit = cursor.limit
        # Several readers share the memory.
        share = self._max_bytes // (_MAX_PENDING_WINDOWS * max(len(self._windows), 1))
        reach = min(self._expected[partition, cursor.fetch.offset], share)
        under_way = [window for window in windows if not window.is_done]
        if len(under_way) < _MAX_PENDING_WINDOWS and self._missing(_parts(ahead, reach, indexes), under_way):
            # Windows that are complete belong to the cache.
            window = _Window(now)
            self._windows[partition] = [*under_way, window]
            window.task = asyncio.get_running_loop().create_task(
                self._read_window(window, ahead, reach), name="read ahead"
            )

    async def _read_window(self, window: _Window, ahead: Cursor, reach: int) -> None:
        try:
            async with self._window_limiter:
                outcome = await self._read(window, ahead, reach)
        except SiltstoneError as error:
            # A fetch of the same range reports the error, if it persists.
            outcome = "failed"
            _log.debug(
                "a window could not be read ahead", partition=ahead.fetch.partition_name, reason=str(error)
            )
        if outcome:
            self._metrics.read_ahead.labels(outcome).inc()

    async def _read(self, window: _Window, ahead: Cursor, reach: int) -> str:
        """Read what is missing of the window; return the outcome, or "" if nothing was missing."""
        extents = replace(ahead, limit=max(ahead.limit, reach)).needed_extents()
        indexes = await self._read_indexes(extents, self._request_limiter)
        parts = _parts(ahead, reach, indexes)
        others = [each for each in self._windows.get(ahead.fetch.partition_id, ()) if not each.is_done]
        if not self._missing(parts, others):
            return ""
        if not parts[-1].reaches_end:
            longer = replace(ahead, limit=max(ahead.limit, self._size))
            parts = _planned(longer, indexes)[: len(parts)]
        missing = self._missing(parts, others)
        size = sum(part.range.length for part in missing)
        taken = sum(each.size for windows in self._windows.values() for each in windows)
        if taken + size > self._max_bytes:
            return "no memory"
        window.size = size
        window.ranges = frozenset(part.range for part in missing)
        window.long_ranges = [
            part.range for part in parts if part.extent.index_length and index_range(part.extent) in indexes
        ]
        wanted = [RangeRequest(part.range, self._is_hot(part.extent)) for part in missing]
        await self._reader.read(wanted, limiter=self._request_limiter)
        self._metrics.read_ahead_bytes.inc(size)
        return "read"

    def _missing(self, parts: Sequence[ExtentPart], windows: Sequence[_Window]) -> list[ExtentPart]:
        """Return the parts that the next fetch would read from the store after these windows are read."""
        return [
            part
            for part in parts
            if not self._reader.has(part.range) and not any(each.covers(part.range) for each in windows)
        ]

    def _drop_idle(self, now: float) -> None:
        """Remove partitions that were not read for a while, and those beyond the limit."""
        while self._windows:
            partition, windows = next(iter(self._windows.items()))
            is_idle = all(window.used < now - _IDLE_SECONDS for window in windows)
            if not all(window.is_done for window in windows) or not (
                is_idle or len(self._windows) > _MAX_WINDOWS
            ):
                return
            del self._windows[partition]


def _offset_behind(extent: Extent, part: ExtentPart | None, indexes: Mapping[ByteRange, SectionIndex]) -> int:
    """Return a lower bound of the offset of the next fetch, if the plan ends with this step."""
    if part is None or part.reaches_end:
        return extent.last_offset + 1
    index = indexes[index_range(extent)]
    position = part.range.position - extent.position
    return index.last_base_offset(position, part.range.length) + extent.offset_shift


def _parts(ahead: Cursor, reach: int, indexes: Mapping[ByteRange, SectionIndex]) -> list[ExtentPart]:
    """Return what the next fetch reads and, if that ends with a section, whole sections within `reach`."""
    parts = _planned(ahead, indexes)
    if reach <= ahead.limit or not parts or not parts[-1].reaches_end:
        return parts
    return [part for part in _planned(replace(ahead, limit=reach), indexes) if part.reaches_end]


def _planned(ahead: Cursor, indexes: Mapping[ByteRange, SectionIndex]) -> list[ExtentPart]:
    return [part for _, part in plan_cursor(ahead, indexes).steps if part is not None]
