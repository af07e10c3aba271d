"""Many batches in one call are taken and refused as the libraries take and refuse them one by one."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import lz4.frame
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from object_format.buffers import readable
from object_format.codecs import native as native_codecs
from object_format.codecs.codec import Codec, CompressedDataError, compress, decompress
from object_format.codecs.native import NATIVE, SCRATCH_BYTES, native_codec_table
from object_format.codecs.zstd_library import zstd
from object_format.dedupe import filter_batches
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.batches.layout import BATCH_OVERHEAD
from object_format.kernels.codecs.lz4_frame import LZ4_DECOMPRESS, lz4_into
from object_format.kernels.codecs.native import compress_into, decompress_rows
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
def test_both_ways_compress_to_the_same_bytes(codec: Codec, size: int) -> None:
    """So a job makes the same files wherever it runs."""
    codec_table = native_codec_table()
    assert codec_table is not None
    numbers = np.random.default_rng(1).integers(0, 1000, size // 4 + 1)
    text = b"".join(b"%04d" % number for number in numbers.tolist())[:size]
    out = np.empty(2 * size + 1000, np.uint8)
    written = compress_into(readable(text or b"-"), 0, size, int(codec), out, 0, codec_table)
    assert out[:written].tobytes() == compress(codec, text)


@st.composite
def lz4_frames(draw: st.DrawFn) -> bytes:
    """Frames with all that the format has."""
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
    """Frames with and without sizes and checksums, of several blocks, in windows of several sizes."""
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
def spoilt(draw: st.DrawFn) -> tuple[Codec, bytes]:
    """A codec's frame, or some frames, perhaps cut short, lengthened or changed in places."""
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
                # Headers have the bits that matter; they are at the front.
                most = draw(st.sampled_from([min(16, len(data)), len(data)]))
                if most:
                    data[draw(st.integers(0, most - 1))] ^= 1 << draw(st.integers(0, 7))
    return codec, bytes(data)


def batch_around(codec: Codec, compressed: bytes) -> bytes:
    """A batch that says it has no records, so that its bytes may be any."""
    front = bytearray(encode_batch([], [], [], codec=Codec.NONE))
    front[8:12] = (BATCH_OVERHEAD + len(compressed) - 12).to_bytes(4, "big")
    front[22] = codec
    return bytes(front) + compressed


def by_kernel(data: bytes, out: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> list[bytes]:
    """The records of the batches that the kernel takes."""
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


@given(spoilt())
@example((Codec.LZ4, lz4.frame.compress(b"x" * 100_000, content_checksum=True)))
@example((Codec.ZSTD, zstd.compress(b"x" * 100_000)))
def test_the_kernel_takes_what_the_library_takes(frame: tuple[Codec, bytes]) -> None:
    """Of LZ4 frames exactly those; what is odd about a zstd frame may be left to the library, too."""
    codec, compressed = frame
    try:
        expected = [bytes(decompress(codec, compressed))]
    except CompressedDataError:
        expected = []
    found = by_kernel(batch_around(codec, compressed), np.empty(SCRATCH_BYTES, np.uint8))
    if found or codec is Codec.LZ4:
        assert found == expected


@given(zstd_frames())
def test_the_kernel_takes_sound_zstd_frames(compressed: bytes) -> None:
    found = by_kernel(batch_around(Codec.ZSTD, compressed), np.empty(SCRATCH_BYTES, np.uint8))
    assert found == [bytes(decompress(Codec.ZSTD, compressed))]


@given(st.lists(spoilt(), max_size=5))
def test_batches_open_alike_with_and_without_the_kernel(frames: list[tuple[Codec, bytes]]) -> None:
    """The same records, or the same fault at the same place."""
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
    # Those in front of a fault may have been on their way when it was met.
    assert many == one_by_one or (fault is not None and many[: len(one_by_one)] == one_by_one)


@given(lz4_frames(), st.integers(0, 5000))
@example(lz4.frame.compress(bytes(4 << 20), block_size=lz4.frame.BLOCKSIZE_MAX4MB, store_size=False), 1000)
@example(lz4.frame.compress(bytes(4 << 20), block_size=lz4.frame.BLOCKSIZE_MAX4MB, store_size=True), 0)
def test_no_block_is_given_more_than_there_is_room(frame: bytes, room: int) -> None:
    """However large its frame says that blocks are: more is neither written anywhere nor computed."""
    codec_table = native_codec_table()
    assert codec_table is not None
    kind = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_int64] * 6)
    block_into = kind(int(codec_table[LZ4_DECOMPRESS]))
    given_room = []

    def watched(*arguments: int) -> int:
        given_room.append(arguments[3])
        return int(block_into(*arguments))

    function = kind(watched)
    watching = codec_table.copy()
    watching[LZ4_DECOMPRESS] = ctypes.cast(function, ctypes.c_void_p).value or 0
    out = np.empty(room, np.uint8)
    length = lz4_into(readable(frame), 0, len(frame), out, 0, watching)
    expected = bytes(decompress(Codec.LZ4, frame))
    assert length == (len(expected) if len(expected) <= room else -1)
    assert all(0 <= each <= room for each in given_room)


