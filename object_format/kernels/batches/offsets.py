"""Computes the offsets of the records of many batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.errors import Fault
from object_format.kernels.batches.headers import MAX_OFFSET, check_header
from object_format.kernels.batches.layout import BASE_OFFSET, LAST_OFFSET_DELTA, RECORD_COUNT
from object_format.kernels.batches.record_parser import parse_record
from object_format.kernels.runtime.intrinsics import borrowed
from object_format.kernels.runtime.primitives import load_i32, load_i64

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers, Rows

_NONE = int(Fault.NONE)
_OFFSET_RANGE = int(Fault.OFFSET_RANGE)
_OFFSET = int(Fault.RECORD_OFFSET)
_TRAILING = int(Fault.TRAILING_BYTES)


@njit(nogil=True, cache=True)
def full_ranges(data: ByteArray, at: Integer, shift: Integer, lowest: Integer, ranges: IntArray) -> Integers:
    """Write offset ranges without gaps to `ranges` (int64[any, 2]), until it is full.

    Starts with the batch at `at`. A range is the first and last absolute offset of adjacent batches that have
    a record at every offset. Offsets must ascend from `lowest` on. Returns a fault; its position or that of
    the next batch; the next offset; the number of ranges; and whether a batch has fewer records than offsets.
    """
    data, ranges = borrowed(data), borrowed(ranges)
    full = 0
    gapped = False
    while at < data.size:
        fault, size = check_header(data, at)
        if fault != _NONE:
            return fault, at, lowest, full, gapped
        first = load_i64(data, at + BASE_OFFSET) + shift
        if first < lowest or first >= MAX_OFFSET:
            return _OFFSET_RANGE, at, lowest, full, gapped
        last = first + load_i32(data, at + LAST_OFFSET_DELTA)
        if load_i32(data, at + RECORD_COUNT) != last - first + 1:
            gapped = True
        elif full > 0 and ranges[full - 1, 1] + 1 == first:
            ranges[full - 1, 1] = last
        elif full == len(ranges):
            break
        else:
            ranges[full, 0], ranges[full, 1] = first, last
            full += 1
        lowest = last + 1
        at += size
    return _NONE, at, lowest, full, gapped


@njit(nogil=True, cache=True)
def spread_ranges(ranges: IntArray, cursor: IntArray, offsets: IntArray, filled: Integer) -> Integer:
    """Append every offset of `ranges` until `offsets` is full; return the number of offsets.

    `cursor` is int64[2], initially zeros: the range, and the number of its offsets already appended. It is
    updated for the next call; its first element is `len(ranges)` at the end.
    """
    ranges, cursor, offsets = borrowed(ranges), borrowed(cursor), borrowed(offsets)
    i, done = cursor[0], cursor[1]
    while i < ranges.shape[0]:
        first = ranges[i, 0] + done
        count = min(ranges[i, 1] - first + 1, offsets.size - filled)
        for k in range(count):
            offsets[filled + k] = first + k
        filled += count
        if first + count <= ranges[i, 1]:
            done += count
            break
        i += 1
        done = 0
    cursor[0], cursor[1] = i, done
    return filled


@njit(nogil=True, cache=True)
def record_offsets(
    data: ByteArray,
    rows: Rows,
    indexes: IntArray,
    cursor: IntArray,
    shift: Integer,
    offsets: IntArray,
    filled: Integer,
) -> Integers:
    """Append the absolute offsets of the records of rows[indexes] until `offsets` (int64) is full.

    `cursor` is int64[4], initially zeros: index, record, position, and previous offset delta plus one. It is
    updated for the next call; its first element is `indexes.size` at the end. Returns a fault, its position,
    and the number of offsets.
    """
    data, rows, indexes = borrowed(data), borrowed(rows), borrowed(indexes)
    cursor, offsets = borrowed(cursor), borrowed(offsets)
    i, r, at, lowest = cursor[0], cursor[1], cursor[2], cursor[3]
    fault = _NONE
    while i < indexes.size:
        row = rows[indexes[i]]
        if r == 0:
            at, lowest = row.records_start, 0
        base = row.base_offset + shift
        limit = row.records_end
        record_count = row.record_count
        last = row.last_offset_delta
        while r < record_count and filled < offsets.size:
            fault, end, _body, _delta, _at, offset_delta, _key, _kl, _value, _vl, _headers = parse_record(
                data, at, limit
            )
            if fault == _NONE and (offset_delta < lowest or offset_delta > last):
                fault = _OFFSET
            if fault != _NONE:
                break
            offsets[np.uint64(filled)] = base + offset_delta
            filled += 1
            lowest = offset_delta + 1
            at = end
            r += 1
        if fault == _NONE and r == record_count and at != limit:
            fault = _TRAILING
        if fault != _NONE or r < record_count:
            break
        i += 1
        r = 0
    cursor[0], cursor[1], cursor[2], cursor[3] = i, r, at, lowest
    return fault, at, filled
