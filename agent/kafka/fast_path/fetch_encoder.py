"""The answer to a Fetch request that memory answered: the same bytes that its schema gives."""

from __future__ import annotations

from itertools import compress
from operator import itemgetter
from struct import Struct as Layout
from typing import TYPE_CHECKING, TypeAlias

from agent.kafka.codec.writing import Output, write_count, write_encoded, write_varint
from agent.kafka.fetch_response import TOPIC_IDS_SINCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent.kafka.codec.writing import Buffers
    from agent.kafka.fast_path.fetch_targets import Runs
    from agent.read.memory_reads import MemoryResult

_RACKS_SINCE, _FLEXIBLE_SINCE = 11, 12
# Throttling, error, session.
_HEAD = Layout(">ihi")
# Index, error, high watermark, last stable offset, log start, no aborted transactions, no other replica.
_FLEXIBLE = Layout(">ihqqqBi")
_WITH_RACKS = Layout(">ihqqqiii")
_OLDEST = Layout(">ihqqqii")
# Their length and one, and no tagged fields.
_NO_RECORDS = b"\x01\0"

_Topics: TypeAlias = "Mapping[bytes, Sequence[tuple[int, MemoryResult]]]"
_partition_of = itemgetter(0)


def by_topic(runs: Runs, found: Iterable[MemoryResult], news: Iterable[bool] | None) -> _Topics:
    """What was found of each partition, and is to be told, by the topic's name."""
    topics: dict[bytes, list[tuple[int, MemoryResult]]] = {}
    found, news = iter(found), None if news is None else iter(news)
    for name, (_, parts) in zip(runs.names, runs.topics, strict=True):
        # The last one of `parts` ends it before more is taken of the others.
        told = zip(map(_partition_of, parts), found, strict=False)
        topics.setdefault(name, []).extend(told if news is None else compress(told, news))
    return topics if news is None else {name: parts for name, parts in topics.items() if parts}


def write_answer(session_id: int, topics: _Topics, correlation_id: int, version: int) -> Buffers:
    """A whole response frame, its length included."""
    out = Output()
    out.tail += bytes(4) + correlation_id.to_bytes(4, "big", signed=True)
    is_flexible = version >= _FLEXIBLE_SINCE
    if is_flexible:
        out.tail.append(0)
    out.tail += _HEAD.pack(0, 0, session_id)
    write_count(out, len(topics), is_flexible=is_flexible)
    for name, parts in topics.items():
        if version < TOPIC_IDS_SINCE:
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
    buffers = out.buffers()
    first = buffers[0]
    assert isinstance(first, bytearray)
    first[:4] = (len(out) - 4).to_bytes(4, "big")
    return buffers


def _write_flexible(out: Output, parts: Sequence[tuple[int, MemoryResult]]) -> None:
    pack = _FLEXIBLE.pack
    for index, (state, read) in parts:
        out.tail += pack(
            index, 0, state.high_watermark, state.last_stable_offset, state.log_start_offset, 1, -1
        )
        if read is None:
            out.tail += _NO_RECORDS
        else:
            batches, size, _ = read
            write_varint(out, size + 1)
            out.add(batches, size)
            out.tail.append(0)


def _write_older(out: Output, parts: Sequence[tuple[int, MemoryResult]], version: int) -> None:
    layout, rest = (_WITH_RACKS, (0, -1)) if version >= _RACKS_SINCE else (_OLDEST, (0,))
    for index, (state, read) in parts:
        bounds = state.high_watermark, state.last_stable_offset, state.log_start_offset
        out.tail += layout.pack(index, 0, *bounds, *rest, 0 if read is None else read.size)
        if read is not None:
            out.add(read.batches, read.size)
