"""The read path: from offsets to batches.

A fetch asks the catalog for the bounds and extents of its partitions, reads the ranges that hold them (from
the cache, or with one GET for ranges that lie together in an object), and cuts out the batches asked for.
Where fewer than `min_bytes` are there it waits for commits, by any agent, and looks again.

Extents may be swapped while a fetch is under way: an object that has vanished meanwhile makes it look them up
again. A fetch may come to stretches of the log without a record; it goes on behind them by itself, and
`FetchResult.next_offset` tells how far it has come.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

from agent.byte_budget import ByteBudget
from agent.errors import OffsetOutOfRangeError, ReadFailedError, UnknownPartitionError
from agent.fetch_plan import (
    Cursor,
    CursorPlan,
    PartitionFetch,
    index_range,
    parse_index,
    plan_cursor,
    share_limits,
)
from agent.object_reader import WantedRange
from bedrock.errors import InvalidInputError
from catalog.model import PartitionId
from object_store.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from agent.commit_watch import CommitWatch
    from agent.metrics import AgentMetrics
    from agent.object_reader import ObjectReader
    from agent.pools import Pools
    from agent.range_cache import ByteRange
    from agent.settings import AgentSettings
    from agent.timestamp_lookup import TimestampLookup
    from bedrock.clock import Clock
    from bedrock.errors import SiltstoneError
    from catalog.model import Extent, PartitionState, Topic
    from object_format.segment_file import SectionIndex

_MOST_ROUNDS = 64
_MOST_VANISHED = 5


class Bounds(Protocol):
    """Where partitions begin and end."""

    def states(self, partitions: list[PartitionId], /) -> Sequence[PartitionState]:
        """The state of each of `partitions` that exists."""
        ...


class Extents(Protocol):
    """Where offsets lie."""

    def extents(
        self, topic_id: UUID, partition: int, offset: int, *, max_extents: int, max_bytes: int
    ) -> Sequence[Extent]:
        """Live extents in offset order; the first one holds `offset`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchResult:
    """What a fetch has for one partition.

    `batches` are runs of whole batches with their real offsets; the first may begin below the offset that
    was asked for, as a batch is never cut. `next_offset` is where to go on. With an `error` there is nothing
    else.
    """

    partition: int
    batches: Sequence[bytearray] = ()
    size: int = 0
    next_offset: int = -1
    log_start_offset: int = -1
    last_stable_offset: int = -1
    high_watermark: int = -1
    error: SiltstoneError | None = None

    @property
    def is_at_end(self) -> bool:
        """Whether nothing more was to be had when it was made."""
        return self.next_offset >= self.high_watermark


