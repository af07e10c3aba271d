"""Parses single records, for all kernels that read records.

Source: Kafka's DefaultRecord. A record is: length varint, attributes byte, timestamp delta varlong, offset
delta varint, key length varint, key, value length varint, value, header count varint, headers. As in Kafka,
any negative length of a key or value means null.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.errors import Fault
from object_format.kernels.batches.layout import SMALLEST_RECORD
from object_format.kernels.runtime.intrinsics import borrowed
from object_format.kernels.runtime.primitives import read_short_varint, read_varint, read_varlong

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, Integer, Integers

_NONE = int(Fault.NONE)
_LENGTH = int(Fault.RECORD_LENGTH)
_FIELD = int(Fault.RECORD_FIELD)
_SMALLEST_BODY = SMALLEST_RECORD - 1
_SHORT_HEAD = 9
"""Length, attributes, timestamp delta, offset delta and key length, with at most two bytes each."""

_SHORT_TAIL = 2
"""Value length and header count, with one byte each."""


@njit(nogil=True, cache=True)
def skip_headers(data: ByteArray, at: Integer, end: Integer) -> Integer:
    """Return the position after the header count and all headers, or -1 if they exceed `end`."""
    count, at = read_varint(data, at, end)
    if at < 0 or count < 0 or count > end - at:
        return np.int64(-1)
    for _ in range(count):
        length, at = read_varint(data, at, end)
        if at < 0 or length < 0 or length > end - at:
            return np.int64(-1)
        at += length
        length, at = read_varint(data, at, end)
        if at < 0 or length > end - at:
            return np.int64(-1)
        at += max(length, 0)
    return np.int64(at)


@njit(nogil=True, cache=True)
def parse_any_record(data: ByteArray, at: Integer, limit: Integer) -> Integers:
    """Do the work of `parse_record` for any record."""
    data = borrowed(data)
    delta: Integer = np.int64(0)
    offset_at: Integer = np.int64(at)
    offset_delta: Integer = np.int64(0)
    key: Integer = np.int64(-1)
    key_length: Integer = np.int64(-1)
    value: Integer = np.int64(-1)
    value_length: Integer = np.int64(-1)
    headers: Integer = np.int64(at)
    fault = _LENGTH
    length, body = read_varint(data, at, limit)
    end = body + length
    if body >= 0 and _SMALLEST_BODY <= length <= limit - body:
        fault = _FIELD
        delta, offset_at = read_varlong(data, body + 1, end)
        if offset_at >= 0:
            offset_delta, key = read_varint(data, offset_at, end)
        if key >= 0:
            key_length, key = read_varint(data, key, end)
            key_length = max(key_length, -1)
        if key >= 0 and key_length <= end - key:
            value_length, value = read_varint(data, key + max(key_length, 0), end)
            value_length = max(value_length, -1)
        if value >= 0 and value_length <= end - value:
            headers = value + max(value_length, 0)
            without = headers + 1 == end and data[headers] == 0
            if without or skip_headers(data, headers, end) == end:
                fault = _NONE
    if fault != _NONE:
        end = np.int64(at)
    return fault, end, body, delta, offset_at, offset_delta, key, key_length, value, value_length, headers


@njit(nogil=True, cache=True, forceinline=True)
def parse_head(data: ByteArray, at: Integer, limit: Integer) -> Integers:
    """Parse a record up to its key without a look at the rest, for records that were parsed before.

    Returns the first six values of `parse_record`, and the position of the key length.
    """
    if limit - at >= _SHORT_HEAD:
        length, body, longer = read_short_varint(data, at)
        delta, offset_at, more = read_short_varint(data, body + 1)
        longer |= more
        offset_delta, key_at, more = read_short_varint(data, offset_at)
        end = body + length
        if longer | more == 0 and key_at < end <= limit:
            return _NONE, end, body, delta, offset_at, offset_delta, key_at
    fault, end, body, delta, offset_at, offset_delta, _key, _kl, _value, _vl, _headers = parse_any_record(
        data, at, limit
    )
    key_at = np.int64(at)
    if fault == _NONE:
        _offset, key_at = read_varint(data, offset_at, end)
    return fault, end, body, delta, offset_at, offset_delta, key_at


@njit(nogil=True, cache=True, forceinline=True)
def parse_record(data: ByteArray, at: Integer, limit: Integer) -> Integers:
    """Parse the record at `at`, which must end at or before `limit`.

    Returns fault, end, start of the body, timestamp delta, position of the offset delta, offset delta, key
    start, key length, value start, value length, headers start. A length is -1 for null. After a fault, the
    other values are undefined.
    """
    # Almost all records have varints of one or two bytes and no headers. Then the parts fill the record
    # exactly only if each of them fits, so that one comparison at the end is sufficient.
    if limit - at >= _SHORT_HEAD:
        length, body, longer = read_short_varint(data, at)
        delta, offset_at, more = read_short_varint(data, body + 1)
        longer |= more
        offset_delta, key, more = read_short_varint(data, offset_at)
        longer |= more
        key_length, key, more = read_short_varint(data, key)
        longer |= more
        end = body + length
        value = key + max(key_length, 0)
        if longer == 0 and end <= limit and value + _SHORT_TAIL <= end:
            value_length, value, longer = read_short_varint(data, value)
            headers = value + max(value_length, 0)
            if longer == 0 and headers + 1 == end and data[np.uint64(headers)] == 0:
                return (
                    _NONE,
                    end,
                    body,
                    delta,
                    offset_at,
                    offset_delta,
                    key,
                    max(key_length, -1),
                    value,
                    max(value_length, -1),
                    headers,
                )
    return parse_any_record(data, at, limit)
