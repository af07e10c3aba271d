"""Iterates over the records of many batches: decoding, validation, and search for records without a key."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.errors import Fault
from object_format.kernels.batches.headers import check_header
from object_format.kernels.batches.layout import (
    ATTRIBUTES,
    BASE_SEQUENCE,
    BASE_TIMESTAMP,
    BATCH_OVERHEAD,
    CODEC_MASK,
    CRC,
    LAST_OFFSET_DELTA,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP,
    PRODUCER_ATTRIBUTES,
    PRODUCER_EPOCH,
    PRODUCER_ID,
    RECORD_COUNT,
)
from object_format.kernels.batches.record_parser import parse_record
from object_format.kernels.runtime.intrinsics import borrowed
from object_format.kernels.runtime.primitives import load_i16, load_i32, load_i64, load_u32, read_varint

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers, Rows

_NONE = int(Fault.NONE)
_OFFSET = int(Fault.RECORD_OFFSET)
_TRAILING = int(Fault.TRAILING_BYTES)
_NOT_CONSECUTIVE = int(Fault.OFFSETS_NOT_CONSECUTIVE)
_INT64_MAX = np.iinfo(np.int64).max
_INT64_MIN = np.iinfo(np.int64).min


@njit(nogil=True, cache=True)
def decode_rows(data: ByteArray, rows: Rows, shift: Integer, longs: IntArray, lengths: IntArray) -> Integers:
    """Decode all records of `rows` to columns; return fault, position and row.

    `longs` is int64[5, n]: offset, timestamp, key start, value start, headers start. `lengths` is int32[3,
    n]: of key and value (-1 for null), and of the headers with their count.
    """
    data = borrowed(data)
    rows = borrowed(rows)
    longs = borrowed(longs)
    lengths = borrowed(lengths)
    n = 0
    for b in range(rows.size):
        row = rows[b]
        at = row.records_start
        stamped = row.attributes & LOG_APPEND_TIME != 0
        previous = np.int64(-1)
        for _ in range(row.record_count):
            fault, end, _body, delta, _at, offset_delta, key, key_length, value, value_length, headers = (
                parse_record(data, at, row.records_end)
            )
            if fault != _NONE:
                return fault, at, b
            if offset_delta <= previous or offset_delta > row.last_offset_delta:
                return _OFFSET, at, b
            previous = offset_delta
            longs[0, n] = row.base_offset + shift + offset_delta
            longs[1, n] = row.max_timestamp if stamped else row.base_timestamp + delta
            longs[2, n] = key
            longs[3, n] = value
            longs[4, n] = headers
            lengths[0, n] = key_length
            lengths[1, n] = value_length
            lengths[2, n] = end - headers
            n += 1
            at = end
        if at != row.records_end:
            return _TRAILING, at, b
    return _NONE, 0, 0


@njit(nogil=True, cache=True)
def validate_rows(data: ByteArray, rows: Rows, compressed: Integer) -> None:
    """Validate the records of each row, and store fault, timestamps and number of keyless records in it.

    Offset deltas must be 0, 1, 2 … Only rows without a fault are processed, and of these only compressed or
    only uncompressed ones, depending on `compressed`.
    """
    data = borrowed(data)
    rows = borrowed(rows)
    for b in range(rows.size):
        row = rows[b]
        if row.fault != _NONE or (row.attributes & CODEC_MASK != 0) != compressed:
            continue
        fault, at, lowest, highest, keyless = validate_records(
            data, row.records_start, row.records_end, row.record_count, row.base_timestamp
        )
        row.fault = fault
        row.fault_position = at
        row.lowest_timestamp = lowest
        row.highest_timestamp = highest
        row.keyless = keyless


@njit(nogil=True, cache=True)
def validate_records(
    data: ByteArray, start: Integer, stop: Integer, count: Integer, base_timestamp: Integer
) -> Integers:
    """Validate `count` records that must fill a range.

    Returns fault, its position, lowest and highest timestamp, and the number of keyless records.
    """
    data = borrowed(data)
    at = start
    lowest = np.int64(_INT64_MAX)
    highest = np.int64(_INT64_MIN)
    keyless = 0
    fault = _NONE
    for i in range(count):
        fault, end, _body, delta, _at, offset_delta, _key, key_length, _value, _length, _headers = (
            parse_record(data, at, stop)
        )
        if fault == _NONE and offset_delta != i:
            fault = _NOT_CONSECUTIVE
        if fault != _NONE:
            break
        timestamp = base_timestamp + delta
        lowest = min(lowest, timestamp)
        highest = max(highest, timestamp)
        if key_length < 0:
            keyless += 1
        at = end
    if fault == _NONE and at != stop:
        fault = _TRAILING
    return fault, at, lowest, highest, keyless


@njit(nogil=True, cache=True)
def validate_single_batch(data: ByteArray) -> Integers:
    """Validate `data` as one uncompressed batch, except for its checksum.

    Returns whether it is valid, its record count, lowest and highest timestamp of its records, and the number
    of keyless records. Then fields of the header: checksum, max timestamp, producer id, epoch, base sequence,
    attributes. All of this is one call, because it is on the latency path of producers, and most requests
    contain one such batch per partition.
    """
    data = borrowed(data)
    fault, size = check_header(data, 0)
    if fault != _NONE or size != data.size:
        return 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
    attributes = load_i16(data, ATTRIBUTES)
    count = load_i32(data, RECORD_COUNT)
    producer_id = load_i64(data, PRODUCER_ID)
    sequence = load_i32(data, BASE_SEQUENCE)
    may_be_valid = (
        attributes & (CODEC_MASK | ~PRODUCER_ATTRIBUTES) == 0
        and count >= 1
        and count == load_i32(data, LAST_OFFSET_DELTA) + 1
        and (producer_id < 0 or sequence >= 0)
    )
    fault, _at, lowest, highest, keyless = validate_records(
        data, BATCH_OVERHEAD, size, count if may_be_valid else 0, load_i64(data, BASE_TIMESTAMP)
    )
    return (
        int(may_be_valid and fault == _NONE),
        count,
        lowest,
        highest,
        keyless,
        load_u32(data, CRC),
        load_i64(data, MAX_TIMESTAMP),
        producer_id,
        load_i16(data, PRODUCER_EPOCH),
        sequence,
        attributes,
    )


@njit(nogil=True, cache=True)
def find_keyless(data: ByteArray, start: Integer, end: Integer, indexes: IntArray) -> Integer:
    """Return the number of indexes written to `indexes`: those of the first records without a key.

    The records must be valid.
    """
    data = borrowed(data)
    indexes = borrowed(indexes)
    at = start
    found = 0
    i = 0
    while at < end and found < indexes.size:
        _fault, stop, _body, _delta, _at, _offset, _key, key_length, _value, _length, _headers = parse_record(
            data, at, end
        )
        if key_length < 0:
            indexes[found] = i
            found += 1
        at = stop
        i += 1
    return found


@njit(nogil=True, cache=True)
def split_headers(data: ByteArray, at: Integer, parts: IntArray) -> None:
    """Parse a valid header block to `parts`.

    `parts` is int64[count, 4]: key start, key length, value start, value length (-1 for null).
    """
    _count, at = read_varint(data, at, data.size)
    for i in range(parts.shape[0]):
        length, at = read_varint(data, at, data.size)
        parts[i, 0] = at
        parts[i, 1] = length
        at += length
        length, at = read_varint(data, at, data.size)
        parts[i, 2] = at
        parts[i, 3] = max(length, -1)
        at += max(length, 0)
