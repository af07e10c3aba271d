"""Iterates over the batch headers of a buffer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.errors import Fault
from object_format.kernels.batches.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    BATCH_LENGTH,
    BATCH_OVERHEAD,
    BATCH_ROW,
    CODEC_MASK,
    CRC,
    KEEP_LEADER_EPOCH,
    LAST_CODEC,
    LAST_OFFSET_DELTA,
    LEADER_EPOCH,
    LENGTH_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
    SMALLEST_RECORD,
)
from object_format.kernels.runtime.intrinsics import borrowed, prefetch
from object_format.kernels.runtime.primitives import load_i16, load_i32, load_i64, load_u32, store

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers, Rows

MAX_OFFSET = 1 << 62
"""Offsets below this limit can be added without overflow."""

_AHEAD = 12
"""Batches ahead of the current one whose memory is prefetched, assuming that batches have similar sizes."""

_LINE = 64
_SMALL_BYTES = 1024
_REACH = 4096
"""Small batches are prefetched completely, this number of bytes ahead, as their records are read next."""

_NONE = int(Fault.NONE)
_TRUNCATED = int(Fault.TRUNCATED)
_BATCH_LENGTH = int(Fault.BATCH_LENGTH)
_MAGIC = int(Fault.MAGIC)
_CODEC = int(Fault.CODEC)
_RECORD_COUNT = int(Fault.RECORD_COUNT)
_LAST_OFFSET_DELTA = int(Fault.LAST_OFFSET_DELTA)
_OFFSET_RANGE = int(Fault.OFFSET_RANGE)


@njit(nogil=True, cache=True)
def check_counts(data: ByteArray, at: Integer, size: Integer) -> Integer:
    """Return the fault in codec, record count or last offset delta of a complete batch."""
    codec = load_i16(data, at + ATTRIBUTES) & CODEC_MASK
    count = load_i32(data, at + RECORD_COUNT)
    last_delta = load_i32(data, at + LAST_OFFSET_DELTA)
    if codec > LAST_CODEC:
        return _CODEC
    if count < 0 or (codec == 0 and count * SMALLEST_RECORD > size - BATCH_OVERHEAD):
        return _RECORD_COUNT
    if last_delta < 0 or last_delta < count - 1:
        return _LAST_OFFSET_DELTA
    return _NONE


@njit(nogil=True, cache=True)
def check_header(data: ByteArray, at: Integer) -> Integers:
    """Return the fault that the header of the batch at `at` shows, and the batch's size."""
    if data.size - at < BATCH_OVERHEAD:
        return _TRUNCATED, 0
    size = load_i32(data, at + BATCH_LENGTH) + LENGTH_OVERHEAD
    if size < BATCH_OVERHEAD:
        return _BATCH_LENGTH, size
    if data[at + MAGIC] != 2:
        return _MAGIC, size
    if size > data.size - at:
        return _TRUNCATED, size
    return check_counts(data, at, size), size


@njit(nogil=True, cache=True)
def count_batches(data: ByteArray) -> Integers:
    """Return the number of valid headers from the start; then fault and position of the first invalid one."""
    data = borrowed(data)
    at = 0
    count = 0
    while at < data.size:
        fault, size = check_header(data, at)
        if fault != _NONE:
            return count, fault, at
        if size < _SMALL_BYTES:
            for line in range(at + _REACH, min(at + _REACH + size, data.size), _LINE):
                prefetch(data, line)
        else:
            prefetch(data, at + _AHEAD * size)
        count += 1
        at += size
    return count, _NONE, at


@njit(nogil=True, cache=True)
def read_headers(data: ByteArray, rows: Rows) -> None:
    """Fill one row for each batch that `count_batches` has counted."""
    data = borrowed(data)
    rows = borrowed(rows)
    at = 0
    for i in range(rows.size):
        row = rows[i]
        size = load_i32(data, at + BATCH_LENGTH) + LENGTH_OVERHEAD
        row.position = at
        row.size = size
        row.base_offset = load_i64(data, at + BASE_OFFSET)
        row.crc = load_u32(data, at + CRC)
        row.attributes = load_i16(data, at + ATTRIBUTES)
        row.last_offset_delta = load_i32(data, at + LAST_OFFSET_DELTA)
        row.base_timestamp = load_i64(data, at + BASE_TIMESTAMP)
        row.max_timestamp = load_i64(data, at + MAX_TIMESTAMP)
        row.producer_id = load_i64(data, at + PRODUCER_ID)
        row.producer_epoch = load_i16(data, at + PRODUCER_EPOCH)
        row.base_sequence = load_i32(data, at + BASE_SEQUENCE)
        row.record_count = load_i32(data, at + RECORD_COUNT)
        row.records_start = at + BATCH_OVERHEAD
        row.records_end = at + size
        row.lowest_timestamp = 0
        row.highest_timestamp = 0
        row.keyless = 0
        row.fault = _NONE
        row.fault_position = at
        at += size


