"""The writer: division into blocks, validation of input, and the state after errors."""

from __future__ import annotations

import struct
import tracemalloc
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from core.errors import FatalError, InvalidInputError
from object_format.segment_file import (
    MAX_PAYLOAD,
    SegmentFileWriter,
    SegmentKind,
    parse_data_blocks,
    read_directory,
)
from tests.object_format.segment_file.forging import DATA, split
from tests.object_format.segment_file.samples import (
    FILE_ID,
    TOPIC,
    Batch,
    Section,
    holes_at,
    make_batch,
    make_writer,
    read_file,
    write_file,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from object_format.holes import SectionHoles


def _end(
    writer: SegmentFileWriter, records: int, *, base_offset: int = 0, holes: SectionHoles | None = None
) -> None:
    writer.end_section(
        base_offset=base_offset,
        last_offset=base_offset + records - 1,
        record_count=records,
        min_timestamp=1,
        max_timestamp=2,
        holes=holes,
    )


def _data_sizes(data: bytes) -> list[int]:
    return [len(block.payload) for block in split(data) if block.kind == DATA]


def _batches(count: int, size: int = 100) -> bytes:
    return b"".join(make_batch(offset, 1, body=bytes(size - 61)) for offset in range(count))


def test_blocks_are_split_between_batches_at_the_target() -> None:
    sizes = [100, 100, 100, 100, 650, 100, 300, 61]
    section = Section(batches=tuple(Batch(records=1, size=size - 61) for size in sizes), batches_per_append=8)

    assert _data_sizes(write_file([section], block_target=300).data) == [300, 100, 650, 100, 300, 61]


@given(
    sizes=st.lists(st.integers(61, 900), min_size=1, max_size=30),
    target=st.integers(1, 1500),
    per_append=st.integers(1, 30),
)
def test_blocks_of_stable_buffers_do_not_depend_on_the_appends(
    sizes: list[int], target: int, per_append: int
) -> None:
    batches = tuple(Batch(records=1, size=size - 61) for size in sizes)

    cut = write_file(
        [Section(batches=batches, stable=True, batches_per_append=per_append)], block_target=target
    )
    whole = write_file([Section(batches=batches, stable=True, batches_per_append=99)], block_target=target)

    assert cut.data == whole.data
    found = _data_sizes(cut.data)
    assert all(size <= max(target, *sizes) for size in found)
    assert all(this + following > target for this, following in pairwise(found))


def test_the_sink_gets_views_of_stable_buffers() -> None:
    pieces: list[bytes | memoryview] = []
    writer = make_writer(pieces.append, kind=SegmentKind.INGESTION, block_target=500)
    buffers = [bytearray(make_batch(offset, 1, body=bytes(100))) for offset in range(20)]
    writer.begin_section(TOPIC, 0)
    for buffer in buffers:
        writer.append(buffer, stable=True)
    _end(writer, 20)
    writer.finish()

    views = [piece.obj for piece in pieces if isinstance(piece, memoryview)]
    assert [id(view) for view in views] == [id(buffer) for buffer in buffers]


def test_a_buffer_that_is_not_stable_may_be_reused_after_append() -> None:
    data = bytearray()
    writer = make_writer(data.extend, kind=SegmentKind.INGESTION, block_target=1000)
    buffer = bytearray()
    writer.begin_section(TOPIC, 0)
    expected = b""
    for offset in range(60):
        buffer[:] = make_batch(offset, 1, body=bytes([offset]) * (37 * offset % 700))
        expected += buffer
        writer.append(memoryview(buffer)[:])
        buffer[:] = b"\xee" * len(buffer)
    _end(writer, 60)
    writer.finish()

    (section,) = read_file(bytes(data)).sections
    assert section.data == expected
    assert all(size >= 500 for size in _data_sizes(bytes(data))[:-1])


def test_a_remainder_of_half_a_block_is_written_unless_the_buffer_is_stable() -> None:
    writer = make_writer(len, kind=SegmentKind.INGESTION, block_target=1000)
    writer.begin_section(TOPIC, 0)
    start = writer.position

    writer.append(make_batch(0, 1, body=bytes(500)), stable=True)
    assert writer.position == start
    writer.append(make_batch(1, 1))
    assert writer.position == start + 12 + 561 + 61
    writer.append(make_batch(2, 1, body=bytes(400)))
    assert writer.position == start + 12 + 561 + 61


@pytest.mark.parametrize(("size", "stable"), [(500, False), (1000, True)])
def test_the_remainder_that_is_written_may_be_exactly_that_long(size: int, *, stable: bool) -> None:
    for length in (size - 1, size):
        writer = make_writer(len, kind=SegmentKind.INGESTION, block_target=1000)
        writer.begin_section(TOPIC, 0)
        start = writer.position
        writer.append(make_batch(0, 1, body=bytes(length - 61)), stable=stable)
        assert writer.position - start == (12 + length if length == size else 0)


def test_a_long_append_is_written_without_being_copied() -> None:
    batches = _batches(40_000)
    written = peak = 0

    def sink(piece: bytes | memoryview) -> None:
        nonlocal written
        written += len(piece)

    for _ in range(2):  # the first round compiles the kernel
        writer = make_writer(sink, kind=SegmentKind.INGESTION, block_target=10_000)
        writer.begin_section(TOPIC, 0)
        tracemalloc.start()
        writer.append(batches)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()

    assert written > 2 * len(batches) - 20_000
    assert peak < 200_000


def test_any_contiguous_buffer_is_accepted() -> None:
    batches = _batches(3)
    data = bytearray()
    writer = make_writer(data.extend, kind=SegmentKind.INGESTION)
    signed = memoryview(batches).cast("b")
    words, table = memoryview(batches).cast("I"), memoryview(batches).cast("B", [3, 100])
    buffers: list[Buffer] = [batches, bytearray(batches), memoryview(batches), signed, words, table]
    for partition, buffer in enumerate(buffers):
        writer.begin_section(TOPIC, partition)
        writer.append(buffer)
        writer.append(b"")
        _end(writer, 3)
    writer.finish()

    assert [section.data for section in read_file(bytes(data)).sections] == [batches] * 6


BAD_BATCHES: dict[str, tuple[bytes, str]] = {
    "short header": (_batches(1)[:60], "byte 0 of the 60 bytes to append ends within a record batch"),
    "short body": (_batches(2)[:-1], "byte 100 of the 199 bytes to append ends within a record batch"),
    "old magic": (_batches(1)[:16] + b"\1" + _batches(1)[17:], "is not a v2 record batch"),
    "length below the header": (
        struct.pack(">qi", 0, 48) + _batches(1)[12:],
        "is not a record batch of 61 to 1073741824 bytes",
    ),
    "negative length": (struct.pack(">qi", 0, -1) + _batches(1)[12:], "is not a record batch of"),
    "length above the limit": (
        struct.pack(">qi", 0, MAX_PAYLOAD) + _batches(1)[12:],
        "is not a record batch of",
    ),
    "negative offset": (make_batch(-1, 1), "has a negative offset"),
    "negative delta": (make_batch(1, 1, offset_count=0), "has a negative offset, last offset delta"),
    "negative count": (make_batch(1, -1, offset_count=1), "or record count"),
    "offsets beyond the last": (make_batch(2**63 - 1, 1, offset_count=2), "has a negative offset"),
    "the same offset again": (_batches(1) * 2, "byte 100 of .* does not follow the batch before it"),
    "offsets that go back": (make_batch(5, 1) + make_batch(4, 1), "does not follow the batch before it"),
    "offsets that overlap": (make_batch(5, 2) + make_batch(6, 1), "does not follow the batch before it"),
}


@pytest.mark.parametrize("what", BAD_BATCHES)
def test_invalid_batches_are_rejected_and_change_nothing(what: str) -> None:
    bad, message = BAD_BATCHES[what]
    data = bytearray()
    writer = make_writer(data.extend, kind=SegmentKind.INGESTION, block_target=50)
    writer.begin_section(TOPIC, 0)
    before = bytes(data)

    with pytest.raises(InvalidInputError, match=message):
        writer.append(bad)

    assert data == before
    writer.append(_batches(3))
    _end(writer, 3)
    writer.finish()
    assert read_file(bytes(data)).sections[0].data == _batches(3)


def test_offsets_ascend_across_appends_and_restart_in_each_section() -> None:
    writer = make_writer(len, kind=SegmentKind.INGESTION)
    writer.begin_section(TOPIC, 0)
    writer.append(_batches(2))
    with pytest.raises(InvalidInputError, match="does not follow"):
        writer.append(make_batch(1, 1))
    _end(writer, 2)

    writer.begin_section(TOPIC, 1)
    writer.append(_batches(1))
    _end(writer, 1)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ((0, 4, 2, 1, 2, None), "2 records, but the batch headers count 3"),
        ((1, 4, 3, 1, 2, None), "batches have offsets 0 to 4, not in 1 to 4"),
        ((0, 3, 3, 1, 2, None), "batches have offsets 0 to 4, not in 0 to 3"),
        ((4, 3, 3, 1, 2, None), "cannot cover offsets 4 to 3"),
        ((-1, 4, 3, 1, 2, None), "cannot cover offsets -1 to 4"),
        ((0, 2**63, 3, 1, 2, None), "cannot cover offsets 0 to"),
        ((0, 4, 3, 2, 1, None), "timestamps cannot range from 2 to 1"),
        ((0, 4, 3, 1, 2**63, None), "timestamps cannot range from 1 to"),
        ((0, 4, 3, -(2**63), 1, None), "timestamps cannot range from -9223372036854775808 to"),
        ((0, 4, 3, 1, 2, None), "3 records and 0 holes do not make 5 offsets"),
        ((0, 4, 3, 1, 2, [1]), "3 records and 1 holes do not make 5 offsets"),
        ((0, 4, 3, 1, 2, [1, 3, 5]), "holes for 6 offsets do not match a section of 5 offsets"),
    ],
)
def test_fields_that_disagree_with_the_batches_are_rejected(
    fields: tuple[int, int, int, int, int, list[int] | None], message: str
) -> None:
    base, last, records, low, high, holes = fields
    if holes is None and "timestamps" in message:
        holes = [1, 3]
    data = bytearray()
    writer = make_writer(data.extend)
    writer.begin_section(TOPIC, 0)
    writer.append(make_batch(0, 1) + make_batch(2, 2, offset_count=3))

    with pytest.raises(InvalidInputError, match=message):
        writer.end_section(
            base_offset=base,
            last_offset=last,
            record_count=records,
            min_timestamp=low,
            max_timestamp=high,
            holes=None if holes is None else holes_at(*holes, span=max(last - base, *holes) + 1),
        )

    writer.end_section(
        base_offset=0,
        last_offset=4,
        record_count=3,
        min_timestamp=1,
        max_timestamp=2,
        holes=holes_at(1, 4, span=5),
    )
    writer.finish()
    assert read_file(bytes(data)).sections[0].holes == BitMap64([1, 4])


