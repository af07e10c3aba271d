"""Kafka's five compression types, implemented with libraries and with bounded output.

Snappy is written in the framing of xerial's snappy-java, as Kafka's Java client does. Raw blocks, which other
clients write, can be read as well. LZ4 is written as frames with independent blocks, the only kind that
Kafka's Java client reads.
"""

from __future__ import annotations

import struct
import threading
from enum import IntEnum
from typing import TYPE_CHECKING, Final

import cramjam
import lz4.frame
import numpy as np
from isal import isal_zlib
from isal.isal_zlib import IsalError

from core.errors import CorruptDataError
from object_format.codecs.zstd_library import zstd
from object_format.kernels.codecs.native import SMALL_SOURCE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from typing_extensions import Buffer

MAX_DECOMPRESSED_BATCH_BYTES: Final = 64 * 1024 * 1024
"""Maximum decompressed size of a batch.

Kafka limits the compressed size only (message.max.bytes, 1 MiB by default). A compaction task must be able to
hold a batch decompressed, filtered and compressed within 256 MiB.
"""

ZSTD_MAX_WINDOW: Final = 1 << 27
"""Window that zstd decoders accept by default, and that level 22 uses. Unused parts take no memory."""

ZSTD_LEVEL: Final = 3
"""Default level of both the library and Kafka."""

ZSTD_SMALL_HASH_LOG: Final = 14
ZSTD_SMALL_CHAIN_LOG: Final = 12
"""Table sizes for inputs of up to `SMALL_SOURCE` bytes.

From 16 KiB on they are two and three below the level's own, and less below, where the level's tables are
smaller anyway. The tables take at most 80 KiB and stay in the first cache levels. Compression is a tenth
faster. Text and numbers grow by up to 2.6 %, which merged batches offset by being larger; values of 1 KiB
shrink.
"""

_ZSTD_SMALL_OPTIONS: Final[dict[int, int]] = {
    zstd.CompressionParameter.compression_level: ZSTD_LEVEL,
    zstd.CompressionParameter.hash_log: ZSTD_SMALL_HASH_LOG,
    zstd.CompressionParameter.chain_log: ZSTD_SMALL_CHAIN_LOG,
}

_GZIP_WBITS: Final = 31
_GZIP_PART: Final = 1 << 20
"""Bytes per call of the library, which copies its output."""

_GZIP_FIRST: Final = 4 << 10
"""Bytes of a gzip member for the first call; each following call gets twice as many, up to a part."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 64 * 1024
_LZ4_MAX_RATIO: Final = 255
"""One more byte of a match length adds at most 255 bytes."""

_ZSTD_PART: Final = 1 << 20
"""Bytes of a zstd frame that are decompressed per call."""

_ZSTD_OPTIONS: Final[dict[int, int]] = {
    zstd.DecompressionParameter.window_log_max: ZSTD_MAX_WINDOW.bit_length() - 1
}

_LIBRARY_ERRORS: Final[tuple[type[Exception], ...]] = (
    IsalError,  # type: ignore[assignment]  # its stub declares the class as an instance
    cramjam.DecompressionError,
    zstd.ZstdError,
    EOFError,
    ValueError,
)


class Codec(IntEnum):
    """Compression type, with its number in batch attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CompressedDataError(CorruptDataError):
    """Bytes cannot be decompressed."""


class DecompressedTooLargeError(CompressedDataError):
    """Decompressed bytes exceed the limit."""


class _Zstandard(threading.local):
    """zstd contexts of one thread. They are expensive to create and must not be shared between threads."""

    def __init__(self) -> None:
        self.compressor = zstd.ZstdCompressor(level=ZSTD_LEVEL)
        self.small_compressor = zstd.ZstdCompressor(options=_ZSTD_SMALL_OPTIONS)


_zstd = _Zstandard()


def compress(codec: Codec, data: Buffer) -> bytes:
    """Compress `data` at the library's default level, which is also Kafka's default.

    For small inputs, zstd uses smaller tables.
    """
    return b"".join(compressed_parts(codec, data))


def compressed_parts(codec: Codec, data: Buffer) -> Iterator[Buffer]:
    """Yield the result of `compress` in parts. gzip and snappy hold only one part in memory."""
    view = memoryview(data).cast("B")
    match codec:
        case Codec.NONE:
            yield view
        case Codec.GZIP:
            yield from _compress_gzip(view)
        case Codec.SNAPPY:
            yield from _compress_xerial(view)
        case Codec.LZ4:
            yield lz4.frame.compress(
                view, block_size=lz4.frame.BLOCKSIZE_MAX64KB, block_linked=False, store_size=False
            )
        case Codec.ZSTD:
            compressor = _zstd.small_compressor if len(view) <= SMALL_SOURCE else _zstd.compressor
            yield compressor.compress(view, zstd.ZstdCompressor.FLUSH_FRAME)


def decompress(codec: Codec, data: Buffer, *, limit: int = MAX_DECOMPRESSED_BATCH_BYTES) -> Buffer:
    """Decompress `data` to at most `limit` bytes.

    Raises DecompressedTooLargeError above `limit`, and CompressedDataError for any other problem.
    """
    view = memoryview(data).cast("B")
    try:
        match codec:
            case Codec.NONE:
                return _within(view, limit)
            case Codec.GZIP:
                return _decompress_gzip(view, limit)
            case Codec.SNAPPY:
                return _decompress_snappy(view, limit)
            case Codec.LZ4:
                return _decompress_lz4(view, limit)
            case Codec.ZSTD:
                return _decompress_zstd(view, limit)
    except _LIBRARY_ERRORS as error:
        raise CompressedDataError(f"{codec.name.lower()} data is malformed: {error}") from error


