"""Parser of common Fetch requests: one kernel call for all partitions.

It parses requests of consumers in versions 10 to 18, and rejects every other request without a reason, as the
Produce parser does.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numba import njit

from agent.kafka.codec.reading import MAX_STRING_BYTES
from agent.kafka.fast_path.parser_primitives import expect_no_tags, read_length
from object_format.buffers import readable
from object_format.kernels.runtime.intrinsics import borrowed
from object_format.kernels.runtime.primitives import load_i32, load_i64

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers

MIN_VERSION: Final = 10
"""The first version whose clients support every codec, and that has all fields that the parser expects."""

COLUMNS: Final = 6
"""Each row has the start and end of the topic's name (or id), partition, leader epoch, offset, max bytes."""

_FLEXIBLE_SINCE: Final = 12
_TOPIC_IDS_SINCE: Final = 13  # not imported: compiled code would not notice a change in another folder
_RACKS_SINCE: Final = 11
_NO_REPLICA_ID_SINCE: Final = 15
_TOPIC_ID_BYTES: Final = 16
_NO_ROWS: Final = (-1, 0, 0, 0, 0)
_LIMITS: Final = Layout(">iiibii")
_LIMITS_BYTES: Final = 21


class FetchRequest(NamedTuple):
    """A parsed request: `wanted` has `COLUMNS` lists with one number for each partition.

    `forgotten` has the first three numbers for each partition to remove from the session.
    """

    wanted: list[list[int]]
    forgotten: list[list[int]]
    max_wait: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int
    rack: bytes
    isolation_level: int = 0


@njit(nogil=True, cache=True)
def _partitions(data: ByteArray, at: Integer, version: Integer, max_rows: Integer) -> Integers:
    """Return the start and end of a topic's name, its partition count, and their start, or -1."""
    is_flexible = version >= _FLEXIBLE_SINCE
    length, name = (
        (_TOPIC_ID_BYTES, at) if version >= _TOPIC_IDS_SINCE else read_length(data, at, is_flexible, 2)
    )
    if name < 0 or length < 0:
        return 0, 0, 0, -1
    partitions, at = read_length(data, name + length, is_flexible, 4)
    if at < 0 or partitions < 0 or partitions > max_rows:
        return 0, 0, 0, -1
    return name, name + length, partitions, at


@njit(nogil=True, cache=True)
def _topic(data: ByteArray, at: Integer, version: Integer, rows: IntArray, count: Integer) -> Integers:
    """Parse one topic into the rows from `count` on; return the new row count and the topic's end, or -1."""
    is_flexible = version >= _FLEXIBLE_SINCE
    name, name_end, partitions, at = _partitions(data, at, version, rows.shape[0] - count)
    if at < 0:
        return count, -1
    # Version 12 added the epoch of the last fetched offset, between the fetch offset and the log start
    # offset.
    between = 4 if is_flexible else 0
    for _ in range(partitions):
        end = at + 28 + between
        if end > data.size:
            return count, -1
        row = rows[count]
        row[0] = name
        row[1] = name_end
        row[2] = load_i32(data, at)
        row[3] = load_i32(data, at + 4)
        row[4] = load_i64(data, at + 8)
        row[5] = max(load_i32(data, end - 4), 0)
        count += 1
        at = expect_no_tags(data, end, is_flexible)
        if at < 0:
            return count, -1
    return count, expect_no_tags(data, at, is_flexible)


@njit(nogil=True, cache=True)
def _forgotten(data: ByteArray, at: Integer, version: Integer, rows: IntArray, count: Integer) -> Integers:
    """Like `_topic`, for partitions to remove from the session."""
    name, name_end, partitions, at = _partitions(data, at, version, rows.shape[0] - count)
    if at < 0 or partitions * 4 > data.size - at:
        return count, -1
    for _ in range(partitions):
        row = rows[count]
        row[0] = name
        row[1] = name_end
        row[2] = load_i32(data, at)
        count += 1
        at += 4
    return count, expect_no_tags(data, at, version >= _FLEXIBLE_SINCE)