def test_a_batch_with_more_records_than_offsets_is_rejected() -> None:
    writer = make_writer(len)
    writer.begin_section(TOPIC, 0)
    writer.append(make_batch(0, 5, offset_count=2))

    with pytest.raises(InvalidInputError, match="5 records do not fit 2 offsets"):
        writer.end_section(base_offset=0, last_offset=1, record_count=5, min_timestamp=1, max_timestamp=1)


def test_a_section_of_an_ingestion_file_is_relative_and_has_no_holes() -> None:
    writer = make_writer(len, kind=SegmentKind.INGESTION)
    writer.begin_section(TOPIC, 0)
    writer.append(make_batch(3, 1))

    with pytest.raises(InvalidInputError, match="must start at offset 0 and have no holes"):
        _end(writer, 1, base_offset=3)
    with pytest.raises(InvalidInputError, match="must start at offset 0 and have no holes"):
        writer.end_section(
            base_offset=0,
            last_offset=3,
            record_count=1,
            min_timestamp=1,
            max_timestamp=1,
            holes=holes_at(0, 1, 2, span=4),
        )


def test_offsets_and_timestamps_may_be_the_largest() -> None:
    largest = 2**63 - 1
    data = bytearray()
    writer = make_writer(data.extend)
    for partition, offset in enumerate([0, largest]):
        writer.begin_section(TOPIC, partition)
        writer.append(make_batch(0, 1) if offset == 0 else b"")
        writer.end_section(
            base_offset=offset,
            last_offset=offset,
            record_count=1 if offset == 0 else 0,
            min_timestamp=-largest,
            max_timestamp=largest,
            holes=holes_at(*([0] if offset else []), span=1),
        )
    writer.finish()

    first, last = read_file(bytes(data)).sections
    assert (first.footer.min_timestamp, first.footer.max_timestamp) == (-largest, largest)
    assert (last.footer.base_offset, last.footer.last_offset) == (largest, largest)


