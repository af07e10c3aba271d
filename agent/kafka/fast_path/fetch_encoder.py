"""Encoder of Fetch responses whose partitions all succeeded: the same bytes that the schema gives."""

from __future__ import annotations

from itertools import compress
from operator import itemgetter
from struct import Struct as Layout
from typing import TYPE_CHECKING, TypeAlias

from agent.kafka.codec.writing import (
    Output,
    begin_response,
    finish_response,
    write_count,
    write_encoded,
    write_varint,
)
from agent.kafka.fetch_response import TOPIC_IDS_SINCE

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from agent.kafka.codec.writing import Buffers
    from agent.kafka.fast_path.fetch_targets import FetchTargets
    from agent.read.memory_reads import MemoryResult

_RACKS_SINCE, _FLEXIBLE_SINCE = 11, 12
# Throttle time, error code, session id.
_HEAD = Layout(">ihi")
# Index, error code, high watermark, last stable offset, log start offset, no aborted transactions, no
# preferred replica.
_FLEXIBLE = Layout(">ihqqqBi")
_WITH_RACKS = Layout(">ihqqqiii")
_OLDEST = Layout(">ihqqqii")
# A compact length of 0, and no tagged fields.
_NO_RECORDS = b"\x01\0"

_TopicReads: TypeAlias = "Mapping[bytes, Sequence[tuple[int, MemoryResult]]]"
_partition_of = itemgetter(0)


def group_by_topic(
    targets: FetchTargets, found: Iterable[MemoryResult], included: Iterable[bool] | None
) -> _TopicReads:
    """Group what was read by topic name, without the partitions that the session leaves out."""
    topics: dict[bytes, list[tuple[int, MemoryResult]]] = {}
    found, included = iter(found), None if included is None else iter(included)
    for name, (_, parts) in zip(targets.names, targets.topics, strict=True):
        # `zip` stops at the end of `parts` before it takes another item of `found`.
        reads = zip(map(_partition_of, parts), found, strict=False)
        topics.setdefault(name, []).extend(reads if included is None else compress(reads, included))
    return topics if included is None else {name: parts for name, parts in topics.items() if parts}


def encode_response(session_id: int, topics: _TopicReads, correlation_id: int, version: int) -> Buffers:
    """Return a whole response frame, including its length."""
    is_flexible = version >= _FLEXIBLE_SINCE
    out = begin_response(correlation_id, is_flexible=is_flexible)
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
    return finish_response(out)


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
    layout, trailer = (_WITH_RACKS, (0, -1)) if version >= _RACKS_SINCE else (_OLDEST, (0,))
    for index, (state, read) in parts:
        bounds = state.high_watermark, state.last_stable_offset, state.log_start_offset
        out.tail += layout.pack(index, 0, *bounds, *trailer, 0 if read is None else read.size)
        if read is not None:
            out.add(read.batches, read.size)
