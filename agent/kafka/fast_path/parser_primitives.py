"""Kernels that read lengths and tags of a request. Every position is checked against the request's end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.kernels.runtime.primitives import load_i16, load_i32

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, Integer, Integers


@njit(nogil=True, cache=True)
def read_varint(data: ByteArray, at: Integer) -> Integers:
    """Return an unsigned varint of at most 32 bits and its end; the end is -1 if it is incomplete."""
    value = np.int64(0)
    for i in range(5):
        if at + i >= data.size:
            break
        byte = np.int64(data[at + i])
        value |= (byte & 0x7F) << (7 * i)
        if byte < 0x80:
            return value, at + i + 1
    return 0, -1


@njit(nogil=True, cache=True)
def read_length(data: ByteArray, at: Integer, is_flexible: Integer, width: Integer) -> Integers:
    """Return a length and its end; the end is -1 if it is incomplete.

    In versions that are not flexible, the length has `width` bytes.
    """
    if is_flexible:
        value, end = read_varint(data, at)
        return value - 1, end
    if at + width > data.size:
        return 0, -1
    return (load_i16(data, at) if width == 2 else load_i32(data, at)), at + width


@njit(nogil=True, cache=True)
def expect_no_tags(data: ByteArray, at: Integer, is_flexible: Integer) -> Integer:
    """Return the end of an empty list of tagged fields; -1 if it has any."""
    if not is_flexible:
        return at
    return at + 1 if at < data.size and data[at] == 0 else -1
