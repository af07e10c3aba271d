"""Fetches that are served from memory alone: cached bounds, the hot tail, and cached blocks of older batches.

`MemoryRead` is the one implementation. `MemoryReads` offers it to the Kafka fast path, which reads many
partitions at once and reserves memory for them. `ReadPath.fetch` tries it before it queries the catalog.
Neither returns a partial result: if anything but memory is needed, the whole fetch takes the general path.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from agent.read.fetch_memory import MIN_SHARE
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.read.caches.block_cache import BlockCache
    from agent.read.caches.catalog_cache import BoundsCache
    from agent.read.commit_notifier import CommitNotifier
    from agent.read.fetch_memory import FetchMemory
    from agent.read.hot_tail import HotTail, TailRead
    from agent.runtime.metrics import AgentMetrics
    from catalog.model import PartitionState, Topic
    from core.clock import Clock

MAX_PARTITIONS_PER_STEP = 1024
"""Partitions between two yields to the event loop. Reading them takes about 1 ms."""

_UNKNOWN: tuple[float, None] = (-1.0, None)


class PartitionRead(NamedTuple):
    """A read of batches from the one with `offset` on, about `max_bytes` of them."""

    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1  # the latest epoch that the reader knows


PartitionReadTuple: TypeAlias = "tuple[int, int, int, int]"
"""The fields of `PartitionRead` as a plain tuple, which is faster to make."""

ReadsByTopic: TypeAlias = "Sequence[tuple[Topic, Sequence[PartitionReadTuple]]]"
"""Reads by topic, in the order in which they are served. A topic may occur several times."""


class MemoryMiss(Enum):
    """Why nothing was read."""

    UNKNOWN = "unknown"
    """Memory does not have everything: the catalog, the disks or the store are needed."""

    INSUFFICIENT = "insufficient"
    """There are fewer than `min_bytes`: the reader should wait for more."""


MemoryResult: TypeAlias = "tuple[PartitionState, TailRead | None]"
"""The bounds of a partition, and the batches from the offset on (None if there are none)."""

_Read: TypeAlias = "tuple[list[MemoryResult], int] | MemoryMiss"


class MemoryReads:
    """Reads from memory within the cached bounds. Belongs to the event loop."""

    def __init__(
        self,
        *,
        tail: HotTail,
        blocks: BlockCache,
        bounds: BoundsCache,
        budget: FetchMemory,
        commit_notifier: CommitNotifier,
        clock: Clock,
        metrics: AgentMetrics,
        max_fetch_bytes: int,
        poll_seconds: float,
    ) -> None:
        self._tail = tail
        self._blocks = blocks
        self._bounds = bounds
        self._commit_notifier = commit_notifier
        self._poll_seconds = poll_seconds
        self._budget = budget
        self._clock = clock
        self._max_fetch_bytes = max_fetch_bytes
        self._with_records = metrics.fetches.labels("records")
        self._empty = metrics.fetches.labels("empty")
        self._bytes = metrics.fetched_bytes
        self._wake_up_seconds = metrics.wake_up_seconds

    def read(
        self, wanted: ReadsByTopic, *, max_bytes: int, min_bytes: int, committed_only: bool = False
    ) -> _Read:
        """Return the result of each read in order, and the size that is reserved in the budget for them."""
        reading = self._begin(max_bytes, committed_only=committed_only)
        if reading is None:
            return MemoryMiss.UNKNOWN
        for topic, parts in wanted:
            if not reading.take(topic, parts):
                return MemoryMiss.UNKNOWN
        return self._end(reading, min_bytes)

    async def _read_in_steps(
        self, wanted: ReadsByTopic, max_bytes: int, min_bytes: int, *, committed_only: bool
    ) -> _Read:
        """Do the same as `read`, and yield to the event loop between portions of partitions."""
        reading = self._begin(max_bytes, committed_only=committed_only)
        if reading is None:
            return MemoryMiss.UNKNOWN
        taken = 0
        for topic, parts in wanted:
            for start in range(0, len(parts), MAX_PARTITIONS_PER_STEP):
                some = parts[start : start + MAX_PARTITIONS_PER_STEP]
                if not reading.take(topic, some):
                    return MemoryMiss.UNKNOWN
                taken += len(some)
                if taken >= MAX_PARTITIONS_PER_STEP:
                    taken = 0
                    await asyncio.sleep(0)
        return self._end(reading, min_bytes)

    def _begin(self, max_bytes: int, *, committed_only: bool) -> MemoryRead | None:
        """Start a read; return None if the budget has no space for its results."""
        if self._budget.free < min(MIN_SHARE, max(max_bytes, 1)):
            return None
        limit = min(max_bytes, self._budget.share, self._max_fetch_bytes)
        return MemoryRead(
            self._tail,
            self._blocks,
            self._bounds,
            self._clock.monotonic(),
            limit,
            committed_only=committed_only,
        )

    def _end(self, reading: MemoryRead, min_bytes: int) -> _Read:
        """Return what was found if it is complete and sufficient."""
        found, size = reading.found, reading.limit - reading.remaining
        if not self._budget.fits(size):
            return MemoryMiss.UNKNOWN
        # As in Kafka, no reader waits for more than the limit allows.
        if size < min(min_bytes, reading.limit) and not (reading.is_cut or _has_more(found)):
            return MemoryMiss.INSUFFICIENT
        self._count(reading.served, len(found) - reading.served, size)
        self._budget.reserve(size)
        return found, size

    async def read_when_available(
        self,
        wanted: ReadsByTopic,
        *,
        max_bytes: int,
        min_bytes: int,
        until: float,
        was_read: bool,
        committed_only: bool = False,
    ) -> _Read:
        """Do the same as `read`, and wait for commits while memory has less than `min_bytes`.

        `was_read` says that a `read` a moment ago returned `INSUFFICIENT`, so that the first look is skipped.
        The event loop runs other tasks after each `MAX_PARTITIONS_PER_STEP` partitions. Returns
        `INSUFFICIENT` when the loop's time is `until`. Returns it earlier, and invalidates the cached bounds,
        if no commit was announced for so long that a notification may be lost. Returns it at once if the
        agent stops or a leader epoch begins.
        """
        loop = asyncio.get_running_loop()
        ids = [PartitionId(topic.topic_id, partition) for topic, parts in wanted for partition, *_ in parts]
        with self._commit_notifier.waiter(ids) as waiter:
            if not was_read:
                read = await self._read_in_steps(wanted, max_bytes, min_bytes, committed_only=committed_only)
                if read is not MemoryMiss.INSUFFICIENT:
                    return read
            while not waiter.is_released:
                left = until - loop.time()
                if left <= 0:
                    break
                if not await waiter.wait(min(left, self._poll_seconds)):
                    if left > self._poll_seconds:
                        self._bounds.invalidate(ids)
                    break
                read = await self._read_in_steps(wanted, max_bytes, min_bytes, committed_only=committed_only)
                if read is not MemoryMiss.INSUFFICIENT:
                    if waiter.woken_at is not None:
                        self._wake_up_seconds.observe(loop.time() - waiter.woken_at)
                    return read
        return MemoryMiss.INSUFFICIENT

    def release(self, size: int) -> None:
        """Release the memory of a read whose batches were sent."""
        self._budget.release(size)

    def _count(self, served: int, empty: int, size: int) -> None:
        if served:
            self._with_records.inc(served)
        if empty:
            self._empty.inc(empty)
        self._bytes.inc(size)


class MemoryRead:
    """One read of the hot tail and the cached blocks, topic by topic, of at most `limit` bytes.

    With `committed_only`, memory is sufficient only for partitions without transactions. Only the first batch
    of the first partition with records may exceed the limits. `served` counts the partitions with records.
    `is_cut` says that a batch in memory exceeds what was left.
    """

    __slots__ = (
        "_blocks",
        "_bounds",
        "_committed_only",
        "_hot_tail",
        "_now",
        "found",
        "is_cut",
        "limit",
        "remaining",
        "served",
    )

    def __init__(
        self,
        hot_tail: HotTail,
        blocks: BlockCache,
        bounds: BoundsCache,
        now: float,
        limit: int,
        *,
        committed_only: bool = False,
    ) -> None:
        self._committed_only = committed_only
        self._hot_tail = hot_tail
        self._blocks = blocks
        self._bounds = bounds
        self._now = now
        self.limit = self.remaining = limit
        self.found: list[MemoryResult] = []
        self.served = 0
        self.is_cut = False

    def take(self, topic: Topic, parts: Sequence[PartitionReadTuple]) -> bool:
        """Read partitions of one topic; return False if memory is not sufficient.

        It is sufficient if it has all records that the limit of bytes allows, the bounds are in the cache,
        and the offset lies within them, behind all that was ever deduplicated: memory may have records of a
        time before the topic was compacted.
        """
        if topic.config.compacts:
            return False
        states = self._bounds.of_topic(topic.topic_id)
        tails = self._hot_tail.partition_tails(topic.topic_id)
        blocks = self._blocks.of_topic(topic.topic_id)
        read_partition, now, limit, remaining, committed_only = (
            self._hot_tail.read_partition,
            self._now,
            self.limit,
            self.remaining,
            self._committed_only,
        )
        for partition, offset, max_bytes, _ in parts:
            until, state = states.get(partition, _UNKNOWN)
            if until < now or state is None or (committed_only and state.has_transactions):
                return False
            end = state.high_watermark
            if not max(state.log_start_offset, state.first_dirty_offset) <= offset <= end:
                return False
            read = None
            if offset < end and (remaining > 0 or remaining == limit):
                tail = tails.get(partition)
                left = min(max_bytes, remaining)
                if tail is not None and not (committed_only and tail.has_transactions):
                    read = read_partition(tail, offset, left)
                read = read or self._blocks.read(
                    blocks.get(partition), offset, left, end, plain_only=committed_only
                )
                if read is None:
                    return False
                if read.size > left and remaining != limit:
                    self.is_cut = True
                    read = None
                else:
                    remaining -= read.size
                    self.served += 1
            self.found.append((state, read))
        self.remaining = remaining
        return True


def _has_more(found: Sequence[MemoryResult]) -> bool:
    """Return True if a partition has more than was read, so that the reader need not wait."""
    return any(read is not None and read.next_offset < state.high_watermark for state, read in found)
