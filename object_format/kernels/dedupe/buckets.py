"""Sorting fingerprints by some of their bits: one counting sort per chunk of records."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.kernels.dedupe.fingerprints import CONTROL_RECORD, KEYLESS, WORDS
from object_format.kernels.runtime.intrinsics import borrowed

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import IntArray, Integer

FLAG_BITS = 4
"""The four flags of `kernels.fingerprints`, in the low bits of a record's place."""

MAX_BLOB_SPAN = 1 << (32 - FLAG_BITS)
"""Offsets that the packed_offsets of one blob reach over."""


@njit(nogil=True, cache=True)
def bucket_of(second_word: Integer, flag: Integer, bits: Integer) -> Integer:
    """The leading `bits` of a fingerprint's second word; 0 for records that are not judged by their key.

    The key table goes by the first word: keys that agreed in that would crowd into one corner of it.
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
    """Sort `count` records, which rise by offset, by bucket; within a bucket their order stays.

    `sorted_words` gets their fingerprints, `packed_offsets` (uint32) their offsets from the first record's,
    shifted left by `FLAG_BITS`, with the flags below; `ends` (int64[2^bits]) where each bucket ends. The
    offsets must not reach over `MAX_BLOB_SPAN`. Fingerprints of records without a key become zeros.
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
        ends[b] = total - ends[b]  # where the bucket begins, and what comes next goes
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
