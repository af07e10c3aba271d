"""Fetches that memory alone can answer, for many partitions at a time.

The rules are those of `ReadPath.fetch`, of which this is the shortest way: bounds that may be believed, and
batches of the tail. It says nothing where anything else is needed.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from agent.byte_budget import ByteBudget
    from agent.commit_watch import CommitWatch
    from agent.hot_tail import HotTail, Line
    from agent.known_log import KnownBounds
    from agent.metrics import AgentMetrics
    from bedrock.clock import Clock
    from catalog.model import PartitionState, Topic

AT_ONCE = 1024
"""Partitions that are read in 1 ms, which is for how long others may be kept waiting."""

_LEAST_ROOM = 64 * 1024  # as others are made to wait for (`held_fetch`)


class Wanted(NamedTuple):
    """Batches of one partition from the one with `offset` on, about `max_bytes` of them."""

    partition: int
    offset: int
    max_bytes: int
    leader_epoch: int = -1  # that the reader knows of


class Unread(Enum):
    """Why nothing was read."""

    NOT_KNOWN = "not known"
    """Memory does not tell: catalog, disks or store have to be asked."""

    NOT_ENOUGH = "not enough"
    """There is less than was asked for: whoever asked should wait for more."""


class Remembered(NamedTuple):
    """What memory has for one partition."""

    state: PartitionState
    batches: Sequence[memoryview]
    size: int
    next_offset: int


_Read: TypeAlias = "tuple[list[Remembered], int] | Unread"


class MemoryReads:
    """What the tail and the known bounds say. Belongs to the event loop."""

    def __init__(
        self,
        *,
        tail: HotTail,
        bounds: KnownBounds,
        budget: ByteBudget,
        watch: CommitWatch,
        clock: Clock,
        metrics: AgentMetrics,
        max_fetch_bytes: int,
        poll_seconds: float,
    ) -> None:
        self._tail = tail
        self._bounds = bounds
        self._watch = watch
        self._poll_seconds = poll_seconds
        self._budget = budget
        self._clock = clock
        self._max_fetch_bytes = max_fetch_bytes
        self._with_records = metrics.fetches.labels("records")
        self._empty = metrics.fetches.labels("empty")
        self._bytes = metrics.fetched_bytes
        self._wake_up_seconds = metrics.wake_up_seconds

    def read(self, wanted: Sequence[tuple[Topic, list[Wanted]]], *, max_bytes: int, min_bytes: int) -> _Read:
        """What there is of each, in order, and how many bytes of the budget that holds from now on."""
        steps = self._steps(wanted, max_bytes, min_bytes)
        while True:
            try:
                next(steps)
            except StopIteration as last:
                read: _Read = last.value
                return read

    async def _read_in_steps(
        self, wanted: Sequence[tuple[Topic, list[Wanted]]], max_bytes: int, min_bytes: int
    ) -> _Read:
        """As `read`, and others have their turn in between where there are many partitions."""
        steps = self._steps(wanted, max_bytes, min_bytes)
        while True:
            try:
                next(steps)
            except StopIteration as last:
                read: _Read = last.value
                return read
            await asyncio.sleep(0)

    def _steps(
        self, wanted: Sequence[tuple[Topic, list[Wanted]]], max_bytes: int, min_bytes: int
    ) -> Generator[None, None, _Read]:
        """Read, and stop now and then."""
        if self._budget.free < min(_LEAST_ROOM, max(max_bytes, 1)):
            return Unread.NOT_KNOWN
        most = min(max_bytes, self._budget.free, self._max_fetch_bytes)
        found: list[Remembered] = []
        left = most
        is_short = False
        now = self._clock.monotonic()
        for topic, parts in wanted:
            if topic.config.compacts:
                return Unread.NOT_KNOWN
            states = self._bounds.of_topic(topic.topic_id)
            lines = self._tail.lines(topic.topic_id)
            for part in parts:
                state = _state(states, part, now)
                if state is None:
                    return Unread.NOT_KNOWN
                read = self._one(state, lines.get(part.partition), part, left, most)
                is_short = is_short or read.next_offset == part.offset < state.high_watermark
                left -= read.size
                found.append(read)
                if len(found) % AT_ONCE == 0:
                    yield
        size = most - left
        if (left > 0 and is_short) or size > self._budget.free:
            return Unread.NOT_KNOWN
        # As Kafka's brokers do, nobody is kept waiting for more than may be handed out.
        if size < min(min_bytes, most) and not _has_more(wanted, found):
            return Unread.NOT_ENOUGH
        self._count(found, size)
        self._budget.reserve(size)
        return found, size

    async def read_in_time(
        self,
        wanted: Sequence[tuple[Topic, list[Wanted]]],
        *,
        max_bytes: int,
        min_bytes: int,
        until: float,
        was_read: bool,
    ) -> _Read:
        """As `read`, of what was not enough a moment ago, once more is committed.

        What was not read yet (`was_read`) is read first.
        However many partitions there are, nobody else waits for more than `AT_ONCE` of them to be read.
        Returns without it when the loop's time is `until`, or when nothing was heard for so long that a
        commit may have been missed: what was believed is forgotten then.
        """
        loop = asyncio.get_running_loop()
        ids = [PartitionId(topic.topic_id, part.partition) for topic, parts in wanted for part in parts]
        with self._watch.waiting(ids) as waiter:
            if not was_read:
                read = await self._read_in_steps(wanted, max_bytes, min_bytes)
                if read is not Unread.NOT_ENOUGH:
                    return read
            while not self._watch.is_closed:
                left = until - loop.time()
                if left <= 0:
                    break
                if not await waiter.wait(min(left, self._poll_seconds)):
                    if left > self._poll_seconds:
                        self._bounds.forget(ids)
                    break
                read = await self._read_in_steps(wanted, max_bytes, min_bytes)
                if read is not Unread.NOT_ENOUGH:
                    if waiter.woken_at is not None:
                        self._wake_up_seconds.observe(loop.time() - waiter.woken_at)
                    return read
        return Unread.NOT_ENOUGH

    def _one(
        self, state: PartitionState, line: Line | None, part: Wanted, left: int, most: int
    ) -> Remembered:
        """What the tail has for one partition, with `left` of `most` bytes to hand out."""
        is_full = left <= 0 and left < most
        if line is not None and not is_full and part.offset < state.high_watermark:
            read = self._tail.read_line(line, part.offset, min(part.max_bytes, left))
            if read is not None:
                return Remembered(state, read.batches, read.size, read.next_offset)
        return Remembered(state, (), 0, part.offset)

    def release(self, size: int) -> None:
        """Let go of what a read holds; its batches were handed out."""
        self._budget.release(size)

    def _count(self, found: Sequence[Remembered], size: int) -> None:
        served = sum([1 for each in found if each.size])
        if served:
            self._with_records.inc(served)
        if served < len(found):
            self._empty.inc(len(found) - served)
        self._bytes.inc(size)


def _state(
    states: Mapping[int, tuple[float, PartitionState]], part: Wanted, now: float
) -> PartitionState | None:
    """Where the partition begins and ends, if that may be believed and the offset lies there."""
    known = states.get(part.partition)
    if known is None or known[0] < now:
        return None
    state = known[1]
    return state if state.log_start_offset <= part.offset <= state.high_watermark else None


def _has_more(wanted: Sequence[tuple[Topic, list[Wanted]]], found: Sequence[Remembered]) -> bool:
    """Whether there is more than was read, so that nobody has to wait for it."""
    parts = (part for _, parts in wanted for part in parts)
    return any(
        part.offset < each.next_offset < each.state.high_watermark
        for part, each in zip(parts, found, strict=True)
    )