def _too_large(limit: int) -> DecompressedTooLargeError:
    return DecompressedTooLargeError(f"data decompresses to more than {limit} bytes")


def _within(data: memoryview, limit: int) -> memoryview:
    if len(data) > limit:
        raise _too_large(limit)
    return data


def _decompress_gzip(data: memoryview, limit: int) -> Buffer:
    """Decompress one or more gzip members, like Java's GZIPInputStream.

    A decoder copies the input after the end of its member. To keep the cost of many small members linear,
    each decoder first gets only a few bytes.
    """
    output = bytearray()
    at = 0
    while at < len(data) or not at:
        member = isal_zlib.decompressobj(wbits=_GZIP_WBITS)
        block = _GZIP_FIRST
        while not member.eof:
            piece = data[at : at + block]
            if not piece:
                raise CompressedDataError("the gzip data is truncated")
            output += member.decompress(piece, limit - len(output) + 1)
            if len(output) > limit:
                raise _too_large(limit)
            at += len(piece) - len(member.unused_data)
            block = min(2 * block, _GZIP_PART)
    return output


def _decompress_snappy(data: memoryview, limit: int) -> Buffer:
    if data[: len(_XERIAL_MAGIC)].tobytes() == _XERIAL_MAGIC:
        return _decompress_xerial(data, limit)
    if cramjam.snappy.decompress_raw_len(data) > limit:
        raise _too_large(limit)
    return cramjam.snappy.decompress_raw(data)


def _decompress_xerial(data: memoryview, limit: int) -> Buffer:
    """Decompress a sequence of length-prefixed blocks of raw snappy."""
    output = bytearray()
    at = len(_XERIAL_HEADER)
    if len(data) < at:
        raise CompressedDataError("the snappy data ends inside its header")
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        at += 4
        block = data[at : at + length]
        if len(block) < length or not length:
            raise CompressedDataError("a snappy block extends beyond the data")
        if len(output) + cramjam.snappy.decompress_raw_len(block) > limit:
            raise _too_large(limit)
        output += memoryview(cramjam.snappy.decompress_raw(block))
        at += length
    return output


def _compress_gzip(data: memoryview) -> Iterator[bytes]:
    if len(data) <= _GZIP_PART:
        yield isal_zlib.compress(data, wbits=_GZIP_WBITS)
        return
    member = isal_zlib.compressobj(wbits=_GZIP_WBITS)
    for at in range(0, len(data), _GZIP_PART):
        yield member.compress(data[at : at + _GZIP_PART])
    yield member.flush()


def _compress_xerial(data: memoryview) -> Iterator[Buffer]:
    yield _XERIAL_HEADER
    for at in range(0, len(data), _XERIAL_BLOCK):
        block = memoryview(cramjam.snappy.compress_raw(data[at : at + _XERIAL_BLOCK]))
        yield len(block).to_bytes(4, "big")
        yield block


def _decompress_lz4(data: memoryview, limit: int) -> bytes:
    """Decompress exactly one frame. Trailing bytes, which Java's reader ignores, are an error."""
    context = lz4.frame.create_decompression_context()
    capacity = min(len(data) * _LZ4_MAX_RATIO, limit)
    try:
        records, read, ended = lz4.frame.decompress_chunk(context, data, max_length=capacity + 1)
    except RuntimeError as error:
        raise CompressedDataError(f"lz4 data is malformed: {error}") from error
    if len(records) > limit:
        raise _too_large(limit)
    if not ended:
        raise CompressedDataError("the lz4 data is truncated")
    if read < len(data):
        raise CompressedDataError("there are bytes after the lz4 frame")
    return bytes(records)


def _decompress_zstd(data: memoryview, limit: int) -> Buffer:
    """Decompress exactly one frame, directly into an array if the frame states its content size."""
    size: int | None = zstd.get_frame_info(data).decompressed_size
    if size is not None and size > limit:
        raise _too_large(limit)
    parts = _parts_of_zstd(data)
    if size is None:
        return _joined(parts, limit)
    output = np.empty(size, np.uint8).data  # not touched in advance: the size may be false
    at = 0
    for part in parts:
        if len(part) > size - at:
            raise CompressedDataError("the zstd data is longer than its frame states")
        output[at : at + len(part)] = part
        at += len(part)
    if at < size:
        raise CompressedDataError("the zstd data is shorter than its frame states")
    return output


def _joined(parts: Iterator[bytes], limit: int) -> bytearray:
    output = bytearray()
    for part in parts:
        if len(output) + len(part) > limit:
            raise _too_large(limit)
        output += part
    return output


def _parts_of_zstd(data: memoryview) -> Iterator[bytes]:
    frame = zstd.ZstdDecompressor(options=_ZSTD_OPTIONS)
    at = 0
    while not frame.eof:
        block = data[at : at + _ZSTD_PART] if frame.needs_input else b""  # unused input is copied
        if frame.needs_input and not block:
            raise CompressedDataError("the zstd data is truncated")
        at += len(block)
        yield frame.decompress(block, max_length=_ZSTD_PART)
    if frame.unused_data or at < len(data):
        raise CompressedDataError("there are bytes after the zstd frame")
