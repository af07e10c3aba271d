"""Operations on columns of retained records: finding superseded ones, and removing records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.kernels.dedupe.fingerprints import CONTROL_RECORD, KEYLESS, WORDS
from object_format.kernels.runtime.intrinsics import borrowed, prefetch

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import IntArray, Integer

_AHEAD = 24
"""Records ahead of the current one whose slots are prefetched."""


@njit(nogil=True, cache=True)
def mark_superseded(
    words: IntArray, flags: IntArray, count: Integer, slots: IntArray, removed: IntArray
) -> None:
    """Set `removed` (bool[count], initially False) for records that a later one of the same key follows.

    `slots` is overwritten: int32, with a power of two of at least twice `count` elements. This is a hash
    table with linear probing; a slot contains a record's index plus one. Records without a key are never
    marked.
    """
    words = borrowed(words)
    flags = borrowed(flags)
    slots = borrowed(slots)
    removed = borrowed(removed)
    slots[:] = 0
    mask = np.uint64(slots.size - 1)
    for n in range(count):
        i = np.uint64(count - 1 - n)
        if n + _AHEAD < count:
            prefetch(slots, np.int64(np.uint64(words[(i - np.uint64(_AHEAD)) * np.uint64(WORDS)]) & mask))
        if flags[i] & (CONTROL_RECORD | KEYLESS) != 0:
            continue
        at = i * np.uint64(WORDS)
        w0, w1, w2 = words[at], words[at + np.uint64(1)], words[at + np.uint64(2)]
        slot = np.uint64(w0) & mask
        found = False
        while slots[slot] != 0 and not found:
            there = np.uint64(slots[slot] - 1) * np.uint64(WORDS)
            found = (
                words[there] == w0 and words[there + np.uint64(1)] == w1 and words[there + np.uint64(2)] == w2
            )
            slot = (slot + np.uint64(1)) & mask
        removed[i] = found
        if not found:
            slots[slot] = np.int32(i + np.uint64(1))


@njit(nogil=True, cache=True)
def compact_columns(
    words: IntArray, offsets: IntArray, flags: IntArray, count: Integer, removed: IntArray
) -> Integer:
    """Move records that are not `removed` to the start, in order; return their number."""
    words = borrowed(words)
    offsets = borrowed(offsets)
    flags = borrowed(flags)
    removed = borrowed(removed)
    kept = 0
    for i in range(count):
        if removed[i]:
            continue
        for k in range(WORDS):
            words[kept * WORDS + k] = words[i * WORDS + k]
        offsets[kept] = offsets[i]
        flags[kept] = flags[i]
        kept += 1
    return kept
