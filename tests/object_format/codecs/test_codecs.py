"""The five codecs: interoperability with other implementations, and bounded output."""

from __future__ import annotations

import gzip
import random
import resource
import subprocess
import sys

import cramjam
import lz4.frame
import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_format.codecs.codec import (
    MAX_DECOMPRESSED_BATCH_BYTES,
    Codec,
    CompressedDataError,
    DecompressedTooLargeError,
    compress,
    decompress,
)
from object_format.codecs.zstd_library import zstd
from tests.object_format import model

COMPRESSED = [codec for codec in Codec if codec is not Codec.NONE]


@given(st.sampled_from(Codec), st.binary(max_size=400), st.integers(1, 500))
def test_decompression_is_the_inverse_of_compression(codec: Codec, unit: bytes, times: int) -> None:
    data = unit * times
    assert bytes(decompress(codec, compress(codec, data))) == data


@given(st.sampled_from(Codec), st.binary(max_size=400), st.integers(1, 500))
def test_codecs_are_compatible_with_other_implementations(codec: Codec, unit: bytes, times: int) -> None:
    data = unit * times
    assert model.decompress(codec, compress(codec, data)) == data
    assert bytes(decompress(codec, model.compress(codec, data))) == data


@pytest.mark.parametrize("codec", COMPRESSED)
def test_incompressible_data_survives_a_round_trip(codec: Codec) -> None:
    noise = random.Random(1).randbytes(1_000_000)
    assert bytes(decompress(codec, compress(codec, noise))) == noise


def test_snappy_is_written_in_the_framing_of_java_clients() -> None:
    assert compress(Codec.SNAPPY, b"abc")[:16] == b"\x82SNAPPY\x00" + b"\0\0\0\1" * 2


def test_lz4_blocks_are_independent_as_java_requires() -> None:
    """Bit 5 of the frame's flags (FLG byte of the LZ4 frame format); no content size, no checksums."""
    written = compress(Codec.LZ4, bytes(500_000))
    assert written[:4] == b"\x04\x22\x4d\x18"
    assert written[4] & 0b00111101 == 0b00100000


def test_linked_lz4_blocks_with_checksums_are_read() -> None:
    data = b"some text " * 50_000
    written = lz4.frame.compress(data, block_linked=True, content_checksum=True, block_checksum=True)
    assert bytes(decompress(Codec.LZ4, written)) == data


def test_gzip_members_are_concatenated() -> None:
    assert bytes(decompress(Codec.GZIP, gzip.compress(b"ab") + gzip.compress(b"cd"))) == b"abcd"


def test_gzip_members_of_any_size_are_concatenated() -> None:
    """Members end at any position of a decoder's input; other trailing bytes are rejected."""
    parts = [bytes(range(256)) * count for count in (0, 1, 0, 0, 30, 4000, 3, 0, 16, 500)]
    data = b"".join(gzip.compress(part, level) for part in parts for level in (0, 6))
    content = b"".join(part * 2 for part in parts)
    assert bytes(decompress(Codec.GZIP, data)) == content
    assert bytes(decompress(Codec.GZIP, data, limit=len(content))) == content
    with pytest.raises(DecompressedTooLargeError):
        decompress(Codec.GZIP, data, limit=len(content) - 1)
    for damaged in (data + b"\0", data[:-1], data + gzip.compress(b"")[:-1], b""):
        with pytest.raises(CompressedDataError):
            decompress(Codec.GZIP, damaged)


def test_zstd_of_the_highest_level_is_read() -> None:
    stream = zstd.ZstdCompressor(level=22)
    written = stream.compress(b"x" * 100_000) + stream.flush()
    assert written[4] & 0x20 == 0  # the window size follows (RFC 8878 §3.1.1.1.2)
    assert written[5] == 27 - 10 << 3
    assert bytes(decompress(Codec.ZSTD, written)) == b"x" * 100_000


@pytest.mark.parametrize("codec", Codec)
def test_output_up_to_the_limit_is_accepted(codec: Codec) -> None:
    data = random.Random(2).randbytes(3000) * 40
    for written in (compress(codec, data), model.compress(codec, data)):
        assert bytes(decompress(codec, written, limit=len(data))) == data
        for limit in (len(data) - 1, 3000, 1, 0):
            with pytest.raises(DecompressedTooLargeError):
                decompress(codec, written, limit=limit)


@pytest.mark.parametrize("codec", COMPRESSED)
def test_truncated_data_is_rejected(codec: Codec) -> None:
    data = b"".join(b"line %d\n" % i for i in range(100))
    for written in (compress(codec, data), model.compress(codec, data)):
        for end in range(1, len(written)):
            try:
                found = bytes(decompress(codec, written[:end]))
            except CompressedDataError:
                continue
            assert codec is Codec.SNAPPY
            assert found == b""  # only the header of the framing


