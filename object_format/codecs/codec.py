"""The five compression types of Kafka, as libraries implement them, with bounded output.

Snappy is written in the framing of xerial's snappy-java, as Kafka's Java client does, and read with or
without it (other clients write raw blocks). LZ4 is its frame format with independent blocks, all that
Kafka's Java reader takes.
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
"""The capacity that one batch may grow to. Kafka bounds the compressed size alone (message.max.bytes, 1 MiB
by default); a compaction task must hold a batch decompressed, filtered and compressed again within 256 MiB.
"""

ZSTD_MAX_WINDOW: Final = 1 << 27
"""What zstd's decoders accept by default, and level 22 asks for; what is never written takes no memory."""

ZSTD_LEVEL: Final = 3
"""The library's default, and Kafka's."""

ZSTD_SMALL_HASH_LOG: Final = 14
ZSTD_SMALL_CHAIN_LOG: Final = 12
"""For up to `SMALL_SOURCE` bytes: two and three below the level's from 16 KiB on, and less below, where the
level's are smaller themselves. So tables have 80 KiB at the capacity, and stay in the first caches. A tenth
faster; text and numbers grow by up to 2.6 %, which merged batches make up for by being larger, and values of
1 KiB shrink."""

_ZSTD_SMALL_OPTIONS: Final[dict[int, int]] = {
    zstd.CompressionParameter.compression_level: ZSTD_LEVEL,
    zstd.CompressionParameter.hash_log: ZSTD_SMALL_HASH_LOG,
    zstd.CompressionParameter.chain_log: ZSTD_SMALL_CHAIN_LOG,
}

_GZIP_WBITS: Final = 31
_GZIP_PART: Final = 1 << 20
"""Bytes that one call compresses, or decompresses: it makes a copy of what it returns."""

_GZIP_FIRST: Final = 4 << 10
"""Bytes of a member that the first call decompresses; each next one twice as many, up to a part."""

_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEADER: Final = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_BLOCK: Final = 64 * 1024
_LZ4_MAX_RATIO: Final = 255
"""One more byte of a match length adds 255 bytes at the capacity."""

_ZSTD_PART: Final = 1 << 20
"""How much of a zstd frame is decompressed at a time."""

_ZSTD_OPTIONS: Final[dict[int, int]] = {
    zstd.DecompressionParameter.window_log_max: ZSTD_MAX_WINDOW.bit_length() - 1
}

_LIBRARY_ERRORS: Final[tuple[type[Exception], ...]] = (
    IsalError,  # type: ignore[assignment]  # its stub codec_table the class an instance
    cramjam.DecompressionError,
    zstd.ZstdError,
    EOFError,
    ValueError,
)


class Codec(IntEnum):
    """A compression type, by the number that batch attributes have."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


class CompressedDataError(CorruptDataError):
    """Bytes that cannot be decompressed."""


class DecompressedTooLargeError(CompressedDataError):
    """Bytes that decompress to more than the limit allows."""


class _Zstandard(threading.local):
    """zstd contexts are costly to make and must not be shared between threads."""

    def __init__(self) -> None:
        self.compressor = zstd.ZstdCompressor(level=ZSTD_LEVEL)
        self.small_compressor = zstd.ZstdCompressor(options=_ZSTD_SMALL_OPTIONS)


_zstd = _Zstandard()


def compress(codec: Codec, data: Buffer) -> bytes:
    """`data` compressed, at each library's default level (Kafka's default levels are the same).

    With smaller tables where `data` is small and the codec is zstd.
    """
    return b"".join(compressed_parts(codec, data))


def compressed_parts(codec: Codec, data: Buffer) -> Iterator[Buffer]:
    """What `compress` returns, in parts: gzip and snappy make one at a time, and hold no more than that."""
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
    """`data` decompressed; no more than `limit` bytes, whatever `data` claims.

    Raises DecompressedTooLargeError beyond `limit`, CompressedDataError for anything else that is wrong.
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
    """One gzip member or several, as Java's GZIPInputStream takes them.

    What is block to a decoder and stands behind its member is copied by it: so that many small members take
    no more time than their bytes do, each is block a little first.
    """
    output = bytearray()
    at = 0
    while at < len(data) or not at:
        member = isal_zlib.decompressobj(wbits=_GZIP_WBITS)
        block = _GZIP_FIRST
        while not member.eof:
            piece = data[at : at + block]
            if not piece:
                raise CompressedDataError("gzip data ends early")
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
    """Blocks of raw snappy, each behind its length."""
    output = bytearray()
    at = len(_XERIAL_HEADER)
    if len(data) < at:
        raise CompressedDataError("snappy data ends inside its header")
    while at < len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        at += 4
        block = data[at : at + length]
        if len(block) < length or not length:
            raise CompressedDataError("a snappy block reaches beyond the data")
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
    """One frame, and nothing behind it: what Java's reader would pass over is not what a producer wrote."""
    context = lz4.frame.create_decompression_context()
    capacity = min(len(data) * _LZ4_MAX_RATIO, limit)
    try:
        records, read, ended = lz4.frame.decompress_chunk(context, data, max_length=capacity + 1)
    except RuntimeError as error:
        raise CompressedDataError(f"lz4 data is malformed: {error}") from error
    if len(records) > limit:
        raise _too_large(limit)
    if not ended:
        raise CompressedDataError("lz4 data ends early")
    if read < len(data):
        raise CompressedDataError("lz4 data goes on behind its frame")
    return bytes(records)


def _decompress_zstd(data: memoryview, limit: int) -> Buffer:
    """One frame, and nothing behind it; straight into its place where the frame says how much there is."""
    size: int | None = zstd.get_frame_info(data).decompressed_size
    if size is not None and size > limit:
        raise _too_large(limit)
    parts = _parts_of_zstd(data)
    if size is None:
        return _joined(parts, limit)
    output = np.empty(size, np.uint8).data  # memory is only touched where something comes: a frame may lie
    at = 0
    for part in parts:
        if len(part) > size - at:
            raise CompressedDataError("zstd data is longer than its frame says")
        output[at : at + len(part)] = part
        at += len(part)
    if at < size:
        raise CompressedDataError("zstd data is shorter than its frame says")
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
        block = data[at : at + _ZSTD_PART] if frame.needs_input else b""  # it copies what it does not take
        if frame.needs_input and not block:
            raise CompressedDataError("zstd data ends early")
        at += len(block)
        yield frame.decompress(block, max_length=_ZSTD_PART)
    if frame.unused_data or at < len(data):
        raise CompressedDataError("zstd data goes on behind its frame")
