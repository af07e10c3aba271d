"""Combines CRC-32C checksums of concatenated parts without reading the parts again.

A checksum is a polynomial over GF(2) modulo Castagnoli's, with the highest power in the lowest bit. Appending
n bytes multiplies it by x^(8n) and adds the checksum of the appended bytes (as in zlib's crc32_combine, with
another polynomial). A table contains the powers of x for each byte of a length, so that a length below 64 KiB
takes two multiplications.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
from numba import njit

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import IntArray, Integer

_POLYNOMIAL: Final = 0x82F63B78  # Castagnoli's, reflected
_ONE: Final = 0x80000000  # x^0
_MASK: Final = 0xFFFFFFFF


@njit(nogil=True, cache=True)
def _multiply(a: Integer, b: Integer) -> Integer:
    """Return the product of two polynomials."""
    product = np.int64(0)
    for bit in range(31, -1, -1):
        # Branch-free, because the bits are unpredictable.
        product ^= b & -(a >> bit & 1)
        b = b >> 1 ^ _POLYNOMIAL & -(b & 1)
    return product


def byte_table() -> IntArray:
    """Return the usual table of a bytewise CRC: the effect of a byte in the low bits of the state."""
    table = np.empty(256, np.int64)
    for number in range(256):
        value = number
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        table[number] = value
    return table


def _length_table() -> IntArray:
    """Return x^(8 n) for n = v 256^k, at [k, v]."""
    table = np.empty((4, 256), np.int64)
    step = _ONE >> 8  # x^8
    for row in table:
        power = _ONE
        for value in range(256):
            row[value] = power
            power = _multiply(power, step)
        step = power
    return table


_BYTES: Final = byte_table()
_LENGTHS: Final = _length_table()


@njit(nogil=True, cache=True)
def extend_by_number(checksum: Integer, number: Integer, width: Integer) -> Integer:
    """Return the checksum after a big-endian integer of `width` bytes."""
    state = checksum ^ _MASK
    for shift in range(8 * (width - 1), -1, -8):
        state = _BYTES[np.uint64((state ^ number >> shift) & 0xFF)] ^ state >> 8
    return state ^ _MASK


@njit(nogil=True, cache=True)
def extend_by_part(checksum: Integer, part: Integer, length: Integer) -> Integer:
    """Return the checksum after `length` bytes (at most 2^32 - 1) with the checksum `part`."""
    for row in range(4):
        value = length >> (8 * row) & 0xFF
        if value:
            checksum = _multiply(checksum, _LENGTHS[row, value])
    return checksum ^ part