@pytest.mark.parametrize("codec", COMPRESSED)
def test_empty_input_is_rejected(codec: Codec) -> None:
    with pytest.raises(CompressedDataError):
        decompress(codec, b"")


@given(st.sampled_from(COMPRESSED), st.binary(max_size=200), st.data())
def test_damaged_data_is_decompressed_or_rejected(codec: Codec, data: bytes, draw: st.DataObject) -> None:
    written = bytearray(draw.draw(st.sampled_from([compress, model.compress]))(codec, data))
    for _ in range(draw.draw(st.integers(1, 3))):
        written[draw.draw(st.integers(0, len(written) - 1))] = draw.draw(st.integers(0, 255))
    try:
        found = decompress(codec, bytes(written), limit=100_000)
    except CompressedDataError:
        return
    assert memoryview(found).nbytes <= 100_000


@given(st.sampled_from(COMPRESSED), st.binary(max_size=200))
def test_arbitrary_bytes_are_decompressed_or_rejected(codec: Codec, noise: bytes) -> None:
    try:
        found = decompress(codec, noise, limit=100_000)
    except CompressedDataError:
        return
    assert memoryview(found).nbytes <= 100_000


def test_a_snappy_block_beyond_the_data_is_rejected() -> None:
    block = bytes(cramjam.snappy.compress_raw(b"abc"))
    for length in (0, len(block) + 1, 2**31, 2**32 - 1):
        with pytest.raises(CompressedDataError):
            decompress(Codec.SNAPPY, b"\x82SNAPPY\x00" + b"\0\0\0\1" * 2 + length.to_bytes(4, "big") + block)


def _claim(codec: Codec, size: int) -> bytes:
    """Return a few bytes that falsely state a content of `size` bytes, at least 64 KiB."""
    if codec is Codec.ZSTD:  # RFC 8878 §3.1.1.1: single segment, content size of 4 bytes; one empty block
        return b"\x28\xb5\x2f\xfd\xa0" + size.to_bytes(4, "little") + b"\x01\x00\x00"
    if codec is Codec.SNAPPY:
        groups = [size >> shift & 127 for shift in range(0, size.bit_length(), 7)]
        return bytes([group | 128 for group in groups[:-1]] + groups[-1:]) + b"\x00a"
    return bytes(lz4.frame.compress(bytes(size)))[:20]  # includes the header with the content size


@pytest.mark.parametrize("codec", [Codec.ZSTD, Codec.SNAPPY, Codec.LZ4])
def test_a_false_content_size_costs_no_memory(codec: Codec) -> None:
    """Memory for the stated size is not touched before there is output, counted in page faults."""
    claims = [_claim(codec, size) for size in (1 << 16, MAX_DECOMPRESSED_BATCH_BYTES)]
    touched = []
    for claim in claims:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(10):
            with pytest.raises(CompressedDataError):
                decompress(codec, claim)
        touched.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    assert touched[1] < touched[0] + 1000, "pages"


BOMBS = """
import resource
from object_format.codecs.codec import *
from object_format.codecs.zstd_library import zstd
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
unit = bytes(1 << 20)
bombs = {Codec.GZIP: compress(Codec.GZIP, unit) * 300, Codec.LZ4: compress(Codec.LZ4, unit * 100)}
stream = zstd.ZstdCompressor()
bombs[Codec.ZSTD] = b"".join([*(stream.compress(unit) for _ in range(1000)), stream.flush()])
framed = compress(Codec.SNAPPY, unit)
bombs[Codec.SNAPPY] = framed[:16] + framed[16:] * 300
for codec, bomb in bombs.items():
    decompress(codec, compress(codec, b"warm"))
    before = peak()
    try:
        decompress(codec, bomb)
    except DecompressedTooLargeError:
        print(codec.name, peak() - before)
"""


def test_decompression_bombs_stay_within_the_limit() -> None:
    """Measures the peak of a separate process. Output may exist twice, in parts and joined."""
    done = subprocess.run(
        [sys.executable, "-c", BOMBS], capture_output=True, text=True, check=True, timeout=120
    )
    grown = {line.split()[0]: int(line.split()[1]) for line in done.stdout.splitlines()}
    assert sorted(grown) == sorted(codec.name for codec in COMPRESSED)
    assert max(grown.values()) < 2 * MAX_DECOMPRESSED_BATCH_BYTES + 16 * 2**20


def test_much_data_is_compressed_to_one_gzip_member_in_parts() -> None:
    data = random.Random(1).randbytes(5 << 19)  # 2.5 parts

    assert gzip.decompress(compress(Codec.GZIP, data)) == data
