"""Reads of extents from objects, for the fetches that memory and disks cannot serve.

A round reads the ranges that the first cursors need, as many as fit in memory, and extracts their batches in
the rendering pool. Batches become blocks, unless they belong to the log only while their extents do
(`Cursor.needs_extents`). Large extents are read in ranges of blocks, by their indexes. `ReadAhead` reads the
next window of sequential readers.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from agent.cluster.errors import ReadFailedError
from agent.read.batch_slicing import ExtentPart, verified_blocks
from agent.read.fetch_plan import Cursor, CursorPlan, index_range, parse_index, plan_cursor
from agent.read.object_reader import RangeRequest
from agent.read.read_ahead import ReadAhead
from agent.runtime.errors import BusyError
from core.errors import CorruptDataError, SiltstoneError
from object_store.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from agent.read.caches.block_cache import BlockCache, VerifiedBlock
    from agent.read.caches.range_cache import ByteRange
    from agent.read.fetch_memory import FetchMemory
    from agent.read.object_reader import ObjectReader
    from agent.runtime.metrics import AgentMetrics
    from agent.runtime.pools import Pools
    from agent.settings import AgentSettings
    from catalog.model import Extent
    from core.clock import Clock
    from object_format.segment_file import SectionIndex


class ExtentReader:
    """Serves cursors from the objects of their extents. Belongs to the event loop."""

    def __init__(
        self,
        reader: ObjectReader,
        *,
        blocks: BlockCache,
        memory: FetchMemory,
        serve_from_blocks: Callable[[Cursor], bool],
        pools: Pools,
        settings: AgentSettings,
        clock: Clock,
        metrics: AgentMetrics,
    ) -> None:
        """`serve_from_blocks` serves a cursor from blocks in memory, and returns False if there are none."""
        self._reader = reader
        self._blocks = blocks
        self._memory = memory
        self._serve_from_blocks = serve_from_blocks
        self._pools = pools
        self._settings = settings
        self._clock = clock
        self._metrics = metrics
        # Fetches of the same parts take turns: the first one extracts them, and the others find blocks.
        self._extraction = asyncio.Semaphore(settings.rendering_threads)
        self.read_ahead = ReadAhead(
            reader,
            read_indexes=self._read_indexes,
            is_hot=self._is_hot,
            settings=settings,
            clock=clock,
            metrics=metrics,
        )

    async def read(self, cursors: Sequence[Cursor], generation: int, *, is_last: bool) -> None:
        """Read one round: the ranges that the first cursors need, as many as fit in memory.

        What cannot be read stops its cursors. `generation` is that of the cached blocks before the extents of
        the cursors were looked up. Raises `BusyError` if not even one fits or no thread is free,
        and `ObjectNotFoundError` unless it `is_last`.
        """
        indexes = await self._read_indexes_of(cursors, is_last=is_last)
        readable = [cursor for cursor in cursors if not cursor.is_done]
        plans = self._within_memory([plan_cursor(cursor, indexes) for cursor in readable])
        if not plans:
            return
        parts = [part for plan in plans for _, part in plan.steps if part is not None]
        wanted = [RangeRequest(part.range, self._is_hot(part.extent)) for part in parts]
        with self._memory.reserving(sum(part.range.length for part in parts)):
            self.read_ahead.before_read(plans, indexes)
            data = _own_errors(await self._reader.read_each(wanted), is_last=is_last)
            async with self._extraction:
                await self._extract(plans, data, generation)
        self.read_ahead.after_read([plan.cursor for plan in plans], indexes)

    async def _extract(
        self, plans: Sequence[CursorPlan], data: Sequence[memoryview | SiltstoneError], generation: int
    ) -> None:
        """Serve the cursors from `data`, or from blocks that another fetch extracted meanwhile."""
        parts = iter(data)
        works = [
            (plan, list(islice(parts, sum(part is not None for _, part in plan.steps)))) for plan in plans
        ]
        works = [work for work in works if not self._serve_from_blocks(work[0].cursor)]
        if not works:
            return
        extracted = await self._pools.rendering.run(partial(_serve, works))
        for (plan, _), blocks in zip(works, extracted, strict=True):
            if not blocks:
                continue
            if generation == self._blocks.generation:
                for block in blocks:
                    self._blocks.put(plan.cursor.fetch.partition_id, block)
            self._reader.extracted(part.range for _, part in plan.steps if part is not None)
            self._metrics.extracted_bytes.inc(sum(len(block.data) for block in blocks))

    def _within_memory(self, plans: Sequence[CursorPlan]) -> Sequence[CursorPlan]:
        """Return the first plans, at least one, that leave half of the free memory to other fetches."""
        left = self._memory.free // 2
        for number, plan in enumerate(plans):
            left -= sum(part.range.length for _, part in plan.steps if part is not None)
            if left < 0:
                return plans[: max(number, 1)]
        return plans

    async def _read_indexes_of(
        self, cursors: Sequence[Cursor], *, is_last: bool
    ) -> dict[ByteRange, SectionIndex]:
        """Return the indexes of the large extents that the cursors need; stop those whose index is bad."""
        large = [
            (cursor, extent)
            for cursor in cursors
            for extent in cursor.needed_extents()
            if self._is_read_by_index(extent)
        ]
        if not large:
            return {}
        requests = [RangeRequest(index_range(extent), self._is_hot(extent)) for _, extent in large]
        blocks = _own_errors(await self._reader.read_each(requests), is_last=is_last)
        indexes: dict[ByteRange, SectionIndex] = {}
        for (cursor, extent), block in zip(large, blocks, strict=True):
            if isinstance(block, SiltstoneError):
                cursor.stop_before(extent, block)
                continue
            try:
                indexes[index_range(extent)] = parse_index(extent, block)
            except SiltstoneError as error:
                cursor.stop_before(extent, error)
        return indexes

    async def _read_indexes(
        self, extents: Sequence[Extent], limiter: asyncio.Semaphore
    ) -> dict[ByteRange, SectionIndex]:
        large = [extent for extent in extents if self._is_read_by_index(extent)]
        blocks = await self._reader.read(
            [RangeRequest(index_range(extent), self._is_hot(extent)) for extent in large], limiter=limiter
        )
        return {
            index_range(extent): parse_index(extent, block)
            for extent, block in zip(large, blocks, strict=True)
        }

    def _is_read_by_index(self, extent: Extent) -> bool:
        return bool(extent.index_length) and extent.length >= self._settings.index_threshold_bytes

    def _is_hot(self, extent: Extent) -> bool:
        return self._clock.now_ms() - extent.committed_ms < self._settings.hot_window_ms


def _own_errors(
    found: Sequence[memoryview | SiltstoneError], *, is_last: bool
) -> list[memoryview | SiltstoneError]:
    """Return bytes and the errors of their partitions; raise the errors that concern the whole fetch."""
    for each in found:
        if isinstance(each, BusyError) or (isinstance(each, ObjectNotFoundError) and not is_last):
            raise each
    return [_missing(each) if isinstance(each, ObjectNotFoundError) else each for each in found]


def _missing(error: ObjectNotFoundError) -> ReadFailedError:
    return ReadFailedError(
        f"an object of a live extent is missing: {error.message}",
        remedy="retry; if the error persists, compare bucket and catalog with siltstone fsck",
    )


def _serve(
    works: Sequence[tuple[CursorPlan, Sequence[memoryview | SiltstoneError]]],
) -> list[list[VerifiedBlock]]:
    """Extract the batches of each plan from the bytes of its parts, or their errors; return blocks to cache.

    Runs in the rendering pool.
    """
    extracted = []
    for plan, data in works:
        blocks: list[VerifiedBlock] = []
        try:
            _serve_cursor(plan, data, blocks)
        except SiltstoneError as error:
            plan.cursor.stop(error)
        extracted.append(blocks)
    return extracted


def _serve_cursor(
    plan: CursorPlan, data: Sequence[memoryview | SiltstoneError], extracted: list[VerifiedBlock]
) -> None:
    """Serve until the limit or the first part that cannot be read, whose error is raised.

    Whole parts are extracted if their blocks can be cached.
    """
    cursor, parts = plan.cursor, iter(data)
    before = cursor.served.next_offset
    for extent, part in plan.steps:
        if cursor.served.is_cut:
            break
        if part is None:
            cursor.served.skip(extent, max_bytes=cursor.limit)
            continue
        found = next(parts)
        if isinstance(found, SiltstoneError):
            raise found
        _serve_part(cursor, part, found, extracted)
    if cursor.served.next_offset == before:
        cursor.read_factor *= 4


def _serve_part(cursor: Cursor, part: ExtentPart, data: memoryview, extracted: list[VerifiedBlock]) -> None:
    served, limit = cursor.served, cursor.limit
    if cursor.needs_extents:
        served.serve(part, verified_blocks(part, data, first_offset=part.first_offset), max_bytes=limit)
        return
    blocks, damage = _all_blocks(part, data)
    extracted += blocks
    cursor.extracted = max((cursor.extracted, *(block.next_offset for block in blocks)))
    if damage is None:
        served.serve(part, blocks, max_bytes=limit)
        return
    served.serve(replace(part, reaches_end=False), blocks, max_bytes=limit)
    if not served.is_cut:
        raise damage


def _all_blocks(part: ExtentPart, data: memoryview) -> tuple[list[VerifiedBlock], CorruptDataError | None]:
    """Return the blocks before the first damage, and the damage."""
    blocks: list[VerifiedBlock] = []
    try:
        blocks.extend(verified_blocks(part, data, first_offset=part.extent.base_offset))
    except CorruptDataError as error:
        return blocks, error
    return blocks, None
