"""Kernels accept and reject the same batches as the codec libraries."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import lz4.block
import lz4.frame
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from object_format.buffers import readable
from object_format.codecs import native as native_codecs
from object_format.codecs.codec import Codec, CompressedDataError, compress, decompress
from object_format.codecs.native import NATIVE, SCRATCH_BYTES, native_codec_table
from object_format.codecs.zstd_library import zstd
from object_format.dedupe import filter_batches
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.batches.layout import BATCH_OVERHEAD, BATCH_ROW
from object_format.kernels.codecs.lz4_frame import LZ4_DECOMPRESS, lz4_into
from object_format.kernels.codecs.native import (
    chunk_end,
    compress_batches,
    compress_into,
    decompress_rows,
)
from object_format.record_batch import decompression
from object_format.record_batch.headers import scan_batches
from object_format.record_batch.records import Record, decode_batches, encode_batch
from tests.object_format import model
from tests.object_format.dedupe.test_dedupe import NOW, find, sections
from tests.object_format.model_log import Section

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CODECS = st.sampled_from(sorted(NATIVE))
TEXTS = st.builds(lambda unit, times: unit * times, st.binary(max_size=60), st.integers(1, 3000))


@pytest.mark.parametrize("codec", sorted(NATIVE))
@pytest.mark.parametrize("size", [0, 1, 1000, 15_000, 100_000, 1 << 17, (1 << 17) + 1, 500_000])
def test_kernels_and_libraries_compress_to_the_same_bytes(codec: Codec, size: int) -> None:
    """A job therefore writes the same files on every platform."""
    codec_table = native_codec_table()
    assert codec_table is not None
    values = np.random.default_rng(1).integers(0, 1000, size // 4 + 1)
    text = b"".join(b"%04d" % number for number in values.tolist())[:size]
    out = np.empty(2 * size + 1000, np.uint8)
    written = compress_into(readable(text or b"-"), 0, size, int(codec), out, 0, codec_table)
    assert out[:written].tobytes() == compress(codec, text)


@st.composite
def lz4_frames(draw: st.DrawFn) -> bytes:
    """Return frames with all features of the format."""
    return bytes(
        lz4.frame.compress(
            draw(TEXTS),
            block_size=draw(st.sampled_from([4, 5, 6, 7])),
            block_linked=draw(st.booleans()),
            content_checksum=draw(st.booleans()),
            block_checksum=draw(st.booleans()),
            store_size=draw(st.booleans()),
            compression_level=draw(st.sampled_from([-5, 0, 9])),
        )
    )


@st.composite
def zstd_frames(draw: st.DrawFn) -> bytes:
    """Return frames with and without sizes and checksums, with several blocks and window sizes."""
    options: dict[int, int] = {
        zstd.CompressionParameter.compression_level: draw(st.sampled_from([-3, 1, 3, 19])),
        zstd.CompressionParameter.window_log: draw(st.sampled_from([0, 10, 17, 27])),
        zstd.CompressionParameter.content_size_flag: draw(st.booleans()),
        zstd.CompressionParameter.checksum_flag: draw(st.booleans()),
    }
    data = draw(TEXTS)
    if draw(st.booleans()):
        return zstd.compress(data, options=options)
    stream = zstd.ZstdCompressor(options=options)
    return stream.compress(data, stream.FLUSH_BLOCK) + stream.compress(data) + stream.flush()


@st.composite
def damaged_frames(draw: st.DrawFn) -> tuple[Codec, bytes]:
    """Return one or two frames of a codec, possibly truncated, extended or modified."""
    codec = draw(CODECS)
    frames = lz4_frames() if codec is Codec.LZ4 else zstd_frames()
    data = bytearray(b"".join(draw(st.lists(frames, min_size=1, max_size=2))))
    for _ in range(draw(st.integers(0, 2))):
        match draw(st.integers(0, 2)):
            case 0:
                del data[draw(st.integers(0, len(data))) :]
            case 1:
                data += draw(st.binary(min_size=1, max_size=8))
            case _:
                # Changes of the header, at the start, have more effects.
                size = draw(st.sampled_from([min(16, len(data)), len(data)]))
                if size:
                    data[draw(st.integers(0, size - 1))] ^= 1 << draw(st.integers(0, 7))
    return codec, bytes(data)


def batch_around(codec: Codec, compressed: bytes) -> bytes:
    """Return a batch with a record count of 0, so that its contents are arbitrary."""
    header = bytearray(encode_batch([], [], [], codec=Codec.NONE))
    header[8:12] = (BATCH_OVERHEAD + len(compressed) - 12).to_bytes(4, "big")
    header[22] = codec
    return bytes(header) + compressed


def decompressed_by_kernel(data: bytes, out: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> list[bytes]:
    """Return the records of the batches that the kernel decompresses."""
    array = readable(data)
    rows = scan_batches(array)
    codec_table = native_codec_table()
    assert codec_table is not None
    taken, _used = decompress_rows(array, rows, np.arange(rows.size), 0, out, 0, codec_table)
    return [
        out[start:end].tobytes()
        for start, end in zip(
            rows["records_start"][:taken].tolist(), rows["records_end"][:taken].tolist(), strict=True
        )
    ]


@given(damaged_frames())
@example((Codec.LZ4, lz4.frame.compress(b"x" * 100_000, content_checksum=True)))
@example((Codec.ZSTD, zstd.compress(b"x" * 100_000)))
@example((Codec.LZ4, lz4.frame.compress(b"", store_size=False)[:7] + b"\x01\0\0\0\0" * 2 + bytes(4)))
def test_the_kernel_accepts_the_same_frames_as_the_library(frame: tuple[Codec, bytes]) -> None:
    """Exactly the same LZ4 frames; unusual zstd frames may be left to the library."""
    codec, compressed = frame
    try:
        expected = [bytes(decompress(codec, compressed))]
    except CompressedDataError:
        expected = []
    found = decompressed_by_kernel(batch_around(codec, compressed), np.empty(SCRATCH_BYTES, np.uint8))
    if found or codec is Codec.LZ4:
        assert found == expected


@given(zstd_frames())
def test_the_kernel_accepts_valid_zstd_frames(compressed: bytes) -> None:
    found = decompressed_by_kernel(batch_around(Codec.ZSTD, compressed), np.empty(SCRATCH_BYTES, np.uint8))
    assert found == [bytes(decompress(Codec.ZSTD, compressed))]


@given(st.lists(damaged_frames(), max_size=5))
def test_batches_open_identically_with_and_without_the_kernel(frames: list[tuple[Codec, bytes]]) -> None:
    """The result is the same records, or the same fault at the same position."""
    data = readable(b"".join(batch_around(*frame) for frame in frames))

    def opened() -> tuple[list[bytes], tuple[Fault, int] | None]:
        found: list[bytes] = []
        try:
            for records, run in decompression.open_batches(data, scan_batches(data)):
                for start, end in zip(
                    run["records_start"].tolist(), run["records_end"].tolist(), strict=True
                ):
                    found.append(records[start:end].tobytes())
        except MalformedBatchError as error:
            return found, (error.fault, error.position)
        return found, None

    many, fault = opened()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decompression, "native_codec_table", lambda: None)
        one_by_one, same_fault = opened()
    assert fault == same_fault
    # Batches before a fault may have been returned already.
    assert many == one_by_one or (fault is not None and many[: len(one_by_one)] == one_by_one)


@given(lz4_frames(), st.integers(0, 5000))
@example(lz4.frame.compress(bytes(4 << 20), block_size=lz4.frame.BLOCKSIZE_MAX4MB, store_size=False), 1000)
@example(lz4.frame.compress(bytes(4 << 20), block_size=lz4.frame.BLOCKSIZE_MAX4MB, store_size=True), 0)
def test_no_block_is_written_beyond_the_available_memory(frame: bytes, capacity: int) -> None:
    """The maximum block size that the frame states does not matter."""
    codec_table = native_codec_table()
    assert codec_table is not None
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 6)
    block_into = kind(int(codec_table[LZ4_DECOMPRESS]))
    capacity_given = []

    def watched(*arguments: int) -> int:
        capacity_given.append(arguments[3])
        return int(block_into(*arguments))

    function = kind(watched)
    watching = codec_table.copy()
    watching[LZ4_DECOMPRESS] = ctypes.cast(function, ctypes.c_void_p).value or 0
    out = np.empty(capacity, np.uint8)
    length = lz4_into(readable(frame), 0, len(frame), out, 0, watching)
    expected = bytes(decompress(Codec.LZ4, frame))
    assert length == (len(expected) if len(expected) <= capacity else -1)
    assert all(0 <= each <= capacity for each in capacity_given)


@pytest.mark.parametrize("capacity", [SCRATCH_BYTES, 1000])
def test_a_rejected_frame_does_not_affect_the_next_one(capacity: int) -> None:
    """The frame is truncated or does not fit. liblz4's own functions for frames would keep its state."""
    sized = lz4.frame.compress(b"x" * 5000, store_size=True)
    broken = sized[:-20] if capacity == SCRATCH_BYTES else sized
    valid = lz4.frame.compress(b"y" * 10, store_size=False)
    out = np.empty(capacity, np.uint8)
    assert decompressed_by_kernel(batch_around(Codec.LZ4, broken), out) == []
    assert decompressed_by_kernel(batch_around(Codec.LZ4, valid), out) == [b"y" * 10]