def test_timestamps_without_records_are_minus_one() -> None:
    data = bytearray()
    writer = make_writer(data.extend)
    writer.begin_section(TOPIC, 0)
    entry = writer.end_section(
        base_offset=5,
        last_offset=6,
        record_count=0,
        min_timestamp=77,
        max_timestamp=78,
        holes=holes_at(0, 1, span=2),
    )

    assert (entry.min_timestamp, entry.max_timestamp) == (-1, -1)


def test_sections_must_be_sorted() -> None:
    writer = make_writer(len, kind=SegmentKind.INGESTION)
    writer.begin_section(TOPIC, 5)
    writer.append(_batches(1))
    _end(writer, 1)

    for partition in (5, 4):
        with pytest.raises(InvalidInputError, match=f"/{partition} does not sort after"):
            writer.begin_section(TOPIC, partition)
    for partition in (-1, 2**31):
        with pytest.raises(InvalidInputError, match="is not in 0"):
            writer.begin_section(TOPIC, partition)
    writer.begin_section(TOPIC, 9)
    writer.append(_batches(1))
    _end(writer, 1)
    with pytest.raises(InvalidInputError, match=f"/7 does not sort after {TOPIC}/9"):
        writer.begin_section(TOPIC, 7)
    writer.begin_section(TOPIC, 2**31 - 1)


