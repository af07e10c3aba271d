"""Looking for batches in a window of a log's file, which may begin anywhere but at a batch and end anywhere.

Only headers are looked at; a batch's checksum is for those who read what is in it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import njit

from object_format.kernels.batches.layout import (
    BASE_OFFSET,
    BATCH_LENGTH,
    BATCH_OVERHEAD,
    LAST_OFFSET_DELTA,
    LENGTH_OVERHEAD,
    MAX_TIMESTAMP,
)
from object_format.kernels.runtime.primitives import load_i32, load_i64

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers, Rows

FOUND = 0
MORE = 1
MALFORMED = 2
"""What `find_batch` says: at the position is the batch; the window ends there; no batch can be there."""

_NEVER = -(1 << 63)


@njit(nogil=True, cache=True)
def find_batch(data: ByteArray, offset: Integer, timestamp: Integer) -> Integers:
    """The first batch that reaches `offset` and has a max timestamp of at least `timestamp`.

    Status, position and size of the batch; its header is in the window as a whole, its end need not be.
    """
    at = 0
    while data.size - at >= BATCH_OVERHEAD:
        size = load_i32(data, at + BATCH_LENGTH) + LENGTH_OVERHEAD
        delta = load_i32(data, at + LAST_OFFSET_DELTA)
        if size < BATCH_OVERHEAD or delta < 0:
            return MALFORMED, at, 0
        if (
            load_i64(data, at + BASE_OFFSET) + delta >= offset
            and load_i64(data, at + MAX_TIMESTAMP) >= timestamp
        ):
            return FOUND, at, size
        at += size
    return MORE, at, 0


@njit(nogil=True, cache=True)
def find_max_timestamp(data: ByteArray, timestamp: Integer, offset: Integer) -> Integers:
    """Status and position of where the window ends; the largest max timestamp above `timestamp`, its offset.

    Without one, `timestamp` and `offset` come back. The offset is that of the last record of the first batch
    that has the largest timestamp.
    """
    at = 0
    while data.size - at >= BATCH_OVERHEAD:
        size = load_i32(data, at + BATCH_LENGTH) + LENGTH_OVERHEAD
        delta = load_i32(data, at + LAST_OFFSET_DELTA)
        if size < BATCH_OVERHEAD or delta < 0:
            return MALFORMED, at, timestamp, offset
        if load_i64(data, at + MAX_TIMESTAMP) > timestamp:
            timestamp = load_i64(data, at + MAX_TIMESTAMP)
            offset = load_i64(data, at + BASE_OFFSET) + delta
        at += size
    return MORE, at, timestamp, offset


@njit(nogil=True, cache=True)
def end_of_whole_batches(
    data: ByteArray, start: Integer, end_offset: Integer, max_bytes: Integer
) -> Integers:
    """Where the batches from `start` on end that are whole, below `end_offset` and fit `max_bytes`.

    The end, and the offset behind the last of them, -1 if there is none. The first batch may exceed
    `max_bytes`.
    """
    at = start
    next_offset = -1
    while data.size - at >= BATCH_OVERHEAD:
        size = load_i32(data, at + BATCH_LENGTH) + LENGTH_OVERHEAD
        last = load_i64(data, at + BASE_OFFSET) + load_i32(data, at + LAST_OFFSET_DELTA)
        if size < BATCH_OVERHEAD or size > data.size - at or last >= end_offset:
            break
        if at > start and at + size - start > max_bytes:
            break
        next_offset = last + 1
        at += size
    return at, next_offset


@njit(nogil=True, cache=True)
def choose_index_entries(rows: Rows, interval: Integer, state: IntArray, entries: IntArray) -> Integer:
    """Which of the batches get index entries; how many do.

    `state` is int64: bytes since the last entry, position of the first batch in the file, largest timestamp
    so far and its offset; all are moved on. Row i of `entries` (int64, four columns) becomes last offset,
    position, largest timestamp and its offset. A batch has an entry when more than `interval` bytes came
    since the last one.
    """
    count = 0
    since, position, timestamp, offset = state[0], state[1], state[2], state[3]
    for b in range(rows.size):
        last = rows[b].base_offset + rows[b].last_offset_delta
        if rows[b].max_timestamp > timestamp:
            timestamp = rows[b].max_timestamp
            offset = last
        if since > interval:
            entries[count, 0] = last
            entries[count, 1] = position
            entries[count, 2] = timestamp
            entries[count, 3] = offset
            count += 1
            since = 0
        since += rows[b].size
        position += rows[b].size
    state[0], state[1], state[2], state[3] = since, position, timestamp, offset
    return count
