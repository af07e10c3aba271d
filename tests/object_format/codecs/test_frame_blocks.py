"""Bounds on the work of decompressing a frame, computed from its headers."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import lz4.frame
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from object_format.buffers import readable
from object_format.codecs.codec import Codec, CompressedDataError, compress, decompress
from object_format.codecs.zstd_library import zstd
from object_format.kernels.codecs.frame_blocks import frame_bounds
from tests.object_format.codecs.test_native_codecs import forged_lz4_frames, large_block

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


Bounds = tuple[int, int, bool]


def lz4_bounds(frame: bytes, max_blocks: int) -> Bounds | None:
    """Follow the LZ4 Frame Format, without its checksums."""
    if frame[:4] != b"\x04\x22\x4d\x18" or len(frame) < 7:
        return None
    flags, descriptor = frame[4], frame[5]
    if flags >> 6 != 1 or flags & 3 or descriptor & 0x8F or descriptor < 0x40:
        return None
    stated, at = 0, 7
    if flags & 8:
        stated, at = int.from_bytes(frame[6:14], "little"), 15
        if len(frame) < 15 or stated >= 1 << 63:
            return None
    blocks = contents = 0
    while len(frame) >= at + 4 and blocks <= max_blocks:
        word = int.from_bytes(frame[at : at + 4], "little")
        if not word:
            return blocks, stated or contents, stated > 0
        size = word % (1 << 31)
        blocks += 1
        contents += size if word >> 31 else min(255 * size, 1 << (8 + 2 * (descriptor >> 4)))
        at += 4 + size + (4 if flags & 16 else 0)
    return None


def zstd_bounds(frame: bytes, max_blocks: int) -> Bounds | None:
    """Follow RFC 8878, without dictionaries."""
    if frame[:4] != b"\x28\xb5\x2f\xfd" or len(frame) < 6 or frame[4] & 3:
        return None
    is_single = frame[4] >> 5 & 1
    width = (is_single, 2, 4, 8)[frame[4] >> 6]
    at = 5 + (1 - is_single) + width
    stated = int.from_bytes(frame[at - width : at], "little") + (256 if width == 2 else 0)
    if at > len(frame) or stated >= 1 << 63:
        return None
    blocks = contents = 0
    while at + 3 <= len(frame):
        head = int.from_bytes(frame[at : at + 3], "little")
        kind, size = head >> 1 & 3, head >> 3
        blocks += 1
        if kind == 3 or blocks > max_blocks:
            return None
        contents += 1 << 17 if kind == 2 else size
        at += 3 + (1 if kind == 1 else size)
        if at > len(frame):
            return None
        if head & 1:
            return blocks, stated if width else contents, width > 0
    return None


@st.composite
def forged_zstd_frames(draw: st.DrawFn) -> bytes:
    """Return frames with any sizes and any blocks, whose contents are zeros."""
    descriptor = draw(st.sampled_from(range(0, 256, 32))) | draw(st.sampled_from([0] * 12 + [1, 2, 4, 8]))
    is_single = descriptor >> 5 & 1
    width = (is_single, 2, 4, 8)[descriptor >> 6]
    stated = draw(st.sampled_from([0, 1, 255, (1 << 63) - 1, 1 << 63])) % (1 << 8 * width)
    frame = (
        b"\x28\xb5\x2f\xfd" + bytes([descriptor]) + bytes(1 - is_single) + stated.to_bytes(width, "little")
    )
    blocks = draw(st.lists(st.tuples(st.sampled_from([0, 1, 2, 0, 1, 2, 3]), st.integers(0, 9)), max_size=4))
    for number, (kind, size) in enumerate(blocks):
        is_last = number == len(blocks) - 1 or draw(st.integers(0, 9)) == 0
        frame += (size << 3 | kind << 1 | is_last).to_bytes(3, "little") + bytes(1 if kind == 1 else size)
    return frame[: len(frame) - draw(st.sampled_from([0] * 8 + [1, 2, 3, 4]))]


@settings(max_examples=200)
@given(
    st.one_of(
        st.tuples(st.just(Codec.LZ4), forged_lz4_frames()),
        st.tuples(st.just(Codec.ZSTD), forged_zstd_frames()),
    ),
    st.integers(0, 4),
)
@example((Codec.LZ4, large_block(1 << 16, 4)), 1)
def test_the_bounds_follow_from_the_headers(frame: tuple[Codec, bytes], max_blocks: int) -> None:
    codec, data = frame
    expected = (lz4_bounds if codec is Codec.LZ4 else zstd_bounds)(data, max_blocks)

    found = frame_bounds(readable(b"\xff" * 3 + data + b"\xff"), 3, len(data), codec, max_blocks)

    assert tuple(found) == ((-1, 0, False) if expected is None else expected)