def test_complete_sections_must_continue_the_file() -> None:
    writer = make_writer(len, kind=SegmentKind.COMPACTED)
    writer.begin_section(TOPIC, 5)
    writer.append(_batches(1))
    with pytest.raises(InvalidInputError, match="a section is still open"):
        writer.append_sections(memoryview(b""), [])
    _end(writer, 1)
    (entry,) = writer._entries
    following = replace(entry, partition=6, position=writer.position)
    data = memoryview(bytes(entry.length))

    with pytest.raises(InvalidInputError, match="do not sort"):
        writer.append_sections(data, [replace(following, partition=5)])
    with pytest.raises(InvalidInputError, match="a section at byte"):
        writer.append_sections(data, [replace(following, position=writer.position + 1)])
    with pytest.raises(InvalidInputError, match="do not end"):
        writer.append_sections(data[:-1], [following])
    before = writer.data_bytes
    writer.append_sections(data, [following])
    assert writer.data_bytes == before + following.data_length
    assert writer.position == following.position + following.length


def test_calls_in_the_wrong_order_are_rejected() -> None:
    writer = make_writer(len, kind=SegmentKind.INGESTION)
    with pytest.raises(InvalidInputError, match="no section is open"):
        writer.append(_batches(1))
    with pytest.raises(InvalidInputError, match="no section is open"):
        _end(writer, 1)
    writer.begin_section(TOPIC, 0)
    with pytest.raises(InvalidInputError, match="a section is still open"):
        writer.begin_section(TOPIC, 1)
    with pytest.raises(InvalidInputError, match="a section is still open"):
        writer.finish()
    writer.append(_batches(1))
    _end(writer, 1)
    writer.finish()
    with pytest.raises(InvalidInputError, match="the file is finished"):
        writer.begin_section(TOPIC, 1)
    with pytest.raises(InvalidInputError, match="the file is finished"):
        writer.finish()


@pytest.mark.parametrize("target", [0, MAX_PAYLOAD + 1])
def test_an_invalid_block_target_is_rejected(target: int) -> None:
    with pytest.raises(InvalidInputError, match="block target"):
        make_writer(len, block_target=target)


