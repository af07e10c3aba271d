"""Estimates the work of decompressing an LZ4 or zstd frame from its block headers.

The time of a decoder depends on the bytes that it reads and writes, and on the number of blocks: each block
may have its own tables, which take microseconds even if the block is small. Latency-sensitive callers
therefore count the blocks of a frame before they decompress it. Formats: LZ4 Frame Format 1.6.x, RFC 8878
§3.1.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.kernels.codecs.lz4_frame import (
    BLOCK_CHECKSUMS,
    STORED,
    load_little_endian,
    read_frame_header,
)
from object_format.kernels.runtime.intrinsics import borrowed

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, Integer, Integers

_LZ4 = 3
_ZSTD = 4
_LZ4_MAX_RATIO = 255  # one more byte of a match length adds at most 255 bytes
_ZSTD_MAGIC = 0xFD2FB528
_ZSTD_BLOCK = 128 * 1024
_RLE, _COMPRESSED, _RESERVED = 1, 2, 3
_UNSUPPORTED = (-1, 0, False)


@njit(nogil=True, cache=True)
def _lz4_work(data: ByteArray, start: Integer, end: Integer, max_blocks: Integer) -> Integers:
    flags, largest, stated, at = read_frame_header(data, start, end)
    if flags < 0:
        return _UNSUPPORTED
    trailer = 4 if flags & BLOCK_CHECKSUMS else 0
    blocks, contents = np.int64(0), np.int64(0)
    while at + 4 <= end:
        word = load_little_endian(data, at, 4)
        if word == 0:
            return blocks, contents if stated < 0 else stated, stated >= 0
        size = word & ~STORED
        blocks += 1
        contents += size if word & STORED else min(largest, size * _LZ4_MAX_RATIO)
        at += 4 + size + trailer
        if blocks > max_blocks:
            break
    return _UNSUPPORTED


@njit(nogil=True, cache=True)
def _zstd_work(data: ByteArray, start: Integer, end: Integer, max_blocks: Integer) -> Integers:
    if end - start < 6 or load_little_endian(data, start, 4) != _ZSTD_MAGIC:
        return _UNSUPPORTED
    descriptor = np.int64(data[start + 4])
    is_single, size_flag = descriptor >> 5 & 1, descriptor >> 6
    if descriptor & 3:
        return _UNSUPPORTED
    width = np.int64(1) << size_flag if size_flag else is_single
    at = start + 6 - is_single
    if at + width > end:
        return _UNSUPPORTED
    stated = np.int64(-1)
    if width:
        stated = load_little_endian(data, at, width) + (256 if width == 2 else 0)
        if stated < 0:
            return _UNSUPPORTED
    at += width
    blocks, contents = np.int64(0), np.int64(0)
    while at + 3 <= end:
        header = load_little_endian(data, at, 3)
        kind, size = header >> 1 & 3, header >> 3
        blocks += 1
        if kind == _RESERVED or blocks > max_blocks:
            break
        contents += _ZSTD_BLOCK if kind == _COMPRESSED else size
        at += 3 + (1 if kind == _RLE else size)
        if at > end:
            break
        if header & 1:
            return blocks, contents if stated < 0 else stated, stated >= 0
    return _UNSUPPORTED


@njit(nogil=True, cache=True)
def frame_bounds(
    data: ByteArray, start: Integer, size: Integer, codec: Integer, max_blocks: Integer
) -> Integers:
    """Return a frame's number of blocks, the maximum size of its content, and whether it states that size.

    The number of blocks is -1 if the bytes are not a supported frame, or have more than `max_blocks` blocks.
    A stated content size is not verified; decoders do that.
    """
    data = borrowed(data)
    if codec == _LZ4:
        return _lz4_work(data, start, start + size, max_blocks)
    if codec == _ZSTD:
        return _zstd_work(data, start, start + size, max_blocks)
    return _UNSUPPORTED
