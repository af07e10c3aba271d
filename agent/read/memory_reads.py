"""Fetches that are served from memory alone: cached bounds and the hot tail.

`MemoryRead` is the one implementation. `MemoryReads` offers it to the Kafka fast path, which reads many
partitions at once and holds their memory; `ReadPath.fetch` tries it before it asks the catalog. Neither gives
a partial result: where anything else than memory is needed, the whole fetch goes the general way.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from agent.read.fetch_memory import MIN_SHARE
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.read.catalog_cache import BoundsCache
    from agent.read.commit_notifier import CommitNotifier
    from agent.read.fetch_memory import FetchMemory
    from agent.read.hot_tail import HotTail, TailRead
    from agent.runtime.metrics import AgentMetrics
    from catalog.model import PartitionState, Topic
    from core.clock import Clock

MAX_PARTITIONS_PER_STEP = 1024
"""Partitions that are read in 1 ms, which is for how long others may be kept waiting."""

_UNKNOWN: tuple[float, None] = (-1.0, None)


class PartitionRead(NamedTuple):
    """Batches of one partition from the one with `offset` on, about `max_bytes` of them."""

    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1  # that the reader knows of


PartitionReadTuple: TypeAlias = "tuple[int, int, int, int]"
"""What `PartitionRead` says, with names or without: for most readers nobody needs them."""

ReadsByTopic: TypeAlias = "Sequence[tuple[Topic, Sequence[PartitionReadTuple]]]"
"""Partitions by topic, in the order in which there is room for them; a topic may come again."""


class MemoryMiss(Enum):
    """Why nothing was read."""

    UNKNOWN = "unknown"
    """Memory does not tell: catalog, disks or store have to be asked."""

    INSUFFICIENT = "insufficient"
    """There is less than was asked for: whoever asked should wait for more."""


MemoryResult: TypeAlias = "tuple[PartitionState, TailRead | None]"
"""Where a partition begins and ends, and what memory has of it from the offset on: None for nothing."""

_Read: TypeAlias = "tuple[list[MemoryResult], int] | MemoryMiss"


class MemoryReads:
    """What the tail and the known bounds say. Belongs to the event loop."""

    def __init__(
        self,
        *,
        tail: HotTail,
        bounds: BoundsCache,
        budget: FetchMemory,
        commit_notifier: CommitNotifier,
        clock: Clock,
        metrics: AgentMetrics,
        max_fetch_bytes: int,
        poll_seconds: float,
    ) -> None:
        self._tail = tail
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

    def read(self, wanted: ReadsByTopic, *, max_bytes: int, min_bytes: int) -> _Read:
        """What there is of each, in order, and how many bytes of the budget that holds from now on."""
        reading = self._begin(max_bytes)
        if reading is None:
            return MemoryMiss.UNKNOWN
        for topic, parts in wanted:
            if not reading.take(topic, parts):
                return MemoryMiss.UNKNOWN
        return self._end(reading, min_bytes)

    async def _read_in_steps(self, wanted: ReadsByTopic, max_bytes: int, min_bytes: int) -> _Read:
        """As `read`, and others have their turn in between where there are many partitions."""
        reading = self._begin(max_bytes)
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

    def _begin(self, max_bytes: int) -> MemoryRead | None:
        """A look at everything; None where there is no room for what it would find."""
        if self._budget.free < min(MIN_SHARE, max(max_bytes, 1)):
            return None
        most = min(max_bytes, self._budget.share, self._max_fetch_bytes)
        return MemoryRead(self._tail, self._bounds, self._clock.monotonic(), most)

    def _end(self, reading: MemoryRead, min_bytes: int) -> _Read:
        """What was found, if it is all that there is, and enough."""
        found, size = reading.found, reading.most - reading.left
        if not reading.is_complete or not self._budget.fits(size):
            return MemoryMiss.UNKNOWN
        # As Kafka's brokers do, nobody is kept waiting for more than may be handed out.
        if size < min(min_bytes, reading.most) and not _has_more(found):
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
    ) -> _Read:
        """Do the same as `read`, and wait for commits while memory has less than `min_bytes`.

        `was_read` says that a `read` a moment ago returned `INSUFFICIENT`, so that the first look is skipped.
        The event loop runs other tasks after each `MAX_PARTITIONS_PER_STEP` partitions. Returns
        `INSUFFICIENT` when the loop's time is `until`. Returns it earlier, and invalidates the cached bounds,
        if no commit was announced for so long that a notification may be lost.
        """
        loop = asyncio.get_running_loop()
        ids = [PartitionId(topic.topic_id, partition) for topic, parts in wanted for partition, *_ in parts]
        with self._commit_notifier.waiter(ids) as waiter:
            if not was_read:
                read = await self._read_in_steps(wanted, max_bytes, min_bytes)
                if read is not MemoryMiss.INSUFFICIENT:
                    return read
            while not self._commit_notifier.is_closed:
                left = until - loop.time()
                if left <= 0:
                    break
                if not await waiter.wait(min(left, self._poll_seconds)):
                    if left > self._poll_seconds:
                        self._bounds.invalidate(ids)
                    break
                read = await self._read_in_steps(wanted, max_bytes, min_bytes)
                if read is not MemoryMiss.INSUFFICIENT:
                    if waiter.woken_at is not None:
                        self._wake_up_seconds.observe(loop.time() - waiter.woken_at)
                    return read
        return MemoryMiss.INSUFFICIENT

    def release(self, size: int) -> None:
        """Let go of what a read holds; its batches were handed out."""
        self._budget.release(size)

    def _count(self, served: int, empty: int, size: int) -> None:
        if served:
            self._with_records.inc(served)
        if empty:
            self._empty.inc(empty)
        self._bytes.inc(size)


class MemoryRead:
    """One look at the tail, topic by topic, with `most` bytes to hand out.

    `served` partitions have records; where it `is_short`, there are records that memory does not have.
    """

    __slots__ = ("_bounds", "_now", "_tail", "found", "is_short", "left", "most", "served")

    def __init__(self, tail: HotTail, bounds: BoundsCache, now: float, most: int) -> None:
        self._tail = tail
        self._bounds = bounds
        self._now = now
        self.most = self.left = most
        self.found: list[MemoryResult] = []
        self.served = 0
        self.is_short = False

    @property
    def is_complete(self) -> bool:
        """Return True if memory has all records that the limit of bytes allows."""
        return self.left <= 0 or not self.is_short

    def take(self, topic: Topic, parts: Sequence[PartitionReadTuple]) -> bool:
        """What there is of one topic's partitions; whether memory tells.

        It does where the bounds may be believed, and the offset lies within them.
        """
        if topic.config.compacts:
            return False
        states = self._bounds.of_topic(topic.topic_id)
        lines = self._tail.partition_tails(topic.topic_id)
        read_line, now, most, left = self._tail.read_partition, self._now, self.most, self.left
        for partition, offset, max_bytes, _ in parts:
            until, state = states.get(partition, _UNKNOWN)
            if until < now or state is None:
                return False
            end = state.high_watermark
            if not state.log_start_offset <= offset <= end:
                return False
            read = None
            if offset < end and (left > 0 or left == most):
                line = lines.get(partition)
                if line is not None:
                    read = read_line(line, offset, min(max_bytes, left))
            if read is not None:
                left -= read.size
                self.served += 1
            elif offset < end:
                self.is_short = True
            self.found.append((state, read))
        self.left = left
        return True


def _has_more(found: Sequence[MemoryResult]) -> bool:
    """Whether there is more than was read, so that nobody has to wait for it."""
    return any(read is not None and read.next_offset < state.high_watermark for state, read in found)
