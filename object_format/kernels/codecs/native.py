"""Compresses and decompresses many batches per call, with the C functions of the codec libraries.

`object_format.codecs.native` looks up the functions and creates their contexts. It passes them as
`codec_table`: int64[CODEC_TABLE_SIZE], addresses of functions and contexts at the indexes below.

Only valid data of one ordinary frame is supported. `object_format.codecs.codec` handles everything else, and
reports what is wrong with invalid data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.kernels.batches.layout import (
    ATTRIBUTES,
    BATCH_LENGTH,
    BATCH_OVERHEAD,
    CODEC_MASK,
    LENGTH_OVERHEAD,
    SMALLEST_RECORD,
)
from object_format.kernels.codecs.lz4_frame import lz4_into
from object_format.kernels.runtime.intrinsics import address_of, borrowed, call_c, copy_bytes
from object_format.kernels.runtime.primitives import store

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers, Rows

LZ4_COMPRESS = 2  # 0 and 1 are defined in `lz4_frame`
LZ4_PREFERENCES = 3
ZSTD_DECOMPRESS = 4
ZSTD_FRAME_SIZE = 5
ZSTD_DECOMPRESSION_CONTEXT = 6
ZSTD_COMPRESS = 7
ZSTD_COMPRESSION_CONTEXT = 8
ZSTD_SMALL_CONTEXT = 9
ZSTD_MAX_WINDOW = 10
CODEC_TABLE_SIZE = 11

_LZ4 = 3
_ZSTD = 4
SMALL_SOURCE = 1 << 17
"""Up to this size, libzstd uses other parameters, those of ZSTD_SMALL_CONTEXT."""

_ZSTD_HEADER = 6
"""Magic, descriptor, and either the window size or the first byte of the content size."""


@njit(nogil=True, cache=True)
def is_supported_zstd_frame(data: ByteArray, start: Integer, size: Integer, max_window: Integer) -> Integer:
    """Return True if the bytes start like a zstd frame without a dictionary (RFC 8878 §3.1.1.1)."""
    if size <= _ZSTD_HEADER:
        return False
    if (
        data[start] != 0x28
        or data[start + 1] != 0xB5
        or data[start + 2] != 0x2F
        or data[start + 3] != 0xFD
        or data[start + 4] & 3 != 0
    ):
        return False
    if data[start + 4] & 0x20 != 0:
        return True
    window = np.int64(data[start + 5])
    base = np.int64(1) << (10 + (window >> 3))
    return base + (base >> 3) * (window & 7) <= max_window


@njit(nogil=True, cache=True)
def zstd_into(
    data: ByteArray, start: Integer, size: Integer, out: ByteArray, at: Integer, codec_table: IntArray
) -> Integer:
    """Decompress `size` bytes, one zstd frame, to `out` from `at` on; return its size, or -1."""
    if not is_supported_zstd_frame(data, start, size, codec_table[ZSTD_MAX_WINDOW]):
        return -1
    source = address_of(data, start)
    if call_c(codec_table[ZSTD_FRAME_SIZE], (source, size)) != size:
        return -1
    return call_c(
        codec_table[ZSTD_DECOMPRESS],
        (codec_table[ZSTD_DECOMPRESSION_CONTEXT], address_of(out, at), out.size - at, source, size),
    )


@njit(nogil=True, cache=True)
def decompress_rows(
    data: ByteArray,
    rows: Rows,
    indexes: IntArray,
    first: Integer,
    out: ByteArray,
    at: Integer,
    codec_table: IntArray,
) -> Integers:
    """Decompress the batches rows[indexes[first:]] to `out` from `at` on.

    Stops at the first batch that does not fit or is not supported. Rows are updated to point to their
    records. Returns the position in `indexes` of the first remaining batch, and the end of the output.
    """
    data, rows, out, codec_table = borrowed(data), borrowed(rows), borrowed(out), borrowed(codec_table)
    used: Integer = np.int64(at)
    length: Integer = np.int64(0)
    for n in range(first, indexes.size):
        row = rows[indexes[n]]
        if used + length >= out.size:  # batches often have similar sizes: this one would not fit
            return n, used
        start = row.position + BATCH_OVERHEAD
        size = row.size - BATCH_OVERHEAD
        codec = row.attributes & CODEC_MASK
        length = -1
        if codec == _LZ4 and size > 0:
            length = lz4_into(data, start, size, out, used, codec_table)
        elif codec == _ZSTD:
            length = zstd_into(data, start, size, out, used, codec_table)
        if length < 0 or row.record_count * SMALLEST_RECORD > length:
            return n, used
        row.records_start = used
        used += length
        row.records_end = used
    return indexes.size, used


@njit(nogil=True, cache=True)
def chunk_end(rows: Rows, indexes: IntArray, first: Integer, capacity: Integer, native: Integer) -> Integer:
    """Return where `decompress_batches` with this `capacity` would have stopped, for opened batches.

    `native` tells whether the libraries' functions were available, so that `decompress_rows` came first.
    """
    rows, indexes = borrowed(rows), borrowed(indexes)
    used: Integer = np.int64(0)
    length: Integer = np.int64(0)
    n = first
    while native and n < indexes.size and rows[indexes[n]].attributes & CODEC_MASK >= _LZ4:
        next_used = used + length
        length = opened_size(rows, indexes[n])
        if next_used >= capacity or length > capacity - used:
            break
        used += length
        n += 1
    if n > first:
        return n
    used = opened_size(rows, indexes[first])
    n = first + 1
    while n < indexes.size and not (native and rows[indexes[n]].attributes & CODEC_MASK >= _LZ4):
        used += opened_size(rows, indexes[n])
        if used > capacity:
            break
        n += 1
    return n


@njit(nogil=True, cache=True)
def opened_size(rows: Rows, b: Integer) -> Integer:
    """Return the size of the records of the opened batch `b`."""
    return rows[b].records_end - rows[b].records_start


@njit(nogil=True, cache=True)
def compress_into(
    source: ByteArray,
    start: Integer,
    size: Integer,
    codec: Integer,
    out: ByteArray,
    at: Integer,
    codec_table: IntArray,
) -> Integer:
    """Compress `size` bytes to `out` from `at` on; return the compressed size, or a negative number."""
    if codec == 0:
        if size > out.size - at:
            return -1
        copy_bytes(source, start, out, at, size)
        return size
    source_at = address_of(source, start)
    target = address_of(out, at)
    if codec == _LZ4:
        return call_c(
            codec_table[LZ4_COMPRESS], (target, out.size - at, source_at, size, codec_table[LZ4_PREFERENCES])
        )
    if codec == _ZSTD:
        context = codec_table[ZSTD_SMALL_CONTEXT if size <= SMALL_SOURCE else ZSTD_COMPRESSION_CONTEXT]
        return call_c(codec_table[ZSTD_COMPRESS], (context, target, out.size - at, source_at, size))
    return -1


@njit(nogil=True, cache=True)
def compress_batches(
    source: ByteArray,
    length: Integer,
    rewritten: IntArray,
    merged_codec: Integer,
    out: ByteArray,
    codec_table: IntArray,
) -> Integer:
    """Copy `source` to `out`, compressing the batches of `rewritten`; return the end, or -1 on failure.

    `rewritten` is that of `merge.assemble`, and is updated to the locations in `out`. Merged batches get
    `merged_codec` unless it is negative.
    """
    source, rewritten, out = borrowed(source), borrowed(rewritten), borrowed(out)
    codec_table = borrowed(codec_table)
    at = np.int64(0)
    done = np.int64(0)
    for n in range(rewritten.shape[0]):
        start, end, codec, unmerged_size = rewritten[n, 0], rewritten[n, 1], rewritten[n, 2], rewritten[n, 3]
        if unmerged_size != 0 and merged_codec >= 0:
            codec = merged_codec
        header_end = start + BATCH_OVERHEAD - done
        if header_end > out.size - at:
            return -1
        copy_bytes(source, done, out, at, header_end)
        at += header_end
        batch = at - BATCH_OVERHEAD
        written = compress_into(
            source, start + BATCH_OVERHEAD, end - start - BATCH_OVERHEAD, codec, out, at, codec_table
        )
        if written < 0:
            return -1
        at += written
        store(out, batch + BATCH_LENGTH, at - batch - LENGTH_OVERHEAD, 4)
        out[batch + ATTRIBUTES + 1] = out[batch + ATTRIBUTES + 1] & ~CODEC_MASK | codec
        rewritten[n, 0] = batch
        rewritten[n, 1] = at
        done = end
    if length - done > out.size - at:
        return -1
    copy_bytes(source, done, out, at, length - done)
    return at + length - done
