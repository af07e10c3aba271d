"""From records to fingerprints of their keys, over many batches at once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.errors import Fault
from object_format.kernels.layout import CONTROL, DELETE_HORIZON
from object_format.kernels.machine import LANES, borrowed, prefetch, siphash128_lanes
from object_format.kernels.record import parse_record
from object_format.kernels.siphash import load_word, siphash128

if TYPE_CHECKING:
    from object_format.kernels.signatures import ByteArray, Integer, Integers, Numbers, Rows

_LOW = np.uint64(0xFFFFFFFF)
_NONE = int(Fault.NONE)
_OFFSET = int(Fault.RECORD_OFFSET)
_TRAILING = int(Fault.TRAILING_BYTES)

_STEP = 1024
"""How many keys are found before they are hashed: few enough for the first cache."""

_LINE = 64
_AHEAD = 12
"""How many records ahead memory is asked for."""

TOMBSTONE = 1
KEYLESS = 2
CONTROL_RECORD = 4
HORIZON_PASSED = 8
"""Flags of a record, next to its fingerprint."""

WORDS = 3
"""A fingerprint is three 32-bit words: 96 of the 128 bits of the hash."""


@njit(nogil=True, cache=True)
def put_fingerprint(words: Numbers, at: Integer, first: Integer, second: Integer) -> None:
    """Write the three words kept of a hash; the first is never 0."""
    words[at] = max(np.uint32(first & _LOW), np.uint32(1))
    words[at + 1] = np.uint32(first >> np.uint64(32))
    words[at + 2] = np.uint32(second & _LOW)


@njit(nogil=True, cache=True)
def tail_word(data: ByteArray, start: Integer, length: Integer) -> Integer:
    """SipHash's last word of a key: the bytes behind its whole words, and its length."""
    word = np.uint64(length & 0xFF) << np.uint64(56)
    rest = length & 7
    if rest and length >= 8:
        return word | load_word(data, start + length - 8) >> np.uint64(8 * (8 - rest))
    for i in range(rest):
        word |= np.uint64(data[np.uint64(start + length - rest + i)]) << np.uint64(8 * i)
    return word


@njit(nogil=True, cache=True)
def same_words(lengths: Numbers, first: Integer) -> Integer:
    """Whether `LANES` lengths from `first` on are of keys, and make the same number of whole words."""
    words = lengths[first] >> 3
    differ = 0
    for i in range(first + 1, first + LANES):
        differ |= (lengths[i] >> 3) ^ words
    return words >= 0 and differ == 0


@njit(nogil=True, cache=True)
def fingerprint_keys(
    data: ByteArray,
    starts: Numbers,
    lengths: Numbers,
    count: Integer,
    k0: Integer,
    k1: Integer,
    words: Numbers,
    filled: Integer,
) -> None:
    """Write the fingerprints of `count` keys from place `filled` on; those of length -1 are left out.

    Neighbours that are about as long are hashed side by side, each in a lane of wide registers.
    """
    data, starts, lengths, words = borrowed(data), borrowed(starts), borrowed(lengths), borrowed(words)
    tails = np.empty(LANES, np.uint64)
    hashes = np.empty(2 * LANES, np.uint64)
    i = 0
    while i < count:
        if i + LANES <= count and same_words(lengths, i):
            for lane in range(LANES):
                tails[lane] = tail_word(data, starts[i + lane], lengths[i + lane])
            siphash128_lanes(data, starts, i, lengths[i] >> 3, tails, k0, k1, hashes)
            for lane in range(LANES):
                put_fingerprint(words, (filled + i + lane) * WORDS, hashes[lane], hashes[lane + LANES])
            i += LANES
        else:
            if lengths[i] >= 0:
                first, second = siphash128(data, starts[i], lengths[i], k0, k1)
                put_fingerprint(words, (filled + i) * WORDS, first, second)
            i += 1


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
def find_keys(
    data: ByteArray,
    rows: Rows,
    cursor: Numbers,
    shift: Integer,
    now_ms: Integer,
    starts: Numbers,
    lengths: Numbers,
    offsets: Numbers,
    flags: Numbers,
    filled: Integer,
    room: Integer,
) -> Integers:
    """Where the keys of the next `room` records at most lie, and their offsets and flags from `filled` on.

    Returns a fault, its position, and how many records there were; `cursor` as in `fingerprint_rows`.
    """
    data, rows = borrowed(data), borrowed(rows)
    starts, lengths = borrowed(starts), borrowed(lengths)
    offsets, flags = borrowed(offsets), borrowed(flags)
    b, r, at, lowest = cursor[0], cursor[1], cursor[2], cursor[3]
    n = 0
    while b < rows.size:
        row = rows[b]
        if r == 0:
            at = row.records_start
            lowest = 0
        row_flags = flags_of(row, now_ms)
        base = row.base_offset + shift
        limit = row.records_end
        record_count = row.record_count
        last = row.last_offset_delta
        while r < record_count and n < room:
            fault, end, _body, _delta, _at, offset_delta, key, key_length, _value, value_length, _headers = (
                parse_record(data, at, limit)
            )
            if fault == _NONE and (offset_delta < lowest or offset_delta > last):
                fault = _OFFSET
            if fault != _NONE:
                cursor[0] = b
                return fault, at, n
            # Records are often alike in size: the one some places on lies about here.
            ahead = at + _AHEAD * (end - at)
            prefetch(data, ahead)
            prefetch(data, ahead + _LINE)
            place = np.uint64(n)
            starts[place] = key
            lengths[place] = key_length
            place += np.uint64(filled)
            offsets[place] = base + offset_delta
            flags[place] = row_flags | TOMBSTONE * (value_length < 0) | KEYLESS * (key_length < 0)
            n += 1
            lowest = offset_delta + 1
            at = end
            r += 1
        if r < record_count:
            break
        if at != limit:
            cursor[0] = b
            return _TRAILING, at, n
        b += 1
        r = 0
    cursor[0], cursor[1], cursor[2], cursor[3] = b, r, at, lowest
    return _NONE, 0, n


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
    data = borrowed(data)
    rows = borrowed(rows)
    cursor = borrowed(cursor)
    words = borrowed(words)
    offsets = borrowed(offsets)
    flags = borrowed(flags)
    starts = np.empty(_STEP, np.int64)
    lengths = np.empty(_STEP, np.int64)
    while cursor[0] < rows.size:
        room = min(_STEP, offsets.size - filled)
        fault, position, count = find_keys(
            data, rows, cursor, shift, now_ms, starts, lengths, offsets, flags, filled, room
        )
        if fault != _NONE:
            return fault, position, filled
        fingerprint_keys(data, starts, lengths, count, k0, k1, words, filled)
        filled += count
        if filled == offsets.size:
            break
    return _NONE, 0, filled