@njit(nogil=True, cache=True)
def sum_up(rows: Rows) -> Integers:
    """Return the number of compressed batches, and the total number of records."""
    rows = borrowed(rows)
    compressed = 0
    records = 0
    for b in range(rows.size):
        compressed += int(rows[b].attributes & CODEC_MASK != 0)
        records += rows[b].record_count
    return compressed, records


@njit(nogil=True, cache=True)
def compressed_among(rows: Rows, indexes: IntArray) -> Integer:
    """Return the number of compressed batches in rows[indexes]."""
    rows, indexes = borrowed(rows), borrowed(indexes)
    compressed = 0
    for i in range(indexes.size):
        compressed += int(rows[indexes[i]].attributes & CODEC_MASK != 0)
    return compressed


@njit(nogil=True, cache=True)
def first_out_of_order(rows: Rows, shift: Integer, lowest: Integer) -> Integer:
    """Return the first batch that overlaps the previous one or is outside [0, 2^62); -1 if there is none."""
    rows = borrowed(rows)
    for b in range(rows.size):
        base = rows[b].base_offset + shift
        if base < lowest or base >= MAX_OFFSET:
            return b
        lowest = base + rows[b].last_offset_delta + 1
    return -1


@njit(nogil=True, cache=True)
def scan_ordered(data: ByteArray, shift: Integer, lowest: Integer) -> Integers:
    """Return rows of batches with offsets ascending from `lowest` on, their first offset and the next offset.

    Also returns the number of compressed batches and of records, and fault and position of an invalid batch.
    """
    data = borrowed(data)
    count, fault, position = count_batches(data)
    rows = np.empty(count, BATCH_ROW)
    read_headers(data, rows)
    first = next_offset = np.int64(lowest)
    compressed = records = 0
    if count and fault == _NONE:
        disorder = first_out_of_order(rows, shift, lowest)
        if disorder >= 0:
            fault, position = _OFFSET_RANGE, rows[disorder].position
        compressed, records = sum_up(rows)
        first = rows[0].base_offset + shift
        next_offset = rows[count - 1].base_offset + rows[count - 1].last_offset_delta + 1 + shift
    return rows, first, next_offset, compressed, records, fault, position


@njit(nogil=True, cache=True)
def shift_offsets(data: ByteArray, shift: Integer, leader_epoch: Integer) -> Integers:
    """Add `shift` to every base offset and set the leader epoch, in place; return fault and position.

    `KEEP_LEADER_EPOCH` leaves the epochs as they are.
    """
    data = borrowed(data)
    count, fault, position = count_batches(data)
    if fault != _NONE:
        return fault, position
    at = 0
    for _ in range(count):
        store(data, at + BASE_OFFSET, load_i64(data, at + BASE_OFFSET) + shift, 8)
        if leader_epoch != KEEP_LEADER_EPOCH:
            store(data, at + LEADER_EPOCH, leader_epoch, 4)
        at += load_i32(data, at + BATCH_LENGTH) + LENGTH_OVERHEAD
    return _NONE, at


@njit(nogil=True, cache=True)
def assign_offsets(data: ByteArray, first_offset: Integer, leader_epoch: Integer) -> Integers:
    """Assign consecutive offsets from `first_offset` on, in place; return fault, position and next offset."""
    data = borrowed(data)
    count, fault, position = count_batches(data)
    if fault != _NONE:
        return fault, position, first_offset
    at = 0
    for _ in range(count):
        store(data, at + BASE_OFFSET, first_offset, 8)
        store(data, at + LEADER_EPOCH, leader_epoch, 4)
        first_offset += load_i32(data, at + LAST_OFFSET_DELTA) + 1
        at += load_i32(data, at + BATCH_LENGTH) + LENGTH_OVERHEAD
    return _NONE, at, first_offset


@njit(nogil=True, cache=True)
def find_overlap(
    data: ByteArray, first_offset: Integer, last_offset: Integer, shift: Integer, max_bytes: Integer
) -> Integers:
    """Return a fault, and the byte range of the batches that overlap [first_offset, last_offset].

    Batches must be in offset order. The range ends before it exceeds `max_bytes`, but contains at least one
    overlapping batch if there is one. After a fault, the start of the range is its position.
    """
    data = borrowed(data)
    at = 0
    start = -1
    while at < data.size:
        fault, size = check_header(data, at)
        if fault != _NONE:
            return fault, at, at
        base = load_i64(data, at + BASE_OFFSET) + shift
        if base > last_offset:
            break
        if base + load_i32(data, at + LAST_OFFSET_DELTA) >= first_offset:
            if start < 0:
                start = at
            elif at + size - start > max_bytes:
                break
        at += size
    if start < 0:
        return _NONE, at, at
    return _NONE, start, at