@pytest.mark.parametrize("codec", sorted(NATIVE))
@pytest.mark.parametrize("capacity", [0, 1, 999, 1000, 2500])
def test_the_kernel_stops_at_the_end_of_its_memory(codec: Codec, capacity: int) -> None:
    """Nothing is written after it."""
    data = batch_around(codec, compress(codec, b"x" * 500)) * 6
    out = np.full(capacity + 64, 7, np.uint8)
    found = decompressed_by_kernel(data, out[:capacity])
    assert found == [b"x" * 500] * ((capacity - 1) // 500 if capacity else 0) or found == [b"x" * 500] * (
        capacity // 500
    )
    assert (out[capacity:] == 7).all()


@pytest.mark.parametrize("codec", [Codec.NONE, *sorted(NATIVE)])
@pytest.mark.parametrize("last", [2, 3])
def test_compressed_batches_that_do_not_fit_are_refused(codec: Codec, last: int) -> None:
    """Nothing is written after the memory. The batch with number `last` of four is the last rewritten one."""
    codec_table = native_codec_table()
    assert codec_table is not None
    batch = encode_batch([1, 2], [b"a", b"b"], [b"x" * 50, b"y" * 30])
    source = readable(batch * 4)
    bounds = [(len(batch) * n, len(batch) * (n + 1), int(codec), 0) for n in range(1, last + 1)]

    def compressed(size: int) -> tuple[int, bytes]:
        out, rewritten = np.full(size + 64, 7, np.uint8), np.array(bounds)
        end = compress_batches(source, source.size, rewritten, -1, out[:size], codec_table)
        assert (out[size:] == 7).all()
        return end, out[: max(end, 0)].tobytes()

    end, data = compressed(4 * source.size)
    assert end == len(data)
    assert [batch.records for batch in model.decode_all(data, verify=False)] == [
        batch.records for batch in model.decode_all(source.tobytes())
    ]
    for size in range(end):
        assert compressed(size) == (-1, b"")


