"""A whole Fetch request in one call: which offsets of which partitions are wanted, in which session.

Like that of Produce, the survey only reads requests of the usual kind, and says of all others that they are
not for it. Versions 10 to 18, of consumers.
"""

from __future__ import annotations

from struct import Struct as Layout
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numba import njit

from agent.kafka.fast_path.parser_primitives import length_at, untagged
from object_format.buffers import readable
from object_format.kernels.runtime.intrinsics import borrowed
from object_format.kernels.runtime.primitives import load_i32, load_i64

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers

LOWEST: Final = 10
"""The first version whose readers know every codec, and the fields that the survey counts on."""

COLUMNS: Final = 6
"""Where the topic's name (or identifier) begins and ends, partition, epoch, offset, bytes (0 or more)."""

_FLEXIBLE_SINCE: Final = 12
_IDENTIFIERS_SINCE: Final = 13
_RACKS_SINCE: Final = 11
_NO_REPLICA_SINCE: Final = 15
_IDENTIFIER_BYTES: Final = 16
_NO_ROWS: Final = (-1, 0, 0, 0, 0)
_LIMITS: Final = Layout(">iiibii")
_LIMITS_BYTES: Final = 21


class FetchRequest(NamedTuple):
    """What is wanted: `COLUMNS` lists with a number for each partition; `forgotten` has three for each."""

    wanted: list[list[int]]
    forgotten: list[list[int]]
    max_wait: int
    min_bytes: int
    max_bytes: int
    session_id: int
    session_epoch: int
    rack: bytes


@njit(nogil=True, cache=True)
def _partitions(data: ByteArray, at: Integer, version: Integer, room: Integer) -> Integers:
    """Where a topic's name begins and ends, how many partitions follow, and where; -1 for no such thing."""
    is_flexible = version >= _FLEXIBLE_SINCE
    length, name = (
        (_IDENTIFIER_BYTES, at) if version >= _IDENTIFIERS_SINCE else length_at(data, at, is_flexible, 2)
    )
    if name < 0 or length < 0:
        return 0, 0, 0, -1
    partitions, at = length_at(data, name + length, is_flexible, 4)
    if at < 0 or partitions < 0 or partitions > room:
        return 0, 0, 0, -1
    return name, name + length, partitions, at


@njit(nogil=True, cache=True)
def _topic(data: ByteArray, at: Integer, version: Integer, rows: IntArray, count: Integer) -> Integers:
    """One topic's partitions into the rows from `count` on: how many there are now, and where it ends."""
    is_flexible = version >= _FLEXIBLE_SINCE
    name, named, partitions, at = _partitions(data, at, version, rows.shape[0] - count)
    if at < 0:
        return count, -1
    # The offset's last epoch stands between it and the log start, since version 12.
    between = 4 if is_flexible else 0
    for _ in range(partitions):
        end = at + 28 + between
        if end > data.size:
            return count, -1
        row = rows[count]
        row[0] = name
        row[1] = named
        row[2] = load_i32(data, at)
        row[3] = load_i32(data, at + 4)
        row[4] = load_i64(data, at + 8)
        row[5] = max(load_i32(data, end - 4), 0)
        count += 1
        at = untagged(data, end, is_flexible)
        if at < 0:
            return count, -1
    return count, untagged(data, at, is_flexible)


@njit(nogil=True, cache=True)
def _forgotten(data: ByteArray, at: Integer, version: Integer, rows: IntArray, count: Integer) -> Integers:
    """As `_topic`, of one whose partitions the session shall forget."""
    name, named, partitions, at = _partitions(data, at, version, rows.shape[0] - count)
    if at < 0 or partitions * 4 > data.size - at:
        return count, -1
    for _ in range(partitions):
        row = rows[count]
        row[0] = name
        row[1] = named
        row[2] = load_i32(data, at)
        count += 1
        at += 4
    return count, untagged(data, at, version >= _FLEXIBLE_SINCE)


@njit(nogil=True, cache=True)
def _limits(data: ByteArray, at: Integer, version: Integer) -> Integer:
    """Where a consumer's longest wait stands, with its other limits behind it; -1 for another replica."""
    if version < _NO_REPLICA_SINCE:
        if at + 4 > data.size or load_i32(data, at) != -1:
            return -1
        at += 4
    return at if at + _LIMITS_BYTES <= data.size else -1


@njit(nogil=True, cache=True)
def _rack(data: ByteArray, at: Integer, version: Integer) -> Integers:
    """Behind the topics: where the rack's name begins and ends, if nothing else is there; -1 otherwise."""
    is_flexible = version >= _FLEXIBLE_SINCE
    length, rack = np.int64(0), at
    if version >= _RACKS_SINCE:
        length, rack = length_at(data, at, is_flexible, 2)
    end = rack + length
    if rack < 0 or length < 0 or end > data.size or untagged(data, end, is_flexible) < 0:
        return -1, -1
    return rack, end


@njit(nogil=True, cache=True)
def _topics(
    data: ByteArray, at: Integer, version: Integer, rows: IntArray, count: Integer, forgotten: Integer
) -> Integers:
    """All topics, or all to forget: how many rows there are now, and where they end; -1 for no such thing."""
    topics, at = length_at(data, at, version >= _FLEXIBLE_SINCE, 4)
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
    """How many partitions there are, and how many to forget; where the limits and the rack's name lie.

    -1 partitions where it is not a whole request of a consumer with at most as many partitions as rows.
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
    """Surveys requests for at most `max_partitions`. Belongs to one thread."""

    def __init__(self, max_partitions: int) -> None:
        self._rows = np.empty((max_partitions, COLUMNS), np.int64)

    def read(self, frame: memoryview, position: int, version: int) -> FetchRequest | None:
        """The request whose body begins at `position`; None for one that is not for the survey."""
        wanted, forgotten, limits, rack, end = parse_request(readable(frame), position, version, self._rows)
        if wanted < 0:
            return None
        max_wait, min_bytes, max_bytes, _, session_id, epoch = _LIMITS.unpack_from(frame, limits)
        return FetchRequest(
            self._rows[:wanted].T.tolist(),
            self._rows[wanted : wanted + forgotten, :3].tolist() if forgotten else [],
            max_wait,
            min_bytes,
            max_bytes,
            session_id,
            epoch,
            bytes(frame[rack:end]),
        )
