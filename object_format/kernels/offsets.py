"""From batches to the offsets that they have records at, over many batches at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.errors import Fault
from object_format.kernels.machine import borrowed
from object_format.kernels.record import parse_record

if TYPE_CHECKING:
    from object_format.kernels.signatures import ByteArray, Integer, Integers, Numbers, Rows

_NONE = int(Fault.NONE)
_OFFSET = int(Fault.RECORD_OFFSET)
_TRAILING = int(Fault.TRAILING_BYTES)


@njit(nogil=True, cache=True)
def full_ranges(rows: Rows, shift: Integer, ranges: Numbers, gapped: Numbers) -> Integers:
    """Which offsets the headers alone tell: fills `ranges` and `gapped`, and returns how many of each.

    `ranges` (int64[rows, 2]) gets the first and last absolute offset of stretches that have a record at each,
    as long as they can be; `gapped` (int64[rows]) the indexes of batches with fewer records than offsets.
    """
    rows, ranges, gapped = borrowed(rows), borrowed(ranges), borrowed(gapped)
    full = 0
    opened = 0
    for b in range(rows.size):
        row = rows[b]
        first = row.base_offset + shift
        if row.record_count != row.last_offset_delta + 1:
            if row.record_count > 0:
                gapped[opened] = b
                opened += 1
        elif full > 0 and ranges[full - 1, 1] + 1 == first:
            ranges[full - 1, 1] = first + row.last_offset_delta
        else:
            ranges[full, 0], ranges[full, 1] = first, first + row.last_offset_delta
            full += 1
    return full, opened


@njit(nogil=True, cache=True)
def spread_ranges(ranges: Numbers, cursor: Numbers, offsets: Numbers, filled: Integer) -> Integer:
    """Append every offset of `ranges` until `offsets` is full; how many there are then.

    `cursor` is int64[2], zeros at first: the range, and how many of its offsets are done; it is left where
    the next call goes on, at `len(ranges)` when all is done.
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
    indexes: Numbers,
    cursor: Numbers,
    shift: Integer,
    offsets: Numbers,
    filled: Integer,
) -> Integers:
    """Append the absolute offsets of the records of rows[indexes] until `offsets` (int64) is full.

    `cursor` is int64[4], zeros at first: index, record, position and the offset delta before it plus one; it
    is left where the next call goes on, at `indexes.size` when all is done. Returns a fault, its position,
    and how many offsets there are.
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