@pytest.mark.parametrize("codec", sorted(NATIVE))
def test_huge_windows_and_multiple_frames_are_left_to_the_library(codec: Codec) -> None:
    one = compress(codec, b"abc")
    out = np.empty(1000, np.uint8)
    assert decompressed_by_kernel(batch_around(codec, one), out) == [b"abc"]
    assert decompressed_by_kernel(batch_around(codec, one + one), out) == []
    with pytest.raises(CompressedDataError):
        decompress(codec, one + one)
    if codec is Codec.ZSTD:
        wide = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 28})
        frame = wide.compress(b"abc") + wide.flush()
        assert decompressed_by_kernel(batch_around(codec, frame), out) == []


@given(sections(), st.none() | st.sampled_from(Codec))
def test_pass_2_writes_the_same_with_and_without_the_kernel(
    log: list[Section], merged_codec: Codec | None
) -> None:
    survivors = find(log)

    def written() -> list[tuple[list[model.Batch], int]]:
        result = []
        for section in log:
            filtered = filter_batches(
                b"".join(section.stored()),
                survivors,
                offset_shift=section.shift,
                leader_epoch=1,
                delete_horizon_ms=NOW,
                merged_codec=merged_codec,
            )
            result.append((model.decode_all(b"".join(filtered.buffers)), filtered.record_count))
        return result

    expected = written()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("object_format.dedupe.recompression.native_codec_table", lambda: None)
        patch.setattr(decompression, "native_codec_table", lambda: None)
        assert written() == expected


