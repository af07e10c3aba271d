"""A whole Fetch request in one call: which offsets of which partitions are wanted.

Like that of Produce, the survey only reads requests of the usual kind, and says of all others that they are
not for it. Versions 10 to 18, of clients without a session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from numba import njit

from agent.kafka.codec.survey import length_at, untagged
from object_format.buffers import readable
from object_format.kernels.machine import borrowed
from object_format.kernels.primitives import load_i32, load_i64

if TYPE_CHECKING:
    from object_format.kernels.signatures import ByteArray, Integer, Integers, Numbers

LOWEST: Final = 10
"""The first version whose readers know every codec, and the fields that the survey counts on."""

COLUMNS: Final = 6
"""Of a row: where the topic's name (or identifier) begins and ends, partition, epoch, offset, bytes."""

_FLEXIBLE_SINCE: Final = 12
_IDENTIFIERS_SINCE: Final = 13
_RACKS_SINCE: Final = 11
_NO_REPLICA_SINCE: Final = 15
_IDENTIFIER_BYTES: Final = 16
_NO_ROWS: Final = (-1, 0, 0, 0, 0, 0)


class FetchRequest(NamedTuple):
    """What is wanted; `rows` has `COLUMNS` numbers for each partition."""

    rows: list[list[int]]
    max_wait: int
    min_bytes: int
    max_bytes: int
    rack: bytes


@njit(nogil=True, cache=True)
def _topic(data: ByteArray, at: Integer, version: Integer, rows: Numbers, count: Integer) -> Integers:
    """One topic's partitions into the rows from `count` on: how many there are now, and where it ends."""
    is_flexible = version >= _FLEXIBLE_SINCE
    length, name = (
        (_IDENTIFIER_BYTES, at) if version >= _IDENTIFIERS_SINCE else length_at(data, at, is_flexible, 2)
    )
    if name < 0 or length < 0:
        return count, -1
    named = name + length
    partitions, at = length_at(data, named, is_flexible, 4)
    if at < 0 or partitions < 0 or partitions > rows.shape[0] - count:
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
        row[5] = load_i32(data, end - 4)
        count += 1
        at = untagged(data, end, is_flexible)
        if at < 0:
            return count, -1
    return count, untagged(data, at, is_flexible)


@njit(nogil=True, cache=True)
def _has_no_session(data: ByteArray, at: Integer, version: Integer) -> Integer:
    """Whether a consumer asks that wants no session, and where its longest wait stands."""
    if at + 25 > data.size or (version < _NO_REPLICA_SINCE and load_i32(data, at) != -1):
        return False, at
    if version < _NO_REPLICA_SINCE:
        at += 4
    is_so = at + 21 <= data.size and load_i32(data, at + 13) == 0 and load_i32(data, at + 17) == -1
    return is_so, at


@njit(nogil=True, cache=True)
def _rack(data: ByteArray, at: Integer, version: Integer) -> Integers:
    """Behind the topics: where the rack's name begins and ends, if nothing else is there; -1 otherwise."""
    is_flexible = version >= _FLEXIBLE_SINCE
    forgotten, at = length_at(data, at, is_flexible, 4)
    if at < 0 or forgotten != 0:
        return -1, -1
    length, rack = np.int64(0), at
    if version >= _RACKS_SINCE:
        length, rack = length_at(data, at, is_flexible, 2)
    end = rack + length
    if rack < 0 or length < 0 or end > data.size or untagged(data, end, is_flexible) < 0:
        return -1, -1
    return rack, end


@njit(nogil=True, cache=True)
def survey_request(data: ByteArray, at: Integer, version: Integer, rows: Numbers) -> Integers:
    """How many partitions there are, the longest wait, least and most bytes; where the rack's name lies.

    -1 partitions where it is not a whole request of a consumer without a session, with at most that many.
    """
    data = borrowed(data)
    rows = borrowed(rows)
    is_usual, limits = _has_no_session(data, at, version)
    if not is_usual:
        return _NO_ROWS
    topics, at = length_at(data, limits + 21, version >= _FLEXIBLE_SINCE, 4)
    if at < 0 or topics < 0:
        return _NO_ROWS
    count = 0
    for _ in range(topics):
        count, at = _topic(data, at, version, rows, count)
        if at < 0:
            return _NO_ROWS
    rack, end = _rack(data, at, version)
    if rack < 0:
        return _NO_ROWS
    return count, load_i32(data, limits), load_i32(data, limits + 4), load_i32(data, limits + 8), rack, end


class FetchSurvey:
    """Surveys requests for at most `most_partitions`. Belongs to one thread."""

    def __init__(self, most_partitions: int) -> None:
        self._rows = np.empty((most_partitions, COLUMNS), np.int64)

    def read(self, frame: memoryview, position: int, version: int) -> FetchRequest | None:
        """The request whose body begins at `position`; None for one that is not for the survey."""
        count, max_wait, min_bytes, max_bytes, rack, end = survey_request(
            readable(frame), position, version, self._rows
        )
        if count < 0:
            return None
        return FetchRequest(
            self._rows[:count].tolist(), max_wait, min_bytes, max_bytes, bytes(frame[rack:end])
        )
