"""The key table: a hash table with open addressing that contains 12-byte fingerprints only.

Slots are sorted by the first word of their fingerprint: home slots ascend with that word, and linear probing
keeps larger words behind smaller ones. A search therefore ends at the first larger word, whether or not it is
successful, and stays short in a table that is 95 % full. (Sorted linear probing: O. Amble and D. E. Knuth,
"Ordered hash tables", 1974.) A first word of 0 marks an empty slot.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.kernels.dedupe.fingerprints import (
    CONTROL_RECORD,
    HORIZON_PASSED,
    KEYLESS,
    TOMBSTONE,
    WORDS,
)
from object_format.kernels.runtime.intrinsics import borrowed, prefetch, shift_up

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import IntArray, Integer, Integers

_SLOT = np.uint64(WORDS)
_GROUP_SLOTS = 8
_GROUP = np.uint64(_GROUP_SLOTS * WORDS)
_AHEAD = 40
"""Records ahead of the current one whose slots are prefetched: more loads than a core can have in flight."""

_CROWDED_AHEAD = 8
_CROWDED_LINES = 8
_LINE_WORDS = 16
"""Prefetching in a crowded table, where slots far behind the home slot are read and moved.

`_CROWDED_LINES` cache lines are prefetched for the record `_CROWDED_AHEAD` records ahead. This is useless
while an eighth of the slots is empty.
"""

FOUND = 0
ADDED = 1
TABLE_FULL = 2
"""Results of adding a key."""

FREE = 3
TAKEN = 4
"""Contents of the slot where a missing key belongs."""

DROP = 0
KEEP = 1
KEEP_TOMBSTONE = 3
"""Outcomes of a record; the lowest bit is set if it survives."""

COUNT_KEYS = 0
COUNT_OUTSIDE = 1
COUNT_TOMBSTONES_DROPPED = 2
COUNT_INVALID = 3
COUNTS = 4
"""Size of the array of counts; the constants above are its indexes."""

KEEP_TOMBSTONES = 0
DROP_EXPIRED_IF_ADDED = 1
DROP_EXPIRED_TOMBSTONES = 2
"""Treatment of tombstones whose delete horizon has passed.

