"""Fetch requests that memory can answer, from their bytes to those of the answer.

That is a request of a client that may be made to wait, within a session or without one, for topics that are
known and partitions whose tail is held: at once where there is enough, or else when it is committed. All
others go the way of `fetch_answer`, some after having waited here; both ways lead to the same answers, which
a test compares.
"""

from __future__ import annotations

import asyncio
from functools import partial
from itertools import compress
from struct import Struct as Layout
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from typing_extensions import override

from agent.kafka import fetch_answer
from agent.kafka.api import AtOnce, HeldBuffers
from agent.kafka.codec.fetch_survey import LOWEST, FetchSurvey
from agent.kafka.codec.writing import Output, write_count, write_encoded, write_varint
from agent.kafka.errors import KafkaError
from agent.kafka.fetch_answer import IDENTIFIERS_SINCE, FetchLimits
from agent.kafka.fetch_sessions import Seen, SessionRequest
from agent.kafka.topics import LEADER_EPOCH
from agent.memory_reads import AT_ONCE, Unread, Wanted

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from agent.kafka.api import Context, RequestFrame
    from agent.kafka.codec import Struct
    from agent.kafka.codec.fetch_survey import FetchRequest
    from agent.kafka.codec.writing import Buffers
    from agent.kafka.fetch_sessions import FetchContext, Key
    from agent.memory_reads import MemoryReads, Remembered
    from agent.topic_directory import TopicDirectory
    from catalog.model import Topic

_MOST_PARTITIONS = 4096
_RACKS_SINCE, _FLEXIBLE_SINCE = 11, 12
# Throttling, error, session.
_HEAD = Layout(">ihi")
# Index, error, high watermark, last stable offset, log start, no aborted transactions, no other replica.
_FLEXIBLE = Layout(">ihqqqBi")
_WITH_RACKS = Layout(">ihqqqiii")
_OLDEST = Layout(">ihqqqii")
# Their length and one, and no tagged fields.
_NO_RECORDS = b"\x01\0"
# A named tuple's own constructor is a Python function, and every partition needs some of them.
_wanted = partial(tuple.__new__, Wanted)
_made_seen = partial(tuple.__new__, Seen)


class _Asked(NamedTuple):
    """A request that memory may be able to answer; `topics` is all of `reads`, in its order."""

    reads: FetchContext
    topics: Sequence[tuple[Topic, list[Wanted]]]
    limits: FetchLimits

    @property
    def is_large(self) -> bool:
        """Whether it is not to be read in one step."""
        return len(self.reads.wanted) > AT_ONCE

    def read(self, memory: MemoryReads) -> tuple[list[Remembered], int] | Unread:
        """What there is by now."""
        return memory.read(self.topics, max_bytes=self.limits.max_bytes, min_bytes=self.limits.min_bytes)


class PlainFetch(AtOnce):
    """Takes usual requests of one agent. Belongs to the event loop."""

    def __init__(self) -> None:
        self._survey = FetchSurvey(_MOST_PARTITIONS)
        # What was asked by the frame that was not answered at once: its turn comes next, as a rule.
        self._unanswered: tuple[memoryview, _Asked | None] | None = None

    @override
    def take(self, frame: RequestFrame, context: Context) -> HeldBuffers | None:
        """Answer everything, or nothing."""
        asked = self._asked(frame, context)
        memory = context.services.memory_reads
        read = Unread.NOT_KNOWN if asked is None or asked.is_large else asked.read(memory)
        if asked is None or isinstance(read, Unread):
            self._unanswered = frame.data, asked
            return None
        try:
            _begin(asked.reads, read, memory)
        except KafkaError:
            return None  # the session is no more, as the longer way finds, too
        return _answer(asked.reads, *read, frame, context)

    @override
    async def take_in_turn(self, frame: RequestFrame, context: Context) -> HeldBuffers | Struct | None:
        """Wait until there is enough; what memory does not tell by then is asked for on the longer way."""
        asked = self._asked_before(frame, context)
        if asked is None:
            return None
        memory, limits = context.services.memory_reads, asked.limits
        read = Unread.NOT_ENOUGH if asked.is_large else asked.read(memory)
        if read is Unread.NOT_KNOWN:
            return None
        _begin(asked.reads, read, memory)
        loop = asyncio.get_running_loop()
        longest = min(limits.max_wait, context.services.settings.max_wait_ms)
        until = loop.time() + longest / 1000
        if read is Unread.NOT_ENOUGH:
            read = await memory.read_in_time(
                asked.topics,
                max_bytes=limits.max_bytes,
                min_bytes=limits.min_bytes,
                until=until,
                was_read=not asked.is_large,
            )
        if not isinstance(read, Unread):
            return _answer(asked.reads, *read, frame, context)
        left = max(round((until - loop.time()) * 1000), 0)
        return await fetch_answer.answer(asked.reads, limits._replace(max_wait=left), context)

    def _asked_before(self, frame: RequestFrame, context: Context) -> _Asked | None:
        """As `_asked`, which `take` has found out a moment ago, unless others came in between."""
        before, self._unanswered = self._unanswered, None
        if before is not None and before[0] is frame.data:
            asked = before[1]
            if asked is None or asked.reads.is_current:
                return asked
        return self._asked(frame, context)

    def _asked(self, frame: RequestFrame, context: Context) -> _Asked | None:
        """What the request asks for, if it is of the usual kind."""
        if context.version < LOWEST:
            return None
        request = self._survey.read(frame.data, frame.position, context.version)
        services = context.services
        if request is None or request.max_wait <= 0:
            return None
        if request.rack and request.rack != (services.brokers.own.rack or "").encode():
            return None  # it may be sent to another agent
        by_id = context.version >= IDENTIFIERS_SINCE
        try:
            reads = services.fetch_sessions.find(_in_session(request, frame.data, by_id=by_id))
        except KafkaError:
            return None
        topics = _topics(reads.wanted, services.directory, by_id=by_id)
        if not topics:
            return None
        limits = FetchLimits(
            request.max_wait, request.min_bytes, max(request.max_bytes, 0), request.rack.decode()
        )
        return _Asked(reads, topics, limits)


