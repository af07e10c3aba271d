"""What surveys of whole requests read with: every length is held against the message's end."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.kernels.runtime.primitives import load_i16, load_i32

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, Integer, Integers


@njit(nogil=True, cache=True)
def varint(data: ByteArray, at: Integer) -> Integers:
    """An unsigned varint of at most 32 bits, and where it ends: -1 where it does not."""
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
def length_at(data: ByteArray, at: Integer, is_flexible: Integer, width: Integer) -> Integers:
    """A length (of `width` bytes where messages are not flexible), and where it ends: -1 for none."""
    if is_flexible:
        value, end = varint(data, at)
        return value - 1, end
    if at + width > data.size:
        return 0, -1
    return (load_i16(data, at) if width == 2 else load_i32(data, at)), at + width


@njit(nogil=True, cache=True)
def untagged(data: ByteArray, at: Integer, is_flexible: Integer) -> Integer:
    """Behind the tagged fields, of which there are none; -1 where there are."""
    if not is_flexible:
        return at
    return at + 1 if at < data.size and data[at] == 0 else -1