@pytest.mark.parametrize("room", [SCRATCH_BYTES, 1000])
def test_a_frame_that_was_given_up_leaves_nothing_to_the_next(room: int) -> None:
    """Whether it was cut short or found no room; what liblz4 has for frames would remember its size."""
    sized = lz4.frame.compress(b"x" * 5000, store_size=True)
    broken = sized[:-20] if room == SCRATCH_BYTES else sized
    sound = lz4.frame.compress(b"y" * 10, store_size=False)
    out = np.empty(room, np.uint8)
    assert by_kernel(batch_around(Codec.LZ4, broken), out) == []
    assert by_kernel(batch_around(Codec.LZ4, sound), out) == [b"y" * 10]


@pytest.mark.parametrize("codec", sorted(NATIVE))
@pytest.mark.parametrize("room", [0, 1, 999, 1000, 2500])
def test_the_kernel_stops_where_its_room_ends(codec: Codec, room: int) -> None:
    """Nothing is written behind it."""
    data = batch_around(codec, compress(codec, b"x" * 500)) * 6
    out = np.full(room + 64, 7, np.uint8)
    found = by_kernel(data, out[:room])
    assert found == [b"x" * 500] * ((room - 1) // 500 if room else 0) or found == [b"x" * 500] * (room // 500)
    assert (out[room:] == 7).all()


@pytest.mark.parametrize("codec", sorted(NATIVE))
def test_a_frame_that_claims_a_huge_window_or_is_one_of_two_is_left_to_the_library(codec: Codec) -> None:
    one = compress(codec, b"abc")
    out = np.empty(1000, np.uint8)
    assert by_kernel(batch_around(codec, one), out) == [b"abc"]
    assert by_kernel(batch_around(codec, one + one), out) == []
    with pytest.raises(CompressedDataError):
        decompress(codec, one + one)
    if codec is Codec.ZSTD:
        wide = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 28})
        frame = wide.compress(b"abc") + wide.flush()
        assert by_kernel(batch_around(codec, frame), out) == []


@given(sections(), st.none() | st.sampled_from(Codec))
def test_what_is_written_is_the_same_with_and_without_the_kernel(
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
def test_records_that_do_not_compress_are_written_all_the_same(codec: Codec) -> None:
    """Noise takes more room than it had."""
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
    """What is known of the libraries is found anew, before and after."""
    native_codecs._libraries.cache_clear()
    yield
    native_codecs._libraries.cache_clear()


def _no_module(name: str) -> object:
    raise ImportError(name)


def _no_function(_path: str) -> object:
    return object()


@pytest.mark.usefixtures("fresh_libraries")
@pytest.mark.parametrize(("name", "fake"), [("import_module", _no_module), ("ctypes.CDLL", _no_function)])
def test_libraries_that_do_not_show_their_functions_are_done_without(
    name: str, fake: Callable[[str], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"object_format.codecs.native.{name}", fake)
    assert native_codec_table() is None
    data = b"".join(encode_batch([1], [b"k"], [b"%d" % i], codec=Codec.ZSTD, base_offset=i) for i in range(3))
    assert [len(columns) for columns in decode_batches(data)] == [3]
