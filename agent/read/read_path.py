"""The read path: from offsets to batches.

A fetch finds where its partitions begin and end, then asks for the batches: first what is held of the tail
in memory and on this agent's disks, then the extents and the ranges of objects that they name (from the
cache, or with one GET for ranges that lie together in an object). What a local topic has is on the disks
alone. Where fewer than `min_bytes` are there it waits for commits, by any agent, and looks again.

What the catalog said lately is believed (`known_log`) only by a fetch that may wait: it is woken when there
is more. A fetch that may not wait, and any fetch of a compacted topic, asks anew.

Extents may be swapped while a fetch is under way: an object that has vanished meanwhile makes it look them up
again. A fetch may come to stretches of the log without a record; it goes on behind them by itself, and
`FetchResult.next_offset` tells how far it has come.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, Protocol

from agent.cluster.errors import ReadFailedError
from agent.read.fetch_memory import FetchMemory
from agent.read.fetch_plan import (
    Cursor,
    CursorPlan,
    PartitionFetch,
    assign_limits,
    index_range,
    parse_index,
    plan_cursor,
)
from agent.read.fetch_result import is_sufficient, result_of, unknown_partition
from agent.read.memory_reads import MemoryRead
from agent.read.object_reader import RangeRequest
from agent.read.read_ahead import ReadAhead
from catalog.model import PartitionId
from core.errors import InvalidInputError
from object_store.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.read.commit_notifier import CommitNotifier
    from agent.read.fetch_result import FetchResult
    from agent.read.hot_tail import HotTail
    from agent.read.log_lookup import LogLookup
    from agent.read.object_reader import ObjectReader
    from agent.read.range_cache import ByteRange
    from agent.read.timestamp_lookup import TimestampLookup
    from agent.runtime.metrics import AgentMetrics
    from agent.runtime.pools import Pools
    from agent.settings import AgentSettings
    from catalog.model import Extent, PartitionState, Topic
    from core.clock import Clock
    from local_tier.segment.time_index import TimestampOffset
    from object_format.segment_file import SectionIndex

_MAX_ROUNDS = 64
_MAX_VANISHED = 5


class LocalReader(Protocol):
    """Reads from this agent's local_reader: local topics, and the tail cache of object topics."""

    async def find_bounds(self, cursors: Sequence[Cursor], /) -> list[Cursor]:
        """Set the states or errors of the cursors of local topics; return the other cursors."""
        ...

    async def serve(self, cursors: Sequence[Cursor], max_bytes: int, /) -> None:
        """Serve what can be served without the extents of a partition."""
        ...

    async def serve_within_extents(self, cursors: Sequence[Cursor], /) -> None:
        """Serve compacted topics from extents that were not compacted yet."""
        ...

    async def offset_by_time(self, topic: Topic, partition: int, timestamp: int, /) -> TimestampOffset | None:
        """Return the first record of a local topic at or after a timestamp."""
        ...

    async def state(self, topic: Topic, partition: int, /) -> PartitionState:
        """Return the bounds of a partition of a local topic."""
        ...


