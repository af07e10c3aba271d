"""From records to fingerprints of their keys, over many batches at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.errors import Fault
from object_format.kernels.layout import CONTROL, DELETE_HORIZON
from object_format.kernels.record import parse_record
from object_format.kernels.siphash import siphash128

if TYPE_CHECKING:
    from object_format.kernels.signatures import ByteArray, Integer, Integers, Numbers, Rows

_LOW = np.uint64(0xFFFFFFFF)
_NONE = int(Fault.NONE)
_OFFSET = int(Fault.RECORD_OFFSET)
_TRAILING = int(Fault.TRAILING_BYTES)

TOMBSTONE = 1
KEYLESS = 2
CONTROL_RECORD = 4
HORIZON_PASSED = 8
"""Flags of a record, next to its fingerprint."""

WORDS = 3
"""A fingerprint is three 32-bit words: 96 of the 128 bits of the hash."""


@njit(nogil=True, cache=True)
def fingerprint(
    data: ByteArray,
    start: Integer,
    length: Integer,
    k0: Integer,
    k1: Integer,
    words: Numbers,
    at: Integer,
) -> None:
    """Write the three words of the key data[start : start + length]; the first is never 0."""
    first, second = siphash128(data, start, length, k0, k1)
    words[at] = max(np.uint32(first & _LOW), np.uint32(1))
    words[at + 1] = np.uint32(first >> np.uint64(32))
    words[at + 2] = np.uint32(second & _LOW)


@njit(nogil=True, cache=True)
def flags_of(row: Integers, now_ms: Integer) -> Integer:
    """The flags that all records of a batch share."""
    flags = 0
    if row.attributes & CONTROL != 0:
        flags |= CONTROL_RECORD
    if row.attributes & DELETE_HORIZON != 0 and row.base_timestamp <= now_ms:
        flags |= HORIZON_PASSED
    return flags


@njit(nogil=True, cache=True)
def fingerprint_rows(
    data: ByteArray,
    rows: Rows,
    cursor: Numbers,
    shift: Integer,
    k0: Integer,
    k1: Integer,
    now_ms: Integer,
    words: Numbers,
    offsets: Numbers,
    flags: Numbers,
    filled: Integer,
) -> Integers:
    """Append fingerprints, offsets and flags of the records of `rows` until the arrays are full.

    `cursor` is int64[4], zeros at first: row, record, position and the offset delta before it plus one; it is
    left where the next call goes on, at row `rows.size` when all is done. Returns a fault, its position, and
    how many records the arrays hold. The first word of a fingerprint is never 0, which marks an empty slot of
    the table.
    """
    b, r, at, lowest = cursor[0], cursor[1], cursor[2], cursor[3]
    room = offsets.size
    while b < rows.size:
        row = rows[b]
        if r == 0:
            at = row.records_start
            lowest = 0
        row_flags = flags_of(row, now_ms)
        while r < row.record_count and filled < room:
            fault, end, _body, _delta, _at, offset_delta, key, key_length, _value, value_length, _headers = (
                parse_record(data, at, row.records_end)
            )
            if fault == _NONE and (offset_delta < lowest or offset_delta > row.last_offset_delta):
                fault = _OFFSET
            if fault != _NONE:
                cursor[0] = b
                return fault, at, filled
            if key_length >= 0:
                fingerprint(data, key, key_length, k0, k1, words, filled * WORDS)
            offsets[filled] = row.base_offset + shift + offset_delta
            flags[filled] = row_flags | TOMBSTONE * (value_length < 0) | KEYLESS * (key_length < 0)
            filled += 1
            lowest = offset_delta + 1
            at = end
            r += 1
        if r < row.record_count:
            break
        if at != row.records_end:
            cursor[0] = b
            return _TRAILING, at, filled
        b += 1
        r = 0
    cursor[0], cursor[1], cursor[2], cursor[3] = b, r, at, lowest
    return _NONE, 0, filled
