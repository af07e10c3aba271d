"""Fetch requests that memory can answer, from their bytes to those of the answer.

That is a request of a client that may be made to wait, within a session or without one, for topics that are
known and partitions whose tail is held: at once where there is enough, or else when it is committed. All
others go the way of `fetch_response`, some after having waited here; both ways lead to the same answers,
which a test compares.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from typing_extensions import override

from agent.kafka.api_definition import FastPath, RetainedBuffers
from agent.kafka.errors import KafkaError
from agent.kafka.fast_path.fetch_encoder import by_topic, write_answer
from agent.kafka.fast_path.fetch_parser import LOWEST, FetchParser
from agent.kafka.fast_path.fetch_targets import read_request
from agent.kafka.fetch_response import TOPIC_IDS_SINCE, FetchLimits, build_fetch_response
from agent.kafka.fetch_sessions import PartitionStatus
from agent.read.memory_reads import MAX_PARTITIONS_PER_STEP, MemoryMiss

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.api_definition import RequestContext, RequestFrame
    from agent.kafka.codec import Struct
    from agent.kafka.fast_path.fetch_targets import Runs
    from agent.kafka.fetch_sessions import FetchContext
    from agent.read.memory_reads import MemoryReads, MemoryResult

_MAX_PARTITIONS = 4096
# A named tuple's own constructor is a Python function, and every partition needs one.
_made_seen = partial(tuple.__new__, PartitionStatus)


class _Asked(NamedTuple):
    """A request that memory may be able to answer; `runs` is all of `reads`, in its order."""

    reads: FetchContext
    runs: Runs
    limits: FetchLimits

    @property
    def is_large(self) -> bool:
        """Whether it is not to be read in one step."""
        return sum([len(parts) for _, parts in self.runs.topics]) > MAX_PARTITIONS_PER_STEP

    def read(self, memory: MemoryReads) -> tuple[list[MemoryResult], int] | MemoryMiss:
        """What there is by now."""
        return memory.read(self.runs.topics, max_bytes=self.limits.max_bytes, min_bytes=self.limits.min_bytes)


class FastFetch(FastPath):
    """Takes usual requests of one agent. Belongs to the event loop."""

    def __init__(self) -> None:
        self._survey = FetchParser(_MAX_PARTITIONS)
        # What was asked by the frame that was not answered at once: its turn comes next, as a rule.
        self._unanswered: tuple[memoryview, _Asked | None] | None = None

    @override
    def try_handle(self, frame: RequestFrame, context: RequestContext) -> RetainedBuffers | None:
        """Answer everything, or nothing."""
        asked = self._asked(frame, context)
        memory = context.services.memory_reads
        read = MemoryMiss.UNKNOWN if asked is None or asked.is_large else asked.read(memory)
        if asked is None or isinstance(read, MemoryMiss):
            self._unanswered = frame.data, asked
            return None
        try:
            _begin(asked.reads, read, memory)
        except KafkaError:
            return None  # the session is no more, as the longer way finds, too
        return _answer(asked, *read, frame, context)

    @override
    async def handle(self, frame: RequestFrame, context: RequestContext) -> RetainedBuffers | Struct | None:
        """Wait until there is enough; what memory does not tell by then is asked for on the longer way."""
        asked = self._asked_before(frame, context)
        if asked is None:
            return None
        memory, limits = context.services.memory_reads, asked.limits
        read = MemoryMiss.INSUFFICIENT if asked.is_large else asked.read(memory)
        if read is MemoryMiss.UNKNOWN:
            return None
        _begin(asked.reads, read, memory)
        loop = asyncio.get_running_loop()
        longest = min(limits.max_wait, context.services.settings.max_wait_ms)
        until = loop.time() + longest / 1000
        if read is MemoryMiss.INSUFFICIENT:
            read = await memory.read_when_available(
                asked.runs.topics,
                max_bytes=limits.max_bytes,
                min_bytes=limits.min_bytes,
                until=until,
                was_read=not asked.is_large,
            )
        if not isinstance(read, MemoryMiss):
            return _answer(asked, *read, frame, context)
        left = max(round((until - loop.time()) * 1000), 0)
        return await build_fetch_response(asked.reads, limits._replace(max_wait=left), context)

    def _asked_before(self, frame: RequestFrame, context: RequestContext) -> _Asked | None:
        """As `_asked`, which `try_handle` has found out a moment ago, unless others came in between."""
        before, self._unanswered = self._unanswered, None
        if before is not None and before[0] is frame.data:
            asked = before[1]
            if asked is None or asked.reads.is_current:
                return asked
        return self._asked(frame, context)

    def _asked(self, frame: RequestFrame, context: RequestContext) -> _Asked | None:
        """What the request asks for, if it is of the usual kind."""
        if context.version < LOWEST:
            return None
        request = self._survey.read(frame.data, frame.position, context.version)
        services = context.services
        if request is None or request.max_wait <= 0:
            return None
        if request.rack and request.rack != (services.brokers.own.rack or "").encode():
            return None  # it may be sent to another agent
        by_id = context.version >= TOPIC_IDS_SINCE
        try:
            reads = read_request(
                request, frame.data, services.fetch_sessions, services.directory, by_id=by_id
            )
        except KafkaError:
            return None
        if reads is None:
            return None
        most = max(request.max_bytes, 0)
        limits = FetchLimits(request.max_wait, request.min_bytes, most, request.rack.decode())
        return _Asked(*reads, limits)


def _begin(
    reads: FetchContext, read: tuple[Sequence[MemoryResult], int] | MemoryMiss, memory: MemoryReads
) -> None:
    """Take the request; where its session refuses it, what was read is let go of."""
    try:
        reads.begin()
    except BaseException:
        if not isinstance(read, MemoryMiss):
            memory.release(read[1])
        raise


def _seen(read: MemoryResult) -> PartitionStatus:
    state, records = read
    return _made_seen((state.high_watermark, state.log_start_offset, records is not None, False, False))


def _answer(
    asked: _Asked, found: Sequence[MemoryResult], size: int, frame: RequestFrame, context: RequestContext
) -> RetainedBuffers:
    """The answer's bytes, which hold `size` bytes of the memory for fetches."""
    release = partial(context.services.memory_reads.release, size)
    try:
        session_id, news = asked.reads.complete(map(_seen, found))
        topics = by_topic(asked.runs, found, news)
        buffers = write_answer(session_id, topics, frame.correlation_id, context.version)
    except BaseException:
        release()
        raise
    return RetainedBuffers(buffers, [release])