def _begin(reads: FetchContext, read: tuple[Sequence[Remembered], int] | Unread, memory: MemoryReads) -> None:
    """Take the request; where its session refuses it, what was read is let go of."""
    try:
        reads.begin()
    except BaseException:
        if not isinstance(read, Unread):
            memory.release(read[1])
        raise


def _in_session(request: FetchRequest, data: memoryview, *, by_id: bool) -> SessionRequest:
    """What the request says of its session and of partitions."""
    starts, ends, partitions, epochs, offsets, most = request.wanted
    spans = dict(zip(starts, ends, strict=True))
    names = {start: bytes(data[start:end]) for start, end in spans.items()}
    keys = zip(map(names.__getitem__, starts), partitions, strict=True)
    parts = map(_wanted, zip(partitions, offsets, most, epochs, strict=True))
    wanted: dict[Key, Wanted] = dict(zip(keys, parts, strict=True))
    forgotten = [(bytes(data[start:end]), partition) for start, end, partition in request.forgotten]
    return SessionRequest(request.session_id, request.session_epoch, wanted, forgotten, by_id)


def _topics(
    wanted: Mapping[Key, Wanted], directory: TopicDirectory, *, by_id: bool
) -> list[tuple[Topic, list[Wanted]]] | None:
    """What is wanted by topic, in its order; None when anything is not as it should be."""
    runs: list[tuple[Topic, list[Wanted]]] = []
    found: dict[bytes, Topic] = {}
    last, partitions = b"", 0
    parts: list[Wanted] = []
    for (name, partition), each in wanted.items():
        if name != last or not runs:
            topic = found.get(name)
            if topic is None:
                topic = directory.fresh_by_id(UUID(bytes=name)) if by_id else directory.fresh(_text(name))
                if topic is None:
                    return None
                found[name] = topic
            last, partitions, parts = name, topic.partition_count, []
            runs.append((topic, parts))
        if not 0 <= partition < partitions or each.leader_epoch > LEADER_EPOCH:
            return None
        parts.append(each)
    return runs


def _seen(read: Remembered) -> Seen:
    state, records = read
    return _made_seen((state.high_watermark, state.log_start_offset, records is not None, False, False))


def _text(name: bytes) -> str:
    return str(name, "utf-8", "replace")


def _answer(
    reads: FetchContext, found: Sequence[Remembered], size: int, frame: RequestFrame, context: Context
) -> HeldBuffers:
    """The answer's bytes, which hold `size` bytes of the memory for fetches."""
    release = partial(context.services.memory_reads.release, size)
    try:
        buffers = _buffers(reads, found, frame, context.version)
    except BaseException:
        release()
        raise
    return HeldBuffers(buffers, [release])


def _buffers(reads: FetchContext, found: Sequence[Remembered], frame: RequestFrame, version: int) -> Buffers:
    session_id, news = reads.answered(map(_seen, found))
    topics: dict[bytes, list[tuple[int, Remembered]]] = {}
    told = zip(reads.wanted, found, strict=True)
    last: bytes | None = None
    parts: list[tuple[int, Remembered]] = []
    for (name, partition), each in told if news is None else compress(told, news):
        if name is not last:
            last, parts = name, topics.setdefault(name, [])
        parts.append((partition, each))
    out = Output()
    out.tail += bytes(4) + frame.correlation_id.to_bytes(4, "big", signed=True)
    _write(out, session_id, topics, version)
    buffers = out.buffers()
    first = buffers[0]
    assert isinstance(first, bytearray)
    first[:4] = (len(out) - 4).to_bytes(4, "big")
    return buffers


def _write(
    out: Output, session_id: int, topics: Mapping[bytes, Sequence[tuple[int, Remembered]]], version: int
) -> None:
    """The header's end and the body; the same bytes that the schema of the response gives."""
    is_flexible = version >= _FLEXIBLE_SINCE
    if is_flexible:
        out.tail.append(0)
    out.tail += _HEAD.pack(0, 0, session_id)
    write_count(out, len(topics), is_flexible=is_flexible)
    for name, parts in topics.items():
        if version < IDENTIFIERS_SINCE:
            write_encoded(out, name, is_flexible=is_flexible)
        else:
            out.tail += name
        write_count(out, len(parts), is_flexible=is_flexible)
        if is_flexible:
            _write_flexible(out, parts)
            out.tail.append(0)
        else:
            _write_older(out, parts, version)
    if is_flexible:
        out.tail.append(0)


def _write_flexible(out: Output, parts: Sequence[tuple[int, Remembered]]) -> None:
    for index, (state, read) in parts:
        out.tail += _FLEXIBLE.pack(
            index, 0, state.high_watermark, state.last_stable_offset, state.log_start_offset, 1, -1
        )
        if read is None:
            out.tail += _NO_RECORDS
        else:
            write_varint(out, read.size + 1)
            out.add(read.batches, read.size)
            out.tail.append(0)


def _write_older(out: Output, parts: Sequence[tuple[int, Remembered]], version: int) -> None:
    layout, rest = (_WITH_RACKS, (0, -1)) if version >= _RACKS_SINCE else (_OLDEST, (0,))
    for index, (state, read) in parts:
        bounds = state.high_watermark, state.last_stable_offset, state.log_start_offset
        out.tail += layout.pack(index, 0, *bounds, *rest, 0 if read is None else read.size)
        if read is not None:
            out.add(read.batches, read.size)