def test_a_file_cannot_be_finished_after_a_sink_error() -> None:
    def sink(_: bytes | memoryview) -> None:
        if writer_made:
            raise ConnectionResetError("the store went away")

    writer_made = False
    writer = make_writer(sink, kind=SegmentKind.INGESTION)
    writer_made = True

    with pytest.raises(ConnectionResetError):
        writer.begin_section(TOPIC, 0)
    with pytest.raises(FatalError, match="writing this segment file failed earlier"):
        writer.begin_section(TOPIC, 0)
    with pytest.raises(FatalError, match="write a new file"):
        writer.finish()


@pytest.mark.parametrize("failing", [1, 2])
def test_a_file_cannot_be_finished_after_an_error_in_any_part_of_a_block(failing: int) -> None:
    """The sink gets the header of a block first, and then its payload."""
    calls = iter(range(99))

    def sink(_: bytes | memoryview) -> None:
        if next(calls) == 3 + failing:  # after the magic, and the header and the payload of FILE_HEADER
            raise ConnectionResetError("the store went away")

    writer = make_writer(sink, kind=SegmentKind.INGESTION)
    next(calls)

    with pytest.raises(ConnectionResetError):
        writer.begin_section(TOPIC, 0)
    with pytest.raises(FatalError, match="writing this segment file failed earlier"):
        writer.begin_section(TOPIC, 0)


def test_a_payload_above_the_limit_is_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("object_format.segment_file.writer.MAX_PAYLOAD", 200)
    writer = make_writer(len, kind=SegmentKind.INGESTION, block_target=100)
    writer.begin_section(TOPIC, 0)
    writer.append(make_batch(0, 1, body=bytes(200 - 61)), stable=True)
    _end(writer, 1)
    writer.begin_section(TOPIC, 1)

    with pytest.raises(InvalidInputError, match="a DATA payload of 201 bytes is above the limit of 200"):
        writer.append(make_batch(0, 1, body=bytes(201 - 61)))

    with pytest.raises(FatalError, match="failed earlier"):
        _end(writer, 1)


def test_the_sections_of_a_file_fit_one_directory(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry has 128 bytes."""
    writer = make_writer(len, kind=SegmentKind.INGESTION)
    for partition in range(3):
        writer.begin_section(TOPIC, partition)
        writer.append(_batches(1))
        _end(writer, 1)

    monkeypatch.setattr("object_format.segment_file.writer.MAX_PAYLOAD", 3 * 128 - 1)
    with pytest.raises(InvalidInputError, match="3 sections do not fit one directory"):
        writer.finish()
    monkeypatch.setattr("object_format.segment_file.writer.MAX_PAYLOAD", 3 * 128)
    assert len(writer.finish().sections) == 3


def test_position_counts_written_bytes() -> None:
    data = bytearray()
    writer = make_writer(data.extend, kind=SegmentKind.INGESTION)
    assert writer.position == len(data) == 68
    writer.begin_section(TOPIC, 0)
    writer.append(_batches(30))
    assert writer.position == len(data)
    _end(writer, 30)
    assert writer.finish().size == writer.position == len(data)


def test_positions_can_exceed_32_bits() -> None:
    """Pretends that 2^40 bytes were written before."""
    data = bytearray()
    writer = make_writer(data.extend)
    before = len(data)
    writer._blocks.position = 2**40
    writer.begin_section(TOPIC, 0)
    writer.append(_batches(20))
    entry = writer.end_section(
        base_offset=0, last_offset=19, record_count=20, min_timestamp=1, max_timestamp=1
    )
    summary = writer.finish()

    assert (entry.position, summary.size) == (2**40, 2**40 + len(data) - before)
    start = before + entry.data_position - entry.position
    payloads = parse_data_blocks(
        data[start : start + entry.data_length], name="a.seg", file_id=FILE_ID, position=entry.data_position
    )
    assert b"".join(map(bytes, payloads)) == _batches(20)
    assert read_directory(data, name="a.seg", size=summary.size).sections == (entry,)