class ReadPath:
    """The fetches of one agent. Belongs to the event loop."""

    def __init__(
        self,
        *,
        settings: AgentSettings,
        log: LogLookup,
        tail: HotTail,
        reader: ObjectReader,
        commit_notifier: CommitNotifier,
        pools: Pools,
        clock: Clock,
        metrics: AgentMetrics,
        timestamps: TimestampLookup,
        local_reader: LocalReader,
    ) -> None:
        # Held here while a fetch reads; who gets its result holds it on until that is handed out.
        self.budget = FetchMemory(settings.max_fetches_bytes)
        self._timestamps = timestamps
        self._settings = settings
        self._log = log
        self._tail = tail
        self._local_reader = local_reader
        self._reader = reader
        self._commit_notifier = commit_notifier
        self._pools = pools
        self._clock = clock
        self._metrics = metrics
        self.read_ahead = ReadAhead(
            reader,
            read_indexes=self._read_indexes,
            is_hot=self._is_hot,
            settings=settings,
            clock=clock,
            metrics=metrics,
        )

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
        max_bytes = min(max_bytes, self._settings.max_fetch_bytes)
        min_bytes = min(min_bytes, max_bytes)  # as Kafka's brokers do: there cannot be more
        use_cache = max_wait_ms > 0
        if use_cache:
            from_memory = self._read_from_memory(wanted, max_bytes)
            if from_memory is not None and is_sufficient(wanted, from_memory, min_bytes):
                self._count(from_memory)
                return from_memory
        ids = [fetch.partition_id for fetch in wanted]
        with self._commit_notifier.waiter(ids) as waiter:
            while True:
                with self._metrics.fetch_seconds.time():
                    results = await self._fetch_now(wanted, max_bytes, use_cache=use_cache)
                left = deadline - loop.time()
                if left <= 0 or self._commit_notifier.is_closed or is_sufficient(wanted, results, min_bytes):
                    if waiter.woken_at is not None:
                        self._metrics.wake_up_seconds.observe(loop.time() - waiter.woken_at)
                    self._count(results)
                    return results
                # Whoever was not woken looks for what nobody told.
                use_cache = await waiter.wait(min(left, self._settings.poll_interval_ms / 1000))

    async def bounds(self, wanted: Sequence[PartitionFetch]) -> list[FetchResult]:
        """Results without a batch: where the partitions begin and end, or what is wrong."""
        cursors = [Cursor.at(fetch) for fetch in wanted]
        await self._log.find_bounds(cursors, use_cache=True)
        return [result_of(cursor) for cursor in cursors]

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
        if topic.is_local:
            at = await self._local_reader.offset_by_time(topic, partition, timestamp)
            return state.high_watermark if at is None else at.offset
        found = await self._timestamps.find(
            topic, partition, timestamp, log_start_offset=state.log_start_offset, budget=self.budget
        )
        return state.high_watermark if found is None else found.offset

    async def _state(self, topic: Topic, partition: int) -> PartitionState:
        if topic.is_local:
            return await self._local_reader.state(topic, partition)
        state = await self._log.state(PartitionId(topic.topic_id, partition))
        if state is None:
            raise unknown_partition(f"{topic.name}-{partition}")
        return state

    def _read_from_memory(self, wanted: Sequence[PartitionFetch], max_bytes: int) -> list[FetchResult] | None:
        """Return the results of the whole fetch, or None if memory does not have all of them."""
        read = MemoryRead(self._tail, self._log.bounds_cache, self._clock.monotonic(), max_bytes)
        for fetch in wanted:
            if not read.take(fetch.topic, ((fetch.partition, fetch.offset, fetch.max_bytes, -1),)):
                return None
        if not read.is_complete:
            return None
        cursors = [Cursor.at(fetch) for fetch in wanted]
        for cursor, (state, found) in zip(cursors, read.found, strict=True):
            cursor.state = state
            if found is not None:
                cursor.served.take(found)
        return [result_of(cursor) for cursor in cursors]

    async def _fetch_now(
        self, wanted: Sequence[PartitionFetch], max_bytes: int, *, use_cache: bool
    ) -> list[FetchResult]:
        cursors = [Cursor.at(fetch) for fetch in wanted]
        vanished = 0
        for _ in range(_MAX_ROUNDS):
            open_cursors = [cursor for cursor in cursors if not cursor.is_done]
            if not open_cursors:
                break
            elsewhere = await self._local_reader.find_bounds(open_cursors)
            await self._log.find_bounds(elsewhere, use_cache=use_cache)
            if self._serve_from_tail(cursors, max_bytes) <= 0:
                break
            await self._local_reader.serve(cursors, max_bytes)
            await self._log.find_extents([cursor for cursor in elsewhere if not cursor.is_done], max_bytes)
            chosen = assign_limits(cursors, max_bytes)
            if not chosen:
                break
            await self._local_reader.serve_within_extents(chosen)
            try:
                unserved = [cursor for cursor in chosen if not cursor.served.runs]
                await self._read([cursor for cursor in unserved if not self._serve_from_files(cursor)])
            except ObjectNotFoundError as error:
                vanished += 1
                self._log.invalidate_extents(chosen)
                if vanished > _MAX_VANISHED:
                    raise ReadFailedError(
                        f"an object of a live extent is missing: {error.message}",
                        remedy="try again; if it stays so, compare bucket and catalog with siltstone fsck",
                    ) from error
        return [result_of(cursor) for cursor in cursors]

    def _serve_from_tail(self, cursors: Sequence[Cursor], max_bytes: int) -> int:
        """Serve what the tail has; returns how many bytes are left of `max_bytes`."""
        left = max_bytes - sum(cursor.served.size for cursor in cursors)
        for cursor in cursors:
            if left <= 0 and left < max_bytes:
                break
            fetch = cursor.fetch
            if cursor.is_done or fetch.topic.config.compacts:
                continue
            offset = cursor.served.next_offset
            found = self._tail.read(fetch.partition_id, offset, min(fetch.max_bytes, left))
            if found is not None:
                cursor.served.take(found)
                left -= found.size
        return left

    def _serve_from_files(self, cursor: Cursor) -> bool:
        """Serve what the tail has of the files that the cursor's extents lie in; whether there was any."""
        for extent in cursor.needed_extents():
            left = cursor.limit - cursor.served.size
            if cursor.served.runs and left <= 0:
                break
            found = self._tail.read(
                cursor.fetch.partition_id, cursor.served.next_offset, left, file_id=extent.file_id
            )
            if found is None or (cursor.served.runs and found.size > left):
                break
            cursor.served.take(found)
            if cursor.served.next_offset <= extent.last_offset:
                break
        return bool(cursor.served.runs)

    async def _read(self, cursors: Sequence[Cursor]) -> None:
        """One round: read what the cursors need, and serve it to them."""
        if not cursors:
            return
        indexes = await self._read_indexes(
            [extent for cursor in cursors for extent in cursor.needed_extents()]
        )
        plans = [plan_cursor(cursor, indexes) for cursor in cursors]
        parts = [part for plan in plans for _, part in plan.steps if part is not None]
        wanted = [RangeRequest(part.range, self._is_hot(part.extent)) for part in parts]
        with self.budget.reserving(sum(part.range.length for part in parts)):
            self.read_ahead.before_read(plans, indexes)
            data = await self._reader.read(wanted)
            await self._pools.rendering.run(partial(_serve, plans, data))
        self.read_ahead.after_read(cursors, indexes)

    async def _read_indexes(
        self, extents: Sequence[Extent], limiter: asyncio.Semaphore | None = None
    ) -> dict[ByteRange, SectionIndex]:
        large = [
            extent
            for extent in extents
            if extent.index_length and extent.length >= self._settings.index_threshold_bytes
        ]
        if not large:
            return {}
        blocks = await self._reader.read(
            [RangeRequest(index_range(extent), self._is_hot(extent)) for extent in large], limiter=limiter
        )
        return {
            index_range(extent): parse_index(extent, block)
            for extent, block in zip(large, blocks, strict=True)
        }

    def _is_hot(self, extent: Extent) -> bool:
        return self._clock.now_ms() - extent.committed_ms < self._settings.hot_window_ms

    def _count(self, results: Sequence[FetchResult]) -> None:
        outcomes = Counter(
            "refused" if result.error else "records" if result.size else "empty" for result in results
        )
        for outcome, count in outcomes.items():
            self._metrics.fetches.labels(outcome).inc(count)
        self._metrics.fetched_bytes.inc(sum(result.size for result in results))


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
            cursor.read_factor *= 4
