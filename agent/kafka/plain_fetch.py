"""Fetch requests that memory can answer at once, from their bytes to those of the answer.

That is a request without a session, of a client that may be made to wait and does not have to, for topics
that are known and partitions whose tail is held. All others go the way of `apis.fetch`; both ways lead to the
same answers, which a test compares.
"""

from __future__ import annotations

from functools import partial
from struct import Struct as Layout
from typing import TYPE_CHECKING
from uuid import UUID

from typing_extensions import override

from agent.kafka.api import AtOnce, HeldBuffers
from agent.kafka.codec.fetch_survey import LOWEST, FetchSurvey
from agent.kafka.codec.writing import Output, write_count, write_encoded, write_varint
from agent.kafka.topics import LEADER_EPOCH
from agent.memory_reads import Wanted

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agent.kafka.api import Context, RequestFrame
    from agent.memory_reads import Remembered
    from agent.topic_directory import TopicDirectory
    from catalog.model import Topic

_MOST_PARTITIONS = 4096
_RACKS_SINCE, _FLEXIBLE_SINCE, _IDENTIFIERS_SINCE = 11, 12, 13
# Throttling, error, session.
_HEAD = Layout(">ihi")
# Index, error, high watermark, last stable offset, log start, no aborted transactions, no other replica.
_FLEXIBLE = Layout(">ihqqqBi")
_WITH_RACKS = Layout(">ihqqqiii")
_OLDEST = Layout(">ihqqqii")


class PlainFetch(AtOnce):
    """Takes usual requests of one agent. Belongs to the event loop."""

    def __init__(self) -> None:
        self._survey = FetchSurvey(_MOST_PARTITIONS)

    @override
    def take(self, frame: RequestFrame, context: Context) -> HeldBuffers | None:
        """Answer everything, or nothing."""
        if context.version < LOWEST:
            return None
        asked = self._survey.read(frame.data, frame.position, context.version)
        services = context.services
        if asked is None or asked.max_wait <= 0 or not asked.rows:
            return None
        if asked.rack and asked.rack != (services.brokers.own.rack or "").encode():
            return None  # it may be sent to another agent
        topics = _topics(
            asked.rows, frame.data, services.directory, by_id=context.version >= _IDENTIFIERS_SINCE
        )
        if topics is None:
            return None
        memory = services.memory_reads
        read = memory.read(
            [(topic, parts) for _, topic, parts in topics],
            max_bytes=max(asked.max_bytes, 0),
            min_bytes=asked.min_bytes,
        )
        if read is None:
            return None
        found, size = read
        out = Output()
        out.tail += bytes(4) + frame.correlation_id.to_bytes(4, "big", signed=True)
        _write(out, topics, iter(found), context.version)
        buffers = out.buffers()
        first = buffers[0]
        assert isinstance(first, bytearray)
        first[:4] = (len(out) - 4).to_bytes(4, "big")
        return HeldBuffers(buffers, [partial(memory.release, size)])


_Asked = list[tuple[bytes, "Topic", list[Wanted]]]


def _topics(
    rows: Sequence[list[int]], data: memoryview, directory: TopicDirectory, *, by_id: bool
) -> _Asked | None:
    """What is wanted by topic, with the bytes that name it; None when anything is not as it should be."""
    topics: _Asked = []
    named_at, partitions = -1, 0
    parts: list[Wanted] = []
    for name_at, name_end, partition, epoch, offset, most in rows:
        if name_at != named_at:
            named_at, name = name_at, bytes(data[name_at:name_end])
            topic = directory.fresh_by_id(UUID(bytes=name)) if by_id else directory.fresh(_text(name))
            if topic is None:
                return None
            partitions, parts = topic.partition_count, []
            topics.append((name, topic, parts))
        if not 0 <= partition < partitions or epoch > LEADER_EPOCH:
            return None
        parts.append(Wanted(partition, offset, max(most, 0)))
    return topics if _is_each_once(topics) else None


def _text(name: bytes) -> str:
    return str(name, "utf-8", "replace")


def _is_each_once(topics: _Asked) -> bool:
    """Whether no topic and no partition is named a second time."""
    return len({name for name, _, _ in topics}) == len(topics) and all(
        len({part.partition for part in parts}) == len(parts) for _, _, parts in topics
    )


def _write(out: Output, topics: _Asked, found: Iterator[Remembered], version: int) -> None:
    """The header's end and the body; the same bytes that the schema of the response gives."""
    is_flexible = version >= _FLEXIBLE_SINCE
    if is_flexible:
        out.tail.append(0)
    out.tail += _HEAD.pack(0, 0, 0)
    write_count(out, len(topics), is_flexible=is_flexible)
    for name, _, parts in topics:
        if version < _IDENTIFIERS_SINCE:
            write_encoded(out, name, is_flexible=is_flexible)
        else:
            out.tail += name
        write_count(out, len(parts), is_flexible=is_flexible)
        for part in parts:
            _write_partition(out, part.partition, next(found), version)
        if is_flexible:
            out.tail.append(0)
    if is_flexible:
        out.tail.append(0)


def _write_partition(out: Output, index: int, read: Remembered, version: int) -> None:
    state, batches, size, _ = read
    bounds = state.high_watermark, state.last_stable_offset, state.log_start_offset
    if version >= _FLEXIBLE_SINCE:
        out.tail += _FLEXIBLE.pack(index, 0, *bounds, 1, -1)
        write_varint(out, size + 1)
        out.add(batches, size)
        out.tail.append(0)
        return
    if version >= _RACKS_SINCE:
        out.tail += _WITH_RACKS.pack(index, 0, *bounds, 0, -1, size)
    else:
        out.tail += _OLDEST.pack(index, 0, *bounds, 0, size)
    out.add(batches, size)