@njit(nogil=True, cache=True)
def _limits(data: ByteArray, at: Integer, version: Integer) -> Integer:
    """Return the position of the max wait time, which the other limits follow; -1 for a replica's fetch."""
    if version < _NO_REPLICA_ID_SINCE:
        if at + 4 > data.size or load_i32(data, at) != -1:
            return -1
        at += 4
    return at if at + _LIMITS_BYTES <= data.size else -1


@njit(nogil=True, cache=True)
def _rack(data: ByteArray, at: Integer, version: Integer) -> Integers:
    """Return the start and end of the rack's name, which ends the request; -1 if anything else follows."""
    is_flexible = version >= _FLEXIBLE_SINCE
    length, rack = np.int64(0), at
    if version >= _RACKS_SINCE:
        length, rack = read_length(data, at, is_flexible, 2)
    end = rack + length
    if rack < 0 or length < 0 or end > data.size or expect_no_tags(data, end, is_flexible) < 0:
        return -1, -1
    return rack, end


@njit(nogil=True, cache=True)
def _topics(
    data: ByteArray, at: Integer, version: Integer, rows: IntArray, count: Integer, forgotten: Integer
) -> Integers:
    """Parse all topics (or forgotten topics); return the new row count and their end, or -1."""
    topics, at = read_length(data, at, version >= _FLEXIBLE_SINCE, 4)
    if topics < 0:
        return count, -1
    for _ in range(topics):
        if at < 0:
            break
        if forgotten:
            count, at = _forgotten(data, at, version, rows, count)
        else:
            count, at = _topic(data, at, version, rows, count)
    return count, at


@njit(nogil=True, cache=True)
def parse_request(data: ByteArray, at: Integer, version: Integer, rows: IntArray) -> Integers:
    """Parse a request into one row for each partition.

    Returns the numbers of partitions and of forgotten partitions, the position of the limits, and the start
    and end of the rack's name. The number of partitions is -1 if the request is incomplete, does not come
    from a consumer, or has more partitions than there are rows.
    """
    data = borrowed(data)
    rows = borrowed(rows)
    limits = _limits(data, at, version)
    if limits < 0:
        return _NO_ROWS
    wanted, at = _topics(data, limits + _LIMITS_BYTES, version, rows, 0, False)
    if at < 0:
        return _NO_ROWS
    count, at = _topics(data, at, version, rows, wanted, True)
    if at < 0:
        return _NO_ROWS
    rack, end = _rack(data, at, version)
    if rack < 0:
        return _NO_ROWS
    return wanted, count - wanted, limits, rack, end


class FetchParser:
    """Parses requests of at most `max_partitions` partitions. Belongs to one thread."""

    def __init__(self, max_partitions: int) -> None:
        self._rows = np.empty((max_partitions, COLUMNS), np.int64)

    def read(self, frame: memoryview, position: int, version: int) -> FetchRequest | None:
        """Return the request whose body starts at `position`; None if it is unsupported or malformed."""
        wanted, forgotten, limits, rack, end = parse_request(readable(frame), position, version, self._rows)
        if wanted < 0:
            return None
        ended = self._rows[wanted : wanted + forgotten]  # unlike a wanted topic, it need not exist
        if forgotten and (ended[:, 1] - ended[:, 0]).max() > MAX_STRING_BYTES:
            return None
        max_wait, min_bytes, max_bytes, isolation_level, session_id, epoch = _LIMITS.unpack_from(
            frame, limits
        )
        return FetchRequest(
            self._rows[:wanted].T.tolist(),
            ended[:, :3].tolist() if forgotten else [],
            max_wait,
            min_bytes,
            max_bytes,
            session_id,
            epoch,
            bytes(frame[rack:end]),
            isolation_level,
        )
