"""The key table: open addressing over 12-byte fingerprints, nothing else.

Slots lie in the order of the fingerprints' first words: a fingerprint's home slot grows with that word, and
linear probing keeps later ones behind earlier ones. So a search ends at the first larger word, whether or not
the fingerprint is there, and stays short in a table that is 95 % full. (Sorted linear probing: O. Amble and
D. E. Knuth, "Ordered hash tables", 1974.) A first word of 0 marks an empty slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.kernels.fingerprints import CONTROL_RECORD, HORIZON_PASSED, KEYLESS, TOMBSTONE, WORDS
from object_format.kernels.machine import prefetch, shift_up

if TYPE_CHECKING:
    from object_format.kernels.signatures import Integer, Numbers

_SLOT = np.uint64(WORDS)
_AHEAD = 24
"""How many records ahead the table's memory is asked for: about as many cache misses as a core waits for."""

FOUND = 0
ADDED = 1
NO_ROOM = 2

DROP = 0
KEEP = 1
KEEP_TOMBSTONE = 3
"""What becomes of a record; the lowest bit is set when it survives."""

COUNT_KEYS = 0
COUNT_OUTSIDE = 1
COUNT_TOMBSTONES_DROPPED = 2
COUNT_INVALID = 3
COUNTS = 4
"""Places in the array of counts."""


@njit(nogil=True, cache=True, forceinline=True)
def home_of(home_slots: Integer, w0: Integer) -> Integer:
    """The index of the slot where the search for a fingerprint begins."""
    return ((np.uint64(w0) * np.uint64(home_slots)) >> np.uint64(32)) * _SLOT


@njit(nogil=True, cache=True, forceinline=True)
def seek(table: Numbers, home_slots: Integer, w0: Integer, w1: Integer, w2: Integer) -> Integer:
    """The index of a fingerprint in `table`, or -1 minus the index where it belongs, which may be the end."""
    i = home_of(home_slots, w0)
    end = np.uint64(table.size)
    while i < end and np.uint32(0) < table[i] < w0:
        i += _SLOT
    while i < end and table[i] == w0:
        if table[i + np.uint64(1)] == w1 and table[i + np.uint64(2)] == w2:
            return np.int64(i)
        i += _SLOT
    return -1 - np.int64(i)


@njit(nogil=True, cache=True)
def put(table: Numbers, i: Integer, w0: Integer, w1: Integer, w2: Integer) -> Integer:
    """Place a fingerprint at index `i`, moving what lies there one slot on; False when the end is reached."""
    end = np.uint64(table.size)
    here = np.uint64(i)
    free = here
    while free < end and table[free] != 0:
        free += _SLOT
    if free >= end:
        return False
    shift_up(table, here, free - here, _SLOT)
    table[here] = w0
    table[here + np.uint64(1)] = w1
    table[here + np.uint64(2)] = w2
    return True


@njit(nogil=True, cache=True, forceinline=True)
def insert(
    table: Numbers, home_slots: Integer, w0: Integer, w1: Integer, w2: Integer, may_add: Integer
) -> Integer:
    """FOUND, ADDED, or NO_ROOM."""
    i = seek(table, home_slots, w0, w1, w2)
    if i >= 0:
        return FOUND
    if may_add and put(table, -1 - i, w0, w1, w2):
        return ADDED
    return NO_ROOM


@njit(nogil=True, cache=True, forceinline=True)
def judge(flag: Integer, status: Integer, drop_tombstones: Integer, counts: Numbers) -> Integer:
    """What becomes of a record with a key, given whether its key is in the table."""
    if status == FOUND:
        return DROP
    if status == ADDED:
        counts[COUNT_KEYS] += 1
    else:
        counts[COUNT_OUTSIDE] += 1
    if flag & TOMBSTONE == 0:
        return KEEP
    if status == ADDED and drop_tombstones and flag & HORIZON_PASSED != 0:
        counts[COUNT_TOMBSTONES_DROPPED] += 1
        return DROP
    return KEEP_TOMBSTONE


@njit(nogil=True, cache=True)
def find_survivors(
    table: Numbers,
    home_slots: Integer,
    capacity: Integer,
    words: Numbers,
    flags: Numbers,
    count: Integer,
    newest_last: Integer,
    drop_tombstones: Integer,
    verdicts: Numbers,
    counts: Numbers,
) -> None:
    """Decide on `count` records, newest first, and add their keys to the table until it holds `capacity`.

    `verdicts` is uint8[count] or longer: DROP, KEEP or KEEP_TOMBSTONE. `counts` is int64[COUNTS] and goes on;
    its number of keys is the table's. A tombstone is dropped only when its key is in the table: otherwise an
    older record of the key, which stays for the same reason, would come back to life.
    """
    for n in range(count):
        i = count - 1 - n if newest_last else n
        if n + _AHEAD < count:
            ahead = i - _AHEAD if newest_last else i + _AHEAD
            prefetch(table, np.int64(home_of(home_slots, words[WORDS * ahead])))
        flag = flags[i]
        if flag & CONTROL_RECORD != 0:
            verdicts[i] = KEEP
        elif flag & KEYLESS != 0:
            verdicts[i] = DROP
            counts[COUNT_INVALID] += 1
        else:
            may_add = counts[COUNT_KEYS] < capacity
            status = insert(
                table, home_slots, words[WORDS * i], words[WORDS * i + 1], words[WORDS * i + 2], may_add
            )
            verdicts[i] = judge(flag, status, drop_tombstones, counts)


@njit(nogil=True, cache=True)
def collect(offsets: Numbers, verdicts: Numbers, count: Integer, wanted: Integer, out: Numbers) -> Integer:
    """Write the offsets of records whose verdict has the bits `wanted` to `out`, and return how many."""
    n = 0
    for i in range(count):
        if verdicts[i] & wanted == wanted:
            out[n] = offsets[i]
            n += 1
    return n
