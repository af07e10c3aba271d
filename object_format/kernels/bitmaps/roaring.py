"""Serializes sorted values as a Roaring bitmap in its portable 64-bit format.

A library then deserializes the bytes at memory speed, many times faster than adding values. Source:
github.com/RoaringBitmap/RoaringFormatSpec. All integers are little-endian. Containers of up to 4096 values
are arrays, larger ones are bitmaps; there are no run containers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.kernels.runtime.intrinsics import borrowed

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers

COOKIE = 12346
"""Magic number of a 32-bit bitmap without run containers."""

MAX_IN_ARRAY = 4096
"""Maximum number of values of an array container."""

MAX_CONTAINER_BYTES = 8192
"""Size of a bitmap container, the largest kind."""


@njit(nogil=True, cache=True)
def run_end(values: IntArray, start: Integer, bits: Integer) -> Integer:
    """Return the index after the values that equal the one at `start` in all but their low `bits`."""
    high = values[start] >> bits
    end = start + 1
    while end < values.size and values[np.uint64(end)] >> bits == high:
        end += 1
    return end


@njit(nogil=True, cache=True)
def container_bytes(cardinality: Integer) -> Integer:
    """Return the size of a container."""
    return min(2 * cardinality, MAX_CONTAINER_BYTES)


@njit(nogil=True, cache=True)
def serialized_size(values: IntArray) -> Integer:
    """Return the number of bytes that `serialize` writes for ascending, non-negative values."""
    values = borrowed(values)
    size = 8
    i = 0
    while i < values.size:
        if i == 0 or values[i] >> 32 != values[i - 1] >> 32:
            size += 12
        end = run_end(values, i, 16)
        size += 8 + container_bytes(end - i)
        i = end
    return size


@njit(nogil=True, cache=True)
def store_little_endian(out: ByteArray, at: Integer, value: Integer, width: Integer) -> Integer:
    """Write an integer and return the position after it."""
    for i in range(width):
        out[np.uint64(at + i)] = np.uint8((value >> (8 * i)) & 0xFF)
    return at + width


@njit(nogil=True, cache=True)
def store_bits(values: IntArray, first: Integer, end: Integer, out: ByteArray, at: Integer) -> None:
    """Write the low 16 bits of values[first:end] as a bitmap container, word by word."""
    out[at : at + MAX_CONTAINER_BYTES] = 0
    word_at = 0
    word = np.uint64(0)
    for k in range(first, end):
        low = values[np.uint64(k)] & 0xFFFF
        if low >> 6 != word_at:
            store_little_endian(out, at + 8 * word_at, np.int64(word), 8)
            word_at = low >> 6
            word = np.uint64(0)
        word |= np.uint64(1) << np.uint64(low & 63)
    store_little_endian(out, at + 8 * word_at, np.int64(word), 8)


@njit(nogil=True, cache=True)
def serialize_group(
    values: IntArray, first: Integer, end: Integer, out: ByteArray, start: Integer
) -> Integer:
    """Write the 32-bit bitmap of values[first:end] with equal upper halves; return the next position."""
    containers = 0
    i = first
    while i < end:
        containers += 1
        i = run_end(values, i, 16)
    descriptions = store_little_endian(out, store_little_endian(out, start, COOKIE, 4), containers, 4)
    positions = descriptions + 4 * containers
    at = positions + 4 * containers
    i = first
    while i < end:
        stop = run_end(values, i, 16)
        descriptions = store_little_endian(out, descriptions, (values[i] >> 16) & 0xFFFF, 2)
        descriptions = store_little_endian(out, descriptions, stop - i - 1, 2)
        positions = store_little_endian(out, positions, at - start, 4)
        if stop - i <= MAX_IN_ARRAY:
            for k in range(i, stop):
                at = store_little_endian(out, at, values[np.uint64(k)] & 0xFFFF, 2)
        else:
            store_bits(values, i, stop, out, at)
            at += MAX_CONTAINER_BYTES
        i = stop
    return at


@njit(nogil=True, cache=True)
def serialize(values: IntArray, out: ByteArray) -> None:
    """Write the bitmap of ascending, non-negative int64 `values` to `out` of `serialized_size` bytes."""
    values = borrowed(values)
    out = borrowed(out)
    at = 8
    groups = 0
    i = 0
    while i < values.size:
        end = run_end(values, i, 32)
        at = store_little_endian(out, at, values[i] >> 32, 4)
        at = serialize_group(values, i, end, out, at)
        groups += 1
        i = end
    store_little_endian(out, 0, groups, 8)


@njit(nogil=True, cache=True)
def index_range(values: IntArray, first: Integer, last: Integer) -> Integers:
    """Return the range of indexes of the values in [first, last]; `values` are ascending."""
    values = borrowed(values)
    return np.searchsorted(values, first), np.searchsorted(values, last, "right")