DROP_EXPIRED_IF_ADDED drops them if their key is in the table afterwards. DROP_EXPIRED_TOMBSTONES always drops
them, as no older record of their key exists.
"""


@njit(nogil=True, cache=True, forceinline=True)
def home_index(home_slots: Integer, w0: Integer) -> Integer:
    """Return the index of the slot where the search for a fingerprint starts."""
    return ((np.uint64(w0) * np.uint64(home_slots)) >> np.uint64(32)) * _SLOT


@njit(nogil=True, cache=True, forceinline=True)
def seek(table: IntArray, home_slots: Integer, w0: Integer, w1: Integer, w2: Integer) -> Integers:
    """Return the index of a fingerprint, or where it belongs (maybe the end), and what is there.

    The second value is FOUND, FREE for an empty slot, or TAKEN.
    """
    at = home_index(home_slots, w0)
    end = np.uint64(table.size)
    while at < end:
        here = table[at]
        if here >= w0:
            if here != w0:
                return at, TAKEN
            if table[at + np.uint64(1)] == w1 and table[at + np.uint64(2)] == w2:
                return at, FOUND
        elif here == 0:
            return at, FREE
        at += _SLOT
    return at, TAKEN


@njit(nogil=True, cache=True)
def first_free(table: IntArray, i: Integer) -> Integer:
    """Return the index of the first empty slot from index `i` on, or the end.

    In an almost full table there are hundreds of slots before it. With one branch per eight slots, their
    loads run in parallel.
    """
    end = np.uint64(table.size)
    at = np.uint64(i)
    while at + _GROUP <= end:
        free = table[at] == 0
        for k in range(1, _GROUP_SLOTS):
            free |= table[at + np.uint64(k) * _SLOT] == 0
        if free:
            break
        at += _GROUP
    while at < end and table[at] != 0:
        at += _SLOT
    return at


@njit(nogil=True, cache=True)
def insert_at(table: IntArray, i: Integer, w0: Integer, w1: Integer, w2: Integer) -> Integer:
    """Insert a fingerprint at index `i` and move the following ones by one slot; return False at the end."""
    end = np.uint64(table.size)
    here = np.uint64(i)
    free = first_free(table, here)
    if free >= end:
        return False
    shift_up(table, here, free - here, _SLOT)
    table[here] = w0
    table[here + np.uint64(1)] = w1
    table[here + np.uint64(2)] = w2
    return True


@njit(nogil=True, cache=True, forceinline=True)
def insert(
    table: IntArray, home_slots: Integer, w0: Integer, w1: Integer, w2: Integer, may_add: Integer
) -> Integer:
    """Add a fingerprint; return FOUND, ADDED or TABLE_FULL."""
    at, state = seek(table, home_slots, w0, w1, w2)
    if state == FOUND:
        return FOUND
    if not may_add:
        return TABLE_FULL
    if state == FREE:
        table[at] = w0
        table[at + np.uint64(1)] = w1
        table[at + np.uint64(2)] = w2
        return ADDED
    return ADDED if insert_at(table, at, w0, w1, w2) else TABLE_FULL


@njit(nogil=True, cache=True, forceinline=True)
def outcome_of(flag: Integer, status: Integer, tombstones: Integer) -> Integer:
    """Return the outcome of a record with a key, given the result of adding its key."""
    if status == FOUND:
        return DROP
    if flag & TOMBSTONE == 0:
        return KEEP
    is_expired = tombstones == DROP_EXPIRED_TOMBSTONES or (
        status == ADDED and tombstones == DROP_EXPIRED_IF_ADDED
    )
    if is_expired and flag & HORIZON_PASSED != 0:
        return DROP
    return KEEP_TOMBSTONE


@njit(nogil=True, cache=True)
def find_survivors(
    table: IntArray,
    home_slots: Integer,
    capacity: Integer,
    words: IntArray,
    flags: IntArray,
    count: Integer,
    newest_last: Integer,
    tombstones: Integer,
    outcomes: IntArray,
    counts: IntArray,
) -> None:
    """Decide on `count` records, newest first, and add their keys to the table up to its `capacity`.

    `outcomes` is uint8[count] or longer: DROP, KEEP or KEEP_TOMBSTONE. `counts` is int64[COUNTS] and is
    updated; its number of keys is the table's. With DROP_EXPIRED_IF_ADDED, a tombstone is dropped only if its
    key is in the table. Otherwise an older record of the key, which is kept for the same reason, would become
    visible again.
    """
    table = borrowed(table)
    words = borrowed(words)
    flags = borrowed(flags)
    outcomes = borrowed(outcomes)
    # Local variables, because the compiler must assume that `counts` and `table` overlap.
    keys = counts[COUNT_KEYS]
    outside = dropped = invalid = 0
    crowded = home_slots - home_slots // 8
    step = -1 if newest_last else 1
    i = count - 1 if newest_last else 0
    for n in range(count):
        if n + _AHEAD < count:
            ahead = np.uint64(WORDS * (i + step * _AHEAD))
            slot = np.int64(home_index(home_slots, words[ahead]))
            prefetch(table, slot)
            prefetch(table, slot + WORDS - 1)  # in another cache line for one slot in eight
        if keys > crowded and n + _CROWDED_AHEAD < count:
            ahead = np.uint64(WORDS * (i + step * _CROWDED_AHEAD))
            slot = np.int64(home_index(home_slots, words[ahead]))
            for line in range(1, _CROWDED_LINES + 1):
                prefetch(table, slot + line * _LINE_WORDS)
        flag = flags[np.uint64(i)]
        if flag & (CONTROL_RECORD | KEYLESS) == 0:
            at = np.uint64(WORDS * i)
            w0, w1, w2 = words[at], words[at + np.uint64(1)], words[at + np.uint64(2)]
            status = insert(table, home_slots, w0, w1, w2, keys < capacity)
            outcome = outcome_of(flag, status, tombstones)
            keys += int(status == ADDED)
            outside += int(status == TABLE_FULL)
            dropped += int(status != FOUND and outcome == DROP)
        else:
            outcome = KEEP if flag & CONTROL_RECORD != 0 else DROP
            invalid += int(outcome == DROP)
        outcomes[np.uint64(i)] = outcome
        i += step
    counts[COUNT_KEYS] = keys
    counts[COUNT_OUTSIDE] += outside
    counts[COUNT_TOMBSTONES_DROPPED] += dropped
    counts[COUNT_INVALID] += invalid


@njit(nogil=True, cache=True)
def count_survivors(outcomes: IntArray, count: Integer) -> Integers:
    """Return the number of surviving records, and of the tombstones among them."""
    outcomes = borrowed(outcomes)
    kept = 0
    tombstones = 0
    for i in range(count):
        kept += outcomes[i] & KEEP
        tombstones += outcomes[i] >> 1
    return kept, tombstones


@njit(nogil=True, cache=True)
def collect(
    offsets: IntArray, outcomes: IntArray, count: Integer, kept: IntArray, tombstones: IntArray
) -> None:
    """Write the offsets of surviving records to `kept`, and those of tombstones to `tombstones` as well.

    Each array has one more element than `count_survivors` returns, because the next element is written
    unconditionally.
    """
    offsets = borrowed(offsets)
    outcomes = borrowed(outcomes)
    kept = borrowed(kept)
    tombstones = borrowed(tombstones)
    n = 0
    m = 0
    for i in range(count):
        offset = offsets[i]
        kept[n] = offset
        tombstones[m] = offset
        n += outcomes[i] & KEEP
        m += outcomes[i] >> 1
