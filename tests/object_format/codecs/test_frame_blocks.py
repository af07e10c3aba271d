"""Bounds on the work of decompressing a frame, computed from its headers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import lz4.frame
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from object_format.buffers import readable
from object_format.codecs.codec import Codec, CompressedDataError, compress, decompress
from object_format.codecs.zstd_library import zstd
from object_format.kernels.codecs.frame_blocks import frame_bounds

if TYPE_CHECKING:
    from collections.abc import Callable


def _work(codec: Codec, frame: bytes, max_blocks: int = 1000) -> tuple[int, int]:
    # Surrounded by other bytes, as in a request.
    blocks, contents, _ = frame_bounds(
        readable(b"\xff" * 3 + frame + b"\xff"), 3, len(frame), codec, max_blocks
    )
    return int(blocks), int(contents)


def _streamed(data: bytes) -> bytes:
    """Compress like Java's stream, which does not state the content size."""
    compressor = zstd.ZstdCompressor()
    return compressor.compress(data) + compressor.flush()


_WRITERS: dict[str, tuple[Codec, Callable[[bytes], bytes]]] = {
    "ours, lz4": (Codec.LZ4, lambda data: compress(Codec.LZ4, data)),
    "ours, zstd": (Codec.ZSTD, lambda data: compress(Codec.ZSTD, data)),
    "zstd without a size": (Codec.ZSTD, _streamed),
    "lz4 with a size": (Codec.LZ4, lambda data: lz4.frame.compress(data, store_size=True)),
    "lz4 with checksums": (
        Codec.LZ4,
        lambda data: lz4.frame.compress(data, block_checksum=True, content_checksum=True, store_size=False),
    ),
    "lz4 in large blocks": (
        Codec.LZ4,
        lambda data: lz4.frame.compress(data, block_size=lz4.frame.BLOCKSIZE_MAX4MB, store_size=False),
    ),
}


@settings(max_examples=60, deadline=None)
@given(
    writer=st.sampled_from(sorted(_WRITERS)),
    size=st.sampled_from([1, 100, 255, 256, 300, 65_535, 65_536, 65_537, 300_000, 1_000_000]),
    kind=st.sampled_from(["same", "noise", "words"]),
)
def test_the_content_never_exceeds_the_bound(writer: str, size: int, kind: str) -> None:
    """This holds for frames of every writer, and every block is counted exactly once."""
    codec, write = _WRITERS[writer]
    chance = random.Random(size)
    words = b"".join(chance.choices([b"slate ", b"shale ", b"chert "], k=size // 6 + 1))[:size]
    data = {"same": bytes(size), "noise": chance.randbytes(size), "words": words}[kind]
    frame = bytes(write(data))
    blocks, contents = _work(codec, frame)
    assert 1 <= blocks <= 1 + size // 65_536 + 1
    assert contents >= size
    is_stated = writer in {"ours, zstd", "lz4 with a size"}
    assert frame_bounds(readable(frame), 0, len(frame), codec, blocks)[2] == is_stated
    if is_stated:
        assert contents == size
    assert _work(codec, frame, blocks) == (blocks, contents)
    assert _work(codec, frame, blocks - 1)[0] == -1
    for cut in {4, len(frame) // 2, len(frame) - 5} - {len(frame)}:
        assert _work(codec, frame[:cut])[0] == -1


def test_empty_blocks_are_counted() -> None:
    """Both formats allow any number of empty blocks, which take time as well."""
    empty_zstd = bytes.fromhex("28b52ffd0050") + bytes(3) * 500 + b"\x01\0\0"
    assert decompress(Codec.ZSTD, empty_zstd) == b""
    assert _work(Codec.ZSTD, empty_zstd) == (501, 0)
    header = lz4.frame.compress(b"", store_size=False)[:7]
    empty_lz4 = header + (b"\x01\0\0\0" + b"\0") * 500 + bytes(4)
    assert bytes(decompress(Codec.LZ4, empty_lz4)) == b""
    assert _work(Codec.LZ4, empty_lz4)[0] == 500


@pytest.mark.parametrize("codec", [Codec.LZ4, Codec.ZSTD])
def test_damaged_frames_never_exceed_the_bound(codec: Codec) -> None:
    """A damaged frame is rejected, or its content is within the bound."""
    chance = random.Random(5)
    frame_bytes = bytes(compress(codec, b"slate " * 50_000))
    for _ in range(500):
        frame = bytearray(frame_bytes[: chance.randrange(len(frame_bytes) + 1)] or frame_bytes)
        for _ in range(chance.randrange(4)):
            frame[chance.randrange(len(frame))] = chance.randrange(256)
        blocks, contents = _work(codec, bytes(frame))
        if blocks < 0:
            continue
        try:
            opened = decompress(codec, bytes(frame))
        except CompressedDataError:
            continue
        assert memoryview(opened).nbytes <= contents


def test_other_codecs_have_no_frame_bounds() -> None:
    for codec in (Codec.NONE, Codec.GZIP, Codec.SNAPPY):
        assert _work(codec, bytes(compress(codec, b"slate" * 100)))[0] == -1
