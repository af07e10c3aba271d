"""Big-endian integers and Kafka's zigzag varints.

Varints follow Kafka's ByteUtils and Protocol Buffers: at most 5 bytes for 32 bits and 10 for 64 bits; excess
bits are dropped.

Indexes that cannot be negative are converted to unsigned integers. Numba then omits Python's rule for
negative indexes, which would prevent the compiler from loading and copying several bytes at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, Integer, Integers

VARINT_BYTES = 5
VARLONG_BYTES = 10

_1 = np.uint64(1)
_2 = np.uint64(2)
_3 = np.uint64(3)


@njit(nogil=True, cache=True)
def load_i16(data: ByteArray, at: Integer) -> Integer:
    """Load a signed 16-bit integer; two bytes from `at` must exist."""
    i = np.uint64(at)
    value = np.int64(data[i]) << 8 | np.int64(data[i + _1])
    return value - ((value & 0x8000) << 1)


@njit(nogil=True, cache=True)
def load_u32(data: ByteArray, at: Integer) -> Integer:
    """Load an unsigned 32-bit integer; four bytes from `at` must exist."""
    i = np.uint64(at)
    return (
        np.int64(data[i]) << 24
        | np.int64(data[i + _1]) << 16
        | np.int64(data[i + _2]) << 8
        | np.int64(data[i + _3])
    )


@njit(nogil=True, cache=True)
def load_i32(data: ByteArray, at: Integer) -> Integer:
    """Load a signed 32-bit integer; four bytes from `at` must exist."""
    value = load_u32(data, at)
    return value - ((value & 0x80000000) << 1)


@njit(nogil=True, cache=True)
def load_i64(data: ByteArray, at: Integer) -> Integer:
    """Load a signed 64-bit integer; eight bytes from `at` must exist."""
    return load_u32(data, at) << 32 | load_u32(data, at + 4)


@njit(nogil=True, cache=True)
def store(data: ByteArray, at: Integer, value: Integer, width: Integer) -> None:
    """Write the low `width` bytes of `value`."""
    for i in range(width):
        data[np.uint64(at + i)] = np.uint8((value >> ((width - 1 - i) * 8)) & 0xFF)


@njit(nogil=True, cache=True, forceinline=True)
def read_short_varint(data: ByteArray, at: Integer) -> Integers:
    """Return a varint of one or two bytes, the position after it, and 0 unless it is longer.

    Two bytes must exist.
    """
    i = np.uint64(at)
    raw = np.int64(data[i])
    if raw < 0x80:
        return (raw >> 1) ^ -(raw & 1), at + 1, 0
    second = np.int64(data[i + _1])
    raw = raw & 0x7F | second << 7
    return (raw >> 1) ^ -(raw & 1), at + 2, second & 0x80


@njit(nogil=True, cache=True)
def read_long_varint(data: ByteArray, at: Integer, end: Integer) -> Integers:
    """Do the work of `read_varint` for any length."""
    raw = np.int64(0)
    stop = min(end, at + VARINT_BYTES)
    shift = 0
    while at < stop:
        byte = np.int64(data[np.uint64(at)])
        raw |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            raw &= 0xFFFFFFFF
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
    return np.int64(0), -1


@njit(nogil=True, cache=True)
def read_varint(data: ByteArray, at: Integer, end: Integer) -> Integers:
    """Return a 32-bit varint and the position after it, which is -1 if the varint is incomplete."""
    i = np.uint64(at)
    if at + 1 < end:  # almost all varints have one or two bytes
        raw = np.int64(data[i])
        if raw < 0x80:
            return (raw >> 1) ^ -(raw & 1), at + 1
        second = np.int64(data[i + _1])
        if second < 0x80:
            raw = raw & 0x7F | second << 7
            return (raw >> 1) ^ -(raw & 1), at + 2
    return read_long_varint(data, at, end)


@njit(nogil=True, cache=True)
def read_long_varlong(data: ByteArray, at: Integer, end: Integer) -> Integers:
    """Do the work of `read_varlong` for any length."""
    raw = np.uint64(0)
    stop = min(end, at + VARLONG_BYTES)
    shift = np.uint64(0)
    while at < stop:
        byte = np.uint64(data[np.uint64(at)])
        raw |= (byte & np.uint64(0x7F)) << shift
        at += 1
        if byte < np.uint64(0x80):
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at
        shift += np.uint64(7)
    return np.int64(0), -1


@njit(nogil=True, cache=True)
def read_varlong(data: ByteArray, at: Integer, end: Integer) -> Integers:
    """Return a 64-bit varint and the position after it, which is -1 if the varint is incomplete."""
    i = np.uint64(at)
    if at + 1 < end:
        raw = np.int64(data[i])
        if raw < 0x80:
            return (raw >> 1) ^ -(raw & 1), at + 1
        second = np.int64(data[i + _1])
        if second < 0x80:
            raw = raw & 0x7F | second << 7
            return (raw >> 1) ^ -(raw & 1), at + 2
    return read_long_varlong(data, at, end)


@njit(nogil=True, cache=True)
def write_varlong(data: ByteArray, at: Integer, value: Integer) -> Integer:
    """Write a zigzag varint of up to 64 bits, and return the position after it; 10 bytes must exist."""
    raw = np.uint64(value << 1) ^ np.uint64(value >> 63)
    while raw >= np.uint64(0x80):
        data[np.uint64(at)] = np.uint8(raw & np.uint64(0x7F) | np.uint64(0x80))
        raw >>= np.uint64(7)
        at += 1
    data[np.uint64(at)] = np.uint8(raw)
    return at + 1


@njit(nogil=True, cache=True)
def varlong_size(value: Integer) -> Integer:
    """Return the number of bytes that `write_varlong` writes for `value`."""
    raw = np.uint64(value << 1) ^ np.uint64(value >> 63)
    size = 1
    while raw >= np.uint64(0x80):
        raw >>= np.uint64(7)
        size += 1
    return size
