"""Computes fingerprints of the keys of many batches."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.errors import Fault
from object_format.kernels.batches.layout import CONTROL, DELETE_HORIZON
from object_format.kernels.batches.record_parser import parse_record
from object_format.kernels.hashing.siphash import siphash128
from object_format.kernels.hashing.siphash_lanes import LANES, fingerprint_lanes
from object_format.kernels.runtime.intrinsics import CHECKED, borrowed, prefetch

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers, Rows

_LOW = np.uint64(0xFFFFFFFF)
_NONE = int(Fault.NONE)
_OFFSET = int(Fault.RECORD_OFFSET)
_TRAILING = int(Fault.TRAILING_BYTES)

_WORD_BYTES = 8
_LINE = 64
_AHEAD = 56
"""Records ahead of the current one whose memory is prefetched: 8 KiB of small records."""

_UNEVEN = 48
"""Difference in words from which hashing keys one by one may be faster.

One word of eight keys side by side takes as long as two words of a single key. The remainder of a key that is
hashed alone takes as long as seven more words.
"""

TOMBSTONE = 1
KEYLESS = 2
CONTROL_RECORD = 4
HORIZON_PASSED = 8
"""Flags of a record, stored next to its fingerprint."""

WORDS = 3
"""32-bit words of a fingerprint: 96 of the hash's 128 bits."""


@njit(nogil=True, cache=True)
def fingerprint_key(
    data: ByteArray, start: Integer, length: Integer, k0: Integer, k1: Integer, words: IntArray, at: Integer
) -> None:
    """Write the three words of a key's fingerprint; the first is never 0."""
    first, second = siphash128(data, start, length, k0, k1)
    words[at] = max(np.uint32(first & _LOW), np.uint32(1))
    words[at + 1] = np.uint32(first >> np.uint64(32))
    words[at + 2] = np.uint32(second & _LOW)


@njit(nogil=True, cache=True)
def word_range(starts: IntArray, lengths: IntArray, first: Integer) -> Integers:
    """Return the minimum and maximum number of complete words of `LANES` keys, and their lowest end."""
    i = np.uint64(first)
    min_words = max_words = lengths[i] >> 3
    end = starts[i] + lengths[i]
    for _ in range(1, LANES):
        i += np.uint64(1)
        min_words = min(min_words, lengths[i] >> 3)
        max_words = max(max_words, lengths[i] >> 3)
        end = min(end, starts[i] + lengths[i])
    return min_words, max_words, end


@njit(nogil=True, cache=True)
def are_uneven(lengths: IntArray, first: Integer, max_words: Integer) -> Integer:
    """Return True if `LANES` keys, one of them with `max_words` words, are hashed faster one by one."""
    total = 0
    for i in range(first, first + LANES):
        total += lengths[i] >> 3
    return 2 * max_words > total + _UNEVEN


@njit(nogil=True, cache=True)
def touch_ends(
    data: ByteArray, starts: IntArray, lengths: IntArray, first: Integer, words: IntArray, at: Integer
) -> None:
    """Access the ends of the ranges of `fingerprint_lanes` by index, for numba's bounds checking."""
    for i in range(first, first + LANES):
        end = starts[i] + lengths[i]
        words[at + LANES * WORDS - 1] = data[end - 1] + data[end - _WORD_BYTES]


@njit(nogil=True, cache=True)
def fingerprint_keys(
    data: ByteArray,
    starts: IntArray,
    lengths: IntArray,
    count: Integer,
    k0: Integer,
    k1: Integer,
    words: IntArray,
    filled: Integer,
) -> None:
    """Write the fingerprints of `count` keys from record `filled` on.

    Eight keys at a time are hashed side by side, unless one of them is much longer than all others together.
    This is fastest for keys with similar numbers of words.
    """
    data, words = borrowed(data), borrowed(words)
    starts, lengths = borrowed(starts), borrowed(lengths)
    i = 0
    while i < count:
        at = (filled + i) * WORDS
        singles = 1
        if i + LANES <= count:
            min_words, max_words, end = word_range(starts, lengths, i)
            if max_words - min_words > _UNEVEN and are_uneven(lengths, i, max_words):
                singles = LANES
            elif end >= _WORD_BYTES:
                if CHECKED:
                    touch_ends(data, starts, lengths, i, words, at)
                fingerprint_lanes(data, starts, lengths, i, min_words, max_words, k0, k1, words, at)
                i += LANES
                continue
        for _ in range(singles):
            fingerprint_key(data, starts[i], lengths[i], k0, k1, words, (filled + i) * WORDS)
            i += 1


@njit(nogil=True, cache=True)
def flags_of(row: Integers, now_ms: Integer) -> Integer:
    """Return the flags that all records of a batch have in common."""
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
    cursor: IntArray,
    shift: Integer,
    k0: Integer,
    k1: Integer,
    now_ms: Integer,
    words: IntArray,
    offsets: IntArray,
    flags: IntArray,
    filled: Integer,
) -> Integers:
    """Append fingerprints, offsets and flags of the records of `rows` until the arrays are full.

    `cursor` is int64[4], initially zeros: row, record, position, and previous offset delta plus one. It is
    updated for the next call; its first element is `rows.size` at the end. Returns a fault, its position, and
    the number of records in the arrays. The first word of a fingerprint is never 0, which marks an empty slot
    of the table. The fingerprint of a record without a key is undefined.
    """
    data, rows, cursor = borrowed(data), borrowed(rows), borrowed(cursor)
    words, offsets, flags = borrowed(words), borrowed(offsets), borrowed(flags)
    starts = np.empty(LANES, np.int64)
    lengths = np.empty(LANES, np.int64)
    b, r, at, lowest = cursor[0], cursor[1], cursor[2], cursor[3]
    waiting = 0
    fault = _NONE
    while b < rows.size:
        row = rows[b]
        if r == 0:
            at, lowest = row.records_start, 0
        row_flags = flags_of(row, now_ms)
        base = row.base_offset + shift
        limit = row.records_end
        record_count = row.record_count
        last = row.last_offset_delta
        while r < record_count and filled < offsets.size:
            fault, end, _body, _delta, _at, offset_delta, key, key_length, _value, value_length, _headers = (
                parse_record(data, at, limit)
            )
            if fault == _NONE and (offset_delta < lowest or offset_delta > last):
                fault = _OFFSET
            if fault != _NONE:
                break
            # Records often have similar sizes, so a later record is near this position.
            ahead = at + _AHEAD * (end - at)
            prefetch(data, ahead)
            prefetch(data, ahead + _LINE)
            lane = np.uint64(waiting)
            starts[lane] = key
            lengths[lane] = max(key_length, 0)
            index = np.uint64(filled)
            offsets[index] = base + offset_delta
            flags[index] = row_flags | TOMBSTONE * (value_length < 0) | KEYLESS * (key_length < 0)
            filled += 1
            waiting += 1
            if waiting == LANES:
                fingerprint_keys(data, starts, lengths, LANES, k0, k1, words, filled - LANES)
                waiting = 0
            lowest = offset_delta + 1
            at = end
            r += 1
        if fault == _NONE and r == record_count and at != limit:
            fault = _TRAILING
        if fault != _NONE or r < record_count:
            break
        b += 1
        r = 0
    fingerprint_keys(data, starts, lengths, waiting, k0, k1, words, filled - waiting)
    cursor[0], cursor[1], cursor[2], cursor[3] = b, r, at, lowest
    return fault, at, filled
