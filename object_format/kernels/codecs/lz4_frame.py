"""Decodes LZ4 frames block by block: liblz4 decompresses blocks, and this module reads the frame.

liblz4's own functions for frames may use the maximum block size (up to 4 MiB) before they check the output
size. Here, a block never gets more memory than is available. No state is left for the next frame. Format: LZ4
Frame Format 1.6.x.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.kernels.runtime.intrinsics import address_of, call_c, copy_bytes

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers

LZ4_DECOMPRESS = 0
LZ4_CHECKSUM = 1
"""Indexes of the codec table (see `native`): LZ4_decompress_safe_usingDict, and XXH32."""

STORED = 1 << 31
"""Flag in the size of a block: the block is not compressed."""

BLOCK_CHECKSUMS = 0x10
"""Flag of a frame: each block is followed by a checksum of 4 bytes."""

_MAGIC = 0x184D2204
_VERSION = 1
_INDEPENDENT, _SIZED, _CHECKSUM, _RESERVED, _DICTIONARY = 0x20, 8, 4, 2, 1
_MIN_SIZE_ID = 4
_FARTHEST = 1 << 16
"""Maximum distance of a block's references to previous bytes."""

_UNSUPPORTED = (-1, 0, 0, 0)


@njit(nogil=True, cache=True)
def load_little_endian(data: ByteArray, at: Integer, width: Integer) -> Integer:
    """Load an unsigned integer; `width` bytes from `at` must exist."""
    value = np.int64(0)
    for i in range(width):
        value |= np.int64(data[at + i]) << (8 * i)
    return value


@njit(nogil=True, cache=True)
def read_frame_header(data: ByteArray, start: Integer, end: Integer) -> Integers:
    """Return a frame's flags, maximum block size, stated content size or -1, and position of its first block.

    The flags are negative if this is not a frame or one with a dictionary. The header's checksum is not
    verified.
    """
    if end - start < 7 or load_little_endian(data, start, 4) != _MAGIC:
        return _UNSUPPORTED
    flags, descriptor = np.int64(data[start + 4]), np.int64(data[start + 5])
    size_id = descriptor >> 4
    if flags >> 6 != _VERSION or flags & (_RESERVED | _DICTIONARY) != 0:
        return _UNSUPPORTED
    if descriptor & 0x8F != 0 or size_id < _MIN_SIZE_ID:
        return _UNSUPPORTED
    largest = np.int64(1) << (8 + 2 * size_id)
    if flags & _SIZED == 0:
        return flags, largest, -1, start + 7
    stated = load_little_endian(data, start + 6, 8) if end - start >= 15 else -1
    if stated < 0:
        return _UNSUPPORTED
    return flags, largest, stated if stated > 0 else -1, start + 15  # liblz4 treats 0 as unknown


@njit(nogil=True, cache=True)
def lz4_into(
    data: ByteArray, start: Integer, size: Integer, out: ByteArray, at: Integer, codec_table: IntArray
) -> Integer:
    """Decompress one LZ4 frame of `size` bytes to `out` from `at` on; return its content size or -1."""
    end = start + size
    flags, largest, stated, position = read_frame_header(data, start, end)
    if (
        flags < 0
        or data[position - 1] != _sum(data, start + 4, position - start - 5, codec_table) >> 8 & 0xFF
    ):
        return -1
    trailer = 4 if flags & BLOCK_CHECKSUMS else 0
    done = at
    while position + 4 <= end:
        word = load_little_endian(data, position, 4)
        position += 4
        if word == 0:
            is_complete = _ends(data, position, end, flags, out, at, done, codec_table)
            return done - at if is_complete and (stated < 0 or stated == done - at) else -1
        length = word & ~STORED
        if length > largest or length + trailer > end - position:
            return -1
        if trailer and load_little_endian(data, position + length, 4) != _sum(
            data, position, length, codec_table
        ):
            return -1
        capacity = min(largest, out.size - done)
        before = 0 if flags & _INDEPENDENT else min(done - at, _FARTHEST)
        more = _block_into(data, position, word, out, done, capacity, before, codec_table)
        if more < 0:
            return -1
        done += more
        position += length + trailer
    return -1


@njit(nogil=True, cache=True)
def _block_into(
    data: ByteArray,
    position: Integer,
    word: Integer,
    out: ByteArray,
    at: Integer,
    capacity: Integer,
    before: Integer,
    codec_table: IntArray,
) -> Integer:
    """Decompress a block to at most `capacity` bytes of `out`; return their number, or a negative number.

    The block may refer to the `before` bytes that precede its output.
    """
    size = word & ~STORED
    if word & STORED:
        if size > capacity:
            return -1
        copy_bytes(data, position, out, at, size)
        return size
    target = address_of(out, at)
    source = address_of(data, position)
    written = call_c(codec_table[LZ4_DECOMPRESS], (source, target, size, capacity, target - before, before))
    return np.int64(np.int32(written))


@njit(nogil=True, cache=True)
def _ends(
    data: ByteArray,
    position: Integer,
    end: Integer,
    flags: Integer,
    out: ByteArray,
    first: Integer,
    last: Integer,
    codec_table: IntArray,
) -> Integer:
    """Return whether a frame whose blocks end at `position` ends at `end`, with the right checksum."""
    if flags & _CHECKSUM == 0:
        return position == end
    return position + 4 == end and load_little_endian(data, position, 4) == _sum(
        out, first, last - first, codec_table
    )


@njit(nogil=True, cache=True)
def _sum(data: ByteArray, start: Integer, size: Integer, codec_table: IntArray) -> Integer:
    """Return the XXH32 of bytes, which must exist."""
    return call_c(codec_table[LZ4_CHECKSUM], (address_of(data, start), size, 0)) & 0xFFFFFFFF