@pytest.mark.parametrize("codec", sorted(NATIVE))
def test_incompressible_records_are_written(codec: Codec) -> None:
    """Their compressed form is larger than the input."""
    noise = np.random.default_rng(3).bytes(200_000)
    batch = model.batch_of(
        [Record(0, 1, b"a", b"old"), *(Record(i, 1, b"%d" % i, noise) for i in range(1, 9))]
    )
    newer = model.batch_of([Record(9, 1, b"a", b"new")])
    section = Section(
        batches=tuple(
            model.decode(encode_batch([1] * len(each.records), [record.key for record in each.records],
                                      [record.value for record in each.records], codec=codec,
                                      base_offset=each.base_offset))
            for each in (batch, newer)
        )
    )  # fmt: skip
    written = filter_batches(
        b"".join(section.stored()),
        find([section]),
        offset_shift=0,
        leader_epoch=0,
        delete_horizon_ms=None,
    )
    records = [
        record
        for columns in decode_batches(b"".join(written.buffers), verify=True)
        for record in columns.records()
    ]
    assert [record.offset for record in records] == list(range(1, 10))
    assert {record.value for record in records[:-1]} == {noise}


@pytest.fixture
def fresh_libraries() -> Iterator[None]:
    """Look up the libraries again, before and after the test."""
    native_codecs._libraries.cache_clear()
    yield
    native_codecs._libraries.cache_clear()


def _no_module(name: str) -> object:
    raise ImportError(name)


def _no_function(_path: str) -> object:
    return object()


@pytest.mark.usefixtures("fresh_libraries")
@pytest.mark.parametrize(("name", "fake"), [("import_module", _no_module), ("ctypes.CDLL", _no_function)])
def test_batches_are_decoded_without_native_functions(
    name: str, fake: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"object_format.codecs.native.{name}", fake)
    assert native_codec_table() is None
    data = b"".join(encode_batch([1], [b"k"], [b"%d" % i], codec=Codec.ZSTD, base_offset=i) for i in range(3))
    assert [len(columns) for columns in decode_batches(data)] == [3]


def short_xxh32(data: bytes) -> int:
    """Return the XXH32 of less than 16 bytes, with seed 0 (github.com/Cyan4973/xxHash)."""
    first, second, third, fourth, fifth = 0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F, 0x165667B1
    assert len(data) < 16

    def rotated(value: int, bits: int) -> int:
        value %= 1 << 32
        return (value << bits | value >> (32 - bits)) % (1 << 32)

    value = fifth + len(data)
    whole = len(data) // 4 * 4
    for at in range(0, whole, 4):
        value = rotated(value + int.from_bytes(data[at : at + 4], "little") * third, 17) * fourth
    for byte in data[whole:]:
        value = rotated(value + byte * fifth, 11) * first
    value %= 1 << 32
    value = (value ^ value >> 15) * second % (1 << 32)
    value = (value ^ value >> 13) * third % (1 << 32)
    return value ^ value >> 16


def usually(right: int, *others: int) -> st.SearchStrategy[int]:
    return st.sampled_from([right] * 20 + list(others))


