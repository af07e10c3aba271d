"""Kafka's 32-bit murmur2 for many keys.

Source: Kafka's Utils.murmur2, which is Austin Appleby's MurmurHash2 with seed 0x9747b28c.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.kernels.runtime.intrinsics import borrowed

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer

_SEED = np.uint32(0x9747B28C)
_M = np.uint32(0x5BD1E995)


@njit(nogil=True, cache=True)
def murmur2_of(data: ByteArray, start: Integer, length: Integer) -> Integer:
    """Return the hash of data[start : start + length], which must exist, as an unsigned 32-bit integer."""
    h = np.uint32(_SEED ^ np.uint32(length))
    words = length // 4
    for i in range(words):
        at = start + i * 4
        k = np.uint32(
            np.uint32(data[at])
            | np.uint32(data[at + 1]) << np.uint32(8)
            | np.uint32(data[at + 2]) << np.uint32(16)
            | np.uint32(data[at + 3]) << np.uint32(24)
        )
        k = np.uint32(k * _M)
        k = np.uint32(k ^ (k >> np.uint32(24)))
        k = np.uint32(k * _M)
        h = np.uint32(np.uint32(h * _M) ^ k)
    tail_bytes = length - words * 4
    tail = start + words * 4
    if tail_bytes > 0:
        for i in range(tail_bytes):
            h = np.uint32(h ^ (np.uint32(data[tail + i]) << np.uint32(8 * i)))
        h = np.uint32(h * _M)
    h = np.uint32(h ^ (h >> np.uint32(13)))
    h = np.uint32(h * _M)
    return np.uint32(h ^ (h >> np.uint32(15)))


@njit(nogil=True, cache=True)
def partitions_of(
    data: ByteArray, starts: IntArray, lengths: IntArray, partition_count: Integer, out: IntArray
) -> None:
    """Compute each key's partition; -1 for a null key (length below 0) or one outside of `data`."""
    data = borrowed(data)
    starts = borrowed(starts)
    lengths = borrowed(lengths)
    out = borrowed(out)
    for i in range(starts.size):
        if lengths[i] < 0 or starts[i] < 0 or starts[i] > data.size - lengths[i]:
            out[i] = -1
        else:
            positive = np.int64(murmur2_of(data, starts[i], lengths[i])) & 0x7FFFFFFF
            out[i] = positive % partition_count