class ReadPath:
    """The fetches of one agent. Belongs to the event loop."""

    def __init__(
        self,
        *,
        settings: AgentSettings,
        bounds: Bounds,
        extents: Extents,
        reader: ObjectReader,
        watch: CommitWatch,
        pools: Pools,
        clock: Clock,
        metrics: AgentMetrics,
        timestamps: TimestampLookup,
    ) -> None:
        # Held here while a fetch reads; who gets its result holds it on until that is handed out.
        self.budget = ByteBudget("the memory for fetches", settings.max_fetches_bytes)
        self._timestamps = timestamps
        self._settings = settings
        self._bounds = bounds
        self._extents = extents
        self._reader = reader
        self._watch = watch
        self._pools = pools
        self._clock = clock
        self._metrics = metrics

    async def fetch_one(
        self, wanted: PartitionFetch, *, min_bytes: int = 1, max_wait_ms: int = 0
    ) -> FetchResult:
        """As `fetch`, for one partition; raises what is wrong with it."""
        (result,) = await self.fetch(
            [wanted], max_bytes=wanted.max_bytes, min_bytes=min_bytes, max_wait_ms=max_wait_ms
        )
        if result.error is not None:
            raise result.error
        return result

    async def fetch(
        self, wanted: Sequence[PartitionFetch], *, max_bytes: int, min_bytes: int = 1, max_wait_ms: int = 0
    ) -> list[FetchResult]:
        """What there is of `wanted`, in its order, once it is at least `min_bytes` or the time is up.

        Does not wait when any partition has an error, or has more than was fetched. Raises `RetryableError`
        when catalog or store do not answer, `CorruptDataError` when stored bytes are not what was written.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max_wait_ms, self._settings.max_wait_ms) / 1000
        ids = [PartitionId(fetch.topic.topic_id, fetch.partition) for fetch in wanted]
        with self._watch.waiting(ids) as waiter:
            while True:
                with self._metrics.fetch_seconds.time():
                    results = await self._fetch_now(wanted, min(max_bytes, self._settings.max_fetch_bytes))
                left = deadline - loop.time()
                if left <= 0 or self._watch.is_closed or _is_enough(wanted, results, min_bytes):
                    self._count(results)
                    return results
                await waiter.wait(min(left, self._settings.poll_interval_ms / 1000))

    async def start_offset(
        self, topic: Topic, partition: int, *, offset: int | None, timestamp: int | None
    ) -> int:
        """Where a read begins: at `offset`, by `timestamp`, or else at the log start offset.

        Without a record at or after `timestamp` it is the high watermark.
        """
        if offset is not None and timestamp is not None:
            raise InvalidInputError(
                "both offset and timestamp are given", remedy="say one of them, or none for the log's start"
            )
        if offset is not None:
            return offset
        state = await self._state(topic, partition)
        if timestamp is None:
            return state.log_start_offset
        found = await self._timestamps.find(
            topic, partition, timestamp, log_start_offset=state.log_start_offset, budget=self.budget
        )
        return state.high_watermark if found is None else found.offset

    async def _state(self, topic: Topic, partition: int) -> PartitionState:
        ids = [PartitionId(topic.topic_id, partition)]
        states = await self._pools.catalog.run(partial(self._bounds.states, ids))
        if not states:
            raise unknown_partition(f"{topic.name}-{partition}")
        return states[0]

    async def _fetch_now(self, wanted: Sequence[PartitionFetch], max_bytes: int) -> list[FetchResult]:
        cursors = [Cursor.at(fetch) for fetch in wanted]
        vanished = 0
        for _ in range(_MOST_ROUNDS):
            open_cursors = [cursor for cursor in cursors if not cursor.is_done]
            if not open_cursors:
                break
            await self._pools.catalog.run(partial(self._look_up, open_cursors, max_bytes))
            chosen = share_limits(cursors, max_bytes)
            if not chosen:
                break
            try:
                await self._read(chosen)
            except ObjectNotFoundError as error:
                vanished += 1
                if vanished > _MOST_VANISHED:
                    raise ReadFailedError(
                        f"an object of a live extent is missing: {error.message}",
                        remedy="try again; if it stays so, compare bucket and catalog with siltstone fsck",
                    ) from error
        return [_result(cursor) for cursor in cursors]

    def _look_up(self, cursors: Sequence[Cursor], max_bytes: int) -> None:
        """Bring bounds and extents up to date; blocking."""
        ids = [PartitionId(cursor.fetch.topic.topic_id, cursor.fetch.partition) for cursor in cursors]
        states = {PartitionId(state.topic_id, state.partition): state for state in self._bounds.states(ids)}
        for cursor, partition in zip(cursors, ids, strict=True):
            cursor.state = states.get(partition)
            cursor.error = _fault(cursor)
            cursor.extents = ()
            if not cursor.is_done:
                cursor.extents = self._extents.extents(
                    partition.topic_id,
                    partition.partition,
                    cursor.served.next_offset,
                    max_extents=self._settings.max_fetch_extents,
                    max_bytes=min(cursor.fetch.max_bytes, max_bytes),
                )

    async def _read(self, cursors: Sequence[Cursor]) -> None:
        """One round: read what the cursors need, and serve it to them."""
        indexes = await self._read_indexes(
            [extent for cursor in cursors for extent in cursor.needed_extents()]
        )
        plans = [plan_cursor(cursor, indexes) for cursor in cursors]
        parts = [part for plan in plans for _, part in plan.steps if part is not None]
        wanted = [WantedRange(part.range, self._is_hot(part.extent)) for part in parts]
        with self.budget.holding(sum(part.range.length for part in parts)):
            data = await self._reader.read(wanted)
            await self._pools.rendering.run(partial(_serve, plans, data))

    async def _read_indexes(self, extents: Sequence[Extent]) -> dict[ByteRange, SectionIndex]:
        large = [
            extent
            for extent in extents
            if extent.index_length and extent.length >= self._settings.index_threshold_bytes
        ]
        if not large:
            return {}
        blocks = await self._reader.read(
            [WantedRange(index_range(extent), self._is_hot(extent)) for extent in large]
        )
        return {
            index_range(extent): parse_index(extent, block)
            for extent, block in zip(large, blocks, strict=True)
        }

    def _is_hot(self, extent: Extent) -> bool:
        return self._clock.now_ms() - extent.committed_ms < self._settings.hot_window_ms

    def _count(self, results: Sequence[FetchResult]) -> None:
        for result in results:
            outcome = "refused" if result.error else "records" if result.size else "empty"
            self._metrics.fetches.labels(outcome).inc()
            self._metrics.fetched_bytes.inc(result.size)


def unknown_partition(place: str) -> UnknownPartitionError:
    """The error for a partition that the catalog does not have."""
    return UnknownPartitionError(
        f"partition {place} does not exist", remedy="see which partitions the topic has"
    )


def _fault(cursor: Cursor) -> SiltstoneError | None:
    """What keeps the cursor from being served at all."""
    fetch, state = cursor.fetch, cursor.state
    if state is None:
        return unknown_partition(fetch.place)
    if state.log_start_offset <= cursor.served.next_offset <= state.high_watermark:
        return None
    return OffsetOutOfRangeError(
        fetch.place,
        cursor.served.next_offset,
        log_start_offset=state.log_start_offset,
        high_watermark=state.high_watermark,
    )


def _serve(plans: Sequence[CursorPlan], data: Sequence[memoryview]) -> None:
    """Cut out what the cursors asked for; `data` is their parts', in order. For the rendering pool."""
    blocks = iter(data)
    for plan in plans:
        cursor = plan.cursor
        before = cursor.served.next_offset
        for extent, part in plan.steps:
            block = next(blocks) if part is not None else None
            if cursor.served.is_cut:
                continue
            if part is None or block is None:
                cursor.served.skip(extent)
            else:
                cursor.served.serve(part, block, max_bytes=cursor.limit)
        if cursor.served.next_offset == before:
            cursor.stretch *= 4


def _result(cursor: Cursor) -> FetchResult:
    state = cursor.state
    if cursor.error is not None or state is None:
        return FetchResult(partition=cursor.fetch.partition, error=cursor.error)
    return FetchResult(
        partition=cursor.fetch.partition,
        batches=cursor.served.runs,
        size=cursor.served.size,
        next_offset=cursor.served.next_offset,
        log_start_offset=state.log_start_offset,
        last_stable_offset=state.last_stable_offset,
        high_watermark=state.high_watermark,
    )


def _is_enough(wanted: Sequence[PartitionFetch], results: Sequence[FetchResult], min_bytes: int) -> bool:
    if sum(result.size for result in results) >= min_bytes:
        return True
    return any(
        result.error is not None or (result.next_offset > fetch.offset and not result.is_at_end)
        for fetch, result in zip(wanted, results, strict=True)
    )