@st.composite
def forged_lz4_frames(draw: st.DrawFn) -> bytes:
    """Return frames of short blocks, most of them with right checksums, and any fields in the header."""
    flags = 0x40 | draw(st.sampled_from([0, 0x20])) | draw(st.sampled_from([0, 4, 8, 16, 12, 28]))
    flags ^= draw(usually(0, 0x40, 0x80, 0x01, 0x02))
    parts = draw(st.lists(st.binary(max_size=4), max_size=3))
    content = b"".join(parts)
    header = bytes([flags, draw(usually(0x40, 0x70, 0x50, 0x30, 0x41, 0x48, 0xC0))])
    if flags & 8:
        stated = len(content) + draw(usually(0, 1, -1, -len(content)))
        header += (stated % (1 << 64)).to_bytes(8, "little")
    if flags & 1:
        header += bytes(4)
    frame = b"\x04\x22\x4d\x18" + header
    frame += bytes([(short_xxh32(header) >> 8 ^ draw(usually(0, 1))) & 0xFF])
    for part in parts:
        is_stored = draw(st.booleans())
        block = part if is_stored else lz4.block.compress(part, store_size=False)
        frame += (len(block) | is_stored << 31).to_bytes(4, "little") + block
        if flags & 16:
            frame += (short_xxh32(block) ^ draw(usually(0, 1 << 8))).to_bytes(4, "little")
    frame += bytes(4 - draw(usually(0, 1, 4)))
    if flags & 4:
        frame += (short_xxh32(content) ^ draw(usually(0, 1 << 24))).to_bytes(4, "little")
    frame += bytes(draw(usually(0, 1, 4)))
    return frame[: len(frame) - draw(usually(0, 1, 4, 5))]


def large_block(size: int, size_id: int) -> bytes:
    """Return a frame of one stored block."""
    header = bytes([0x60, size_id << 4])
    checksum = bytes([short_xxh32(header) >> 8 & 0xFF])
    block = (size | 1 << 31).to_bytes(4, "little") + bytes(size)
    return b"\x04\x22\x4d\x18" + header + checksum + block + bytes(4)


@settings(max_examples=300)
@given(forged_lz4_frames())
@example(large_block(1 << 16, 4))
@example(large_block((1 << 16) + 1, 4))
@example(large_block((1 << 18) + 1, 5))
@example(large_block(1 << 20, 6))
def test_forged_frames_are_read_as_by_the_library(frame: bytes) -> None:
    """A frame with a dictionary is left to the library."""
    try:
        expected = [bytes(decompress(Codec.LZ4, frame))]
    except CompressedDataError:
        expected = []
    found = decompressed_by_kernel(batch_around(Codec.LZ4, frame), np.empty(SCRATCH_BYTES, np.uint8))
    if not found and len(frame) > 4 and frame[4] & 1:
        return
    assert found == expected


def chunk_end_by_rule(sizes: list[int], is_native: list[bool], first: int, capacity: int) -> int:
    """Return the end of a chunk: batches that kernels open if the first one is such, otherwise the others.

    Kernels open no batch behind one of which a second would not fit. The other ones may be too large alone.
    """
    end, used, last = first, 0, 0
    while end < len(sizes) and is_native[end] and used + last < capacity and used + sizes[end] <= capacity:
        last = sizes[end]
        used += last
        end += 1
    if end > first:
        return end
    end, used = first + 1, sizes[first]
    while end < len(sizes) and not is_native[end] and used + sizes[end] <= capacity:
        used += sizes[end]
        end += 1
    return end


@given(
    st.lists(st.tuples(st.integers(1, 9), st.sampled_from(Codec)), min_size=1, max_size=12),
    st.data(),
    st.booleans(),
)
def test_a_chunk_of_opened_batches_ends_where_the_rule_says(
    batches: list[tuple[int, Codec]], data: st.DataObject, native: bool
) -> None:
    first = data.draw(st.integers(0, len(batches) - 1))
    capacity = data.draw(st.integers(0, 40))
    sizes = [size for size, _ in batches]
    rows = np.zeros(len(batches), BATCH_ROW)
    ends = np.cumsum(sizes)
    rows["records_start"], rows["records_end"] = ends - sizes, ends
    rows["attributes"] = [int(codec) for _, codec in batches]
    is_native = [native and codec >= Codec.LZ4 for _, codec in batches]

    end = chunk_end(rows, np.arange(len(batches)), first, capacity, native)

    assert end == chunk_end_by_rule(sizes, is_native, first, capacity)
