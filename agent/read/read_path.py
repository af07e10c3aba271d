"""The read path: from offsets to batches.

A fetch finds the bounds of its partitions and then the batches. It looks for them in this order:

1. the tail in memory, cached blocks of older batches, and the tail cache on this agent's disks,
2. the extents and the object ranges that they refer to: from the cache, or by one GET for adjacent ranges.

`ExtentReader` reads objects. Batches that it reads become blocks: they are verified, copied and given their
offsets once for all readers.

One query looks up the extents of all partitions. The partitions share the limit of the response in their
order before that, so the query returns about what the response can hold.

Local topics are read from the disks only. If there are fewer than `min_bytes`, the fetch waits for commits by
any agent and looks again.

Only a fetch that may wait uses cached metadata (`caches.catalog_cache`), because it is woken when there is
more. A fetch that may not wait, and any fetch of a compacted topic, queries the catalog.

Compaction may replace extents during a fetch. If an object is gone, the fetch looks up the extents again. A
fetch also skips holes: parts of the log without records. `FetchResult.next_offset` is the position that it
has reached.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

from agent.read.extent_reader import ExtentReader
from agent.read.fetch_memory import FetchMemory
from agent.read.fetch_plan import Cursor, PartitionFetch, assign_limits, with_room
from agent.read.fetch_result import is_sufficient, result_of, unknown_partition, within_limits
from agent.read.memory_reads import MemoryRead
from catalog.model import PartitionId
from core.errors import InvalidInputError
from object_store.errors import ObjectNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from agent.read.caches.block_cache import BlockCache
    from agent.read.commit_notifier import CommitNotifier
    from agent.read.fetch_memory import HeldRecords
    from agent.read.fetch_result import FetchResult
    from agent.read.hot_tail import HotTail, TailRead
    from agent.read.log_lookup import LogLookup
    from agent.read.object_reader import ObjectReader
    from agent.read.read_ahead import ReadAhead
    from agent.read.timestamp_lookup import TimestampLookup
    from agent.runtime.metrics import AgentMetrics
    from agent.runtime.pools import Pools
    from agent.settings import AgentSettings
    from catalog.model import AbortedTransaction, Extent, PartitionState, Topic
    from core.clock import Clock
    from local_tier.segment.time_index import TimestampOffset

_MAX_ROUNDS = 64
# Of one fetch, for extents.
_MAX_QUERIES = 3
# How long a fetch waits for a disk that hangs. One without other partitions waits for nothing else.
_MAX_DISK_SECONDS = 2.0
# More than one if objects of looked-up extents are gone.
_MAX_ATTEMPTS = 6


class LocalReader(Protocol):
    """Reads from this agent's disks: local topics, and the tail cache of object topics."""

    async def find_bounds(self, cursors: Sequence[Cursor], /) -> list[Cursor]:
        """Set the states or errors of the cursors of local topics, and return the other cursors."""
        ...

    async def serve(
        self, cursors: Sequence[Cursor], max_bytes: int, held: HeldRecords, disk_deadline: float, /
    ) -> None:
        """Serve cursors that need no extents, as far as their records fit in memory.

        Wait for disks that hang until about `disk_deadline`, in the loop's time. They serve no records.
        """
        ...

    async def serve_within_extents(
        self, cursors: Sequence[Cursor], held: HeldRecords, disk_deadline: float, /
    ) -> None:
        """Serve compacted topics from extents that are not compacted yet. Wait as `serve` does."""
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
        blocks: BlockCache,
        reader: ObjectReader,
        commit_notifier: CommitNotifier,
        pools: Pools,
        clock: Clock,
        metrics: AgentMetrics,
        timestamps: TimestampLookup,
        local_reader: LocalReader,
        find_aborted: Callable[
            [Mapping[PartitionId, tuple[int, int]], Sequence[Extent], Sequence[int]],
            Mapping[PartitionId, Sequence[AbortedTransaction]],
        ],
    ) -> None:
        """`find_aborted` returns the aborted transactions in ranges of offsets; it blocks.

        It leaves out a partition if one of the given extents is gone, or the given epoch has ended.
        """
        self._find_aborted = find_aborted
        # Reserved here while a fetch reads, and by the caller until the result is sent.
        self.budget = FetchMemory(settings.max_fetches_bytes)
        self._timestamps = timestamps
        self._settings = settings
        self._log = log
        self._tail = tail
        self._blocks = blocks
        self._local_reader = local_reader
        self._commit_notifier = commit_notifier
        self._pools = pools
        self._clock = clock
        self._metrics = metrics
        self._extents = ExtentReader(
            reader,
            blocks=blocks,
            memory=self.budget,
            serve_from_blocks=self._serve_from_blocks,
            pools=pools,
            settings=settings,
            clock=clock,
            metrics=metrics,
        )

    @property
    def read_ahead(self) -> ReadAhead:
        """Return the windows that are read ahead of sequential readers."""
        return self._extents.read_ahead

    async def fetch_one(
        self, wanted: PartitionFetch, *, min_bytes: int = 1, max_wait_ms: int = 0
    ) -> FetchResult:
        """Do the same as `fetch` for one partition, with a share of the free memory, and raise its error."""
        planned = min(wanted.max_bytes, max(self.budget.share, 1))
        (result,) = await self.fetch(
            [wanted], max_bytes=planned, min_bytes=min_bytes, max_wait_ms=max_wait_ms
        )
        if (error := result.error or result.late) is not None:
            raise error
        return result

    async def fetch(
        self, wanted: Sequence[PartitionFetch], *, max_bytes: int, min_bytes: int = 1, max_wait_ms: int = 0
    ) -> list[FetchResult]:
        """Return a result per partition once there are at least `min_bytes`, or `max_wait_ms` have passed.

        A disk that hangs gets half of the time that is left, so that the other partitions can be read. Its
        local topics have no records then, until it responds. It gets longer if no other partition is wanted.

        The fetch does not wait if any partition has an error, or more records than were fetched. Bytes that
        are damaged or cannot be read end the batches of their partition, and are its error if there are none
        before them. Raises `RetryableError` if the catalog does not respond, and `BusyError` if there is no
        memory.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + min(max_wait_ms, self._settings.max_wait_ms) / 1000
        max_bytes = min(max_bytes, self._settings.max_fetch_bytes)
        min_bytes = min(min_bytes, max_bytes)  # as in Kafka: there cannot be more
        use_cache = max_wait_ms > 0
        if use_cache:
            from_memory = self._read_from_memory(wanted, max_bytes)
            if from_memory is not None and is_sufficient(from_memory, min_bytes):
                self._count(from_memory)
                return from_memory
        ids = [fetch.partition_id for fetch in wanted]
        with self._commit_notifier.waiter(ids) as waiter:
            while True:
                disk_seconds = _MAX_DISK_SECONDS
                if len(wanted) > 1:
                    disk_seconds = min(disk_seconds, max((deadline - loop.time()) / 2, 0.0))
                disk_deadline = loop.time() + disk_seconds
                with self._metrics.fetch_seconds.time():
                    results = await self._fetch_now(wanted, max_bytes, disk_deadline, use_cache=use_cache)
                left = deadline - loop.time()
                if left <= 0 or waiter.is_released or is_sufficient(results, min_bytes):
                    if waiter.woken_at is not None:
                        self._metrics.wake_up_seconds.observe(loop.time() - waiter.woken_at)
                    self._count(results)
                    return results
                del results  # they are not reserved
                # Without a wake-up, query the catalog: a notification may be lost.
                use_cache = await waiter.wait(min(left, self._settings.poll_interval_ms / 1000))

    async def bounds(self, wanted: Sequence[PartitionFetch]) -> list[FetchResult]:
        """Return results without batches: the bounds of the partitions, or their errors."""
        cursors = [Cursor.at(fetch) for fetch in wanted]
        elsewhere = await self._local_reader.find_bounds(cursors)
        await self._log.find_bounds(elsewhere, use_cache=True)
        return [result_of(cursor) for cursor in cursors]

    async def start_offset(
        self, topic: Topic, partition: int, *, offset: int | None, timestamp: int | None
    ) -> int:
        """Return the offset of a read that starts at `offset`, at `timestamp`, or at the log start offset.

        If no record is at or after `timestamp`, it is the high watermark.
        """
        if offset is not None and timestamp is not None:
            raise InvalidInputError(
                "both offset and timestamp are given",
                remedy="give one of them, or none for the start of the log",
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
        read = MemoryRead(
            self._tail,
            self._blocks,
            self._log.bounds_cache,
            self._clock.monotonic(),
            max_bytes,
            committed_only=any(fetch.committed_only for fetch in wanted),
        )
        for fetch in wanted:
            if not read.take(fetch.topic, ((fetch.partition, fetch.offset, fetch.max_bytes, -1),)):
                return None
        cursors = [Cursor.at(fetch) for fetch in wanted]
        for cursor, (state, found) in zip(cursors, read.found, strict=True):
            cursor.state = state
            if found is not None:
                cursor.served.take(found)
        return [result_of(cursor) for cursor in cursors]

    async def _fetch_now(
        self, wanted: Sequence[PartitionFetch], max_bytes: int, disk_deadline: float, *, use_cache: bool
    ) -> list[FetchResult]:
        cursors = [Cursor.at(fetch) for fetch in wanted]
        attempts_left = _MAX_ATTEMPTS
        with self.budget.holding() as held:
            while True:
                attempts_left -= 1
                try:
                    await self._advance(
                        cursors,
                        max_bytes,
                        held,
                        disk_deadline,
                        use_cache=use_cache,
                        is_last=not attempts_left,
                    )
                except ObjectNotFoundError:
                    self._log.invalidate_extents(cursors)
                    continue
                results = within_limits(wanted, [result_of(cursor) for cursor in cursors], max_bytes)
                replaced = await self._add_aborted(cursors, results)
                if not replaced or not attempts_left:
                    return results
                for number in replaced:
                    cursors[number] = Cursor.at(wanted[number])

    async def _add_aborted(self, cursors: Sequence[Cursor], results: list[FetchResult]) -> list[int]:
        """Add the aborted transactions to the results that may contain some.

        They are looked up after the last stable offset. So all transactions that ended before it are known,
        except for those that a compaction has removed meanwhile, or a failover has lost. A result that was
        read from extents that are gone, or in another epoch, is therefore replaced by an empty one; return
        the numbers of these.
        """
        read = {
            cursor.fetch.partition_id: cursor
            for cursor, result in zip(cursors, results, strict=True)
            if cursor.has_aborted and result.error is None and result.size
        }
        if not read:
            return []
        ends = {
            cursor.fetch.partition_id: result.next_offset
            for cursor, result in zip(cursors, results, strict=True)
        }
        ranges = {key: (cursor.fetch.offset, ends[key]) for key, cursor in read.items()}
        extents = [
            extent
            for key, (base, end) in ranges.items()
            for extent in read[key].used
            if extent.last_offset >= base and extent.base_offset < end
        ]
        epochs = [-1 if each.state is None else each.state.leader_epoch for each in read.values()]
        found = await self._pools.lookups.run(partial(self._find_aborted, ranges, extents, epochs))
        replaced = []
        for number, result in enumerate(results):
            key = cursors[number].fetch.partition_id
            if key not in read:
                continue
            if key in found:
                results[number] = replace(result, aborted=found[key])
            else:
                replaced.append(number)
                offset = cursors[number].fetch.offset
                results[number] = replace(result, batches=(), size=0, next_offset=offset)
        return replaced

    async def _advance(
        self,
        cursors: Sequence[Cursor],
        max_bytes: int,
        held: HeldRecords,
        disk_deadline: float,
        *,
        use_cache: bool,
        is_last: bool,
    ) -> None:
        """Read until all cursors are done or the response is full.

        It queries the catalog for extents a fixed number of times, so a fetch may return less than there is.
        Raises `ObjectNotFoundError` if extents were replaced meanwhile, unless it `is_last`: then these
        cursors get an error.
        """
        generation = self._blocks.generation
        elsewhere = await self._local_reader.find_bounds([each for each in cursors if not each.is_done])
        await self._log.find_bounds(elsewhere, use_cache=use_cache)
        queries = 0
        for _ in range(_MAX_ROUNDS):
            self._serve_from_memory(cursors, max_bytes)
            await self._local_reader.serve(cursors, max_bytes, held, disk_deadline)
            rooms = [each for each in with_room(cursors, max_bytes) if not each[0].fetch.topic.is_local]
            if not rooms:
                break
            waiting, left = [cursor for cursor, _ in rooms], rooms[0][1]
            # Sizes of extents are upper bounds. What they leave of a response is filled only if it is much.
            may_query = queries == 0 or (queries < _MAX_QUERIES and 2 * left > max_bytes)
            queries += await self._log.find_extents(waiting, left, may_query=may_query)
            for cursor in waiting:
                cursor.drop_unsupported()
            chosen = assign_limits(cursors, max_bytes)
            if not chosen:
                break
            await self._local_reader.serve_within_extents(chosen, held, disk_deadline)
            unserved = [cursor for cursor in chosen if not cursor.served.runs]
            unserved = [cursor for cursor in unserved if not self._serve_from_files(cursor)]
            await self._extents.read(unserved, generation, is_last=is_last)
            held.add_unchecked(sum(cursor.served.size for cursor in unserved))

    def _serve_from_memory(self, cursors: Sequence[Cursor], max_bytes: int) -> None:
        """Serve batches from the tail and the cached blocks."""
        for cursor, left in with_room(cursors, max_bytes):
            if cursor.needs_extents:
                continue
            limit = min(cursor.fetch.max_bytes, left)
            found = self._read_partition_from_memory(cursor, limit)
            if found is None:
                continue
            if found.size > limit and left < max_bytes:
                cursor.served.is_cut = True
            else:
                cursor.served.take(found)

    def _read_partition_from_memory(self, cursor: Cursor, limit: int) -> TailRead | None:
        fetch, offset = cursor.fetch, cursor.served.next_offset
        if cursor.state is not None and offset < cursor.state.first_dirty_offset:
            return None  # memory may have records that a compaction has removed since
        found = self._tail.read(fetch.partition_id, offset, limit, plain_only=fetch.committed_only)
        cached = self._blocks.of_topic(fetch.topic.topic_id).get(fetch.partition)
        if found is not None or cursor.state is None:
            return found
        end = fetch.end_of(cursor.state)
        return self._blocks.read(cached, offset, limit, end, plain_only=fetch.committed_only)

    def _serve_from_files(self, cursor: Cursor) -> bool:
        """Serve batches in the tail from the files of the cursor's extents; return False if it has none."""
        for extent in cursor.needed_extents():
            left = cursor.limit - cursor.served.size
            if cursor.served.runs and left <= 0:
                break
            found = self._tail.read(
                cursor.fetch.partition_id,
                cursor.served.next_offset,
                left,
                file_id=extent.file_id,
                last_offset=extent.last_offset,  # other extents of the file may be replaced unnoticed
            )
            if found is None or (cursor.served.runs and found.size > left):
                break
            cursor.served.take(found)
            if cursor.served.next_offset <= extent.last_offset:
                break
        return bool(cursor.served.runs)

    def _serve_from_blocks(self, cursor: Cursor) -> bool:
        """Serve a cursor whose part of the response is known; return False if there is no block."""
        if cursor.needs_extents or cursor.served.runs:
            return False
        found = self._read_partition_from_memory(cursor, cursor.limit)
        if found is None:
            return False
        cursor.served.take(found)
        return True

    def _count(self, results: Sequence[FetchResult]) -> None:
        outcomes = Counter(
            "failed" if result.error else "records" if result.size else "empty" for result in results
        )
        for outcome, count in outcomes.items():
            self._metrics.fetches.labels(outcome).inc(count)
        self._metrics.fetched_bytes.inc(sum(result.size for result in results))
