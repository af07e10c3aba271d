"""Searches batches in a window of a log file, which starts at a batch and may end anywhere.

Only headers are read. Checksums are verified by readers of the records.
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
"""Results of `find_batch`: the batch is at the position; the window ends there; no batch can be there."""


@njit(nogil=True, cache=True)
def find_batch(data: ByteArray, offset: Integer, timestamp: Integer) -> Integers:
    """Find the first batch with a last offset from `offset` on and a max timestamp from `timestamp` on.

    Returns status, position and size of the batch. Its header is completely in the window, its end may not
    be.
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
    """Return status and position of the window's end, and the largest max timestamp with its offset.

    Only timestamps above `timestamp` count; otherwise `timestamp` and `offset` are returned. The offset is
    that of the last record of the first batch with the largest timestamp.
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
    """Return the end of the complete batches from `start` on, below `end_offset` and within `max_bytes`.

    Also returns the offset after the last of them, or -1. The first batch may exceed `max_bytes`.
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
    """Choose the batches that get index entries, and return their number.

    `state` is int64 and is updated: bytes since the last entry, file position of the first batch, largest
    timestamp so far and its offset. Row i of `entries` (int64, four columns) becomes last offset, position,
    largest timestamp and its offset. A batch gets an entry if more than `interval` bytes precede it since the
    last entry.
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
