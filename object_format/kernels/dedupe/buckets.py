"""Distributes fingerprints to buckets by some of their bits, with one counting sort per chunk of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.kernels.dedupe.fingerprints import CONTROL_RECORD, KEYLESS, WORDS
from object_format.kernels.runtime.intrinsics import borrowed

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import IntArray, Integer

FLAG_BITS = 4
"""Low bits of a packed offset, for the four flags of `kernels.dedupe.fingerprints`."""

MAX_BLOB_SPAN = 1 << (32 - FLAG_BITS)
"""Maximum number of offsets that a blob covers."""


@njit(nogil=True, cache=True)
def bucket_of(second_word: Integer, flag: Integer, bits: Integer) -> Integer:
    """Return the leading `bits` of a fingerprint's second word; 0 for records without a key.

    The first word determines the slot in the key table. Keys with equal bits there would use a small part of
    the table.
    """
    if bits == 0 or flag & (CONTROL_RECORD | KEYLESS) != 0:
        return 0
    return np.int64(second_word) >> (32 - bits)


@njit(nogil=True, cache=True)
def split_into_buckets(
    words: IntArray,
    offsets: IntArray,
    flags: IntArray,
    count: Integer,
    bits: Integer,
    ends: IntArray,
    sorted_words: IntArray,
    packed_offsets: IntArray,
) -> None:
    """Sort `count` records with ascending offsets by bucket; the sort is stable.

    `sorted_words` gets their fingerprints. `packed_offsets` (uint32) gets their distances from the first
    offset, shifted left by `FLAG_BITS`, with the flags in the low bits. `ends` (int64[2^bits]) gets the end
    of each bucket. The offsets must not span more than `MAX_BLOB_SPAN`. Fingerprints of records without a key
    become zeros.
    """
    words = borrowed(words)
    offsets = borrowed(offsets)
    flags = borrowed(flags)
    ends = borrowed(ends)
    sorted_words = borrowed(sorted_words)
    packed_offsets = borrowed(packed_offsets)
    ends[:] = 0
    for i in range(count):
        ends[bucket_of(words[WORDS * i + 1], flags[i], bits)] += 1
    total = 0
    for b in range(ends.size):
        total += ends[b]
        ends[b] = total - ends[b]  # start of the bucket, where its next record is written
    base = offsets[0] if count else 0
    for i in range(count):
        flag = flags[i]
        bucket = bucket_of(words[WORDS * i + 1], flag, bits)
        to = ends[bucket]
        ends[bucket] = to + 1
        keyless = flag & KEYLESS != 0
        for k in range(WORDS):
            sorted_words[WORDS * to + k] = np.uint32(0) if keyless else words[WORDS * i + k]
        packed_offsets[to] = np.uint32((offsets[i] - base) << FLAG_BITS | flag)
