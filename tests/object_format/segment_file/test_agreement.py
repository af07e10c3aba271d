"""All ways of reading return what was written."""

from __future__ import annotations

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyroaring import BitMap64

from core.errors import InvalidInputError
from object_format.segment_file import (
    TRAILER_LENGTH,
    ForwardReader,
    SectionIndex,
    SegmentKind,
    parse_data_blocks,
    parse_holes_block,
    read_directory,
)
from tests.object_format.segment_file.forging import complete, split
from tests.object_format.segment_file.samples import (
    COMPACTED_SECTIONS,
    FILE_ID,
    INGESTION_SECTIONS,
    WRITER_ID,
    Batch,
    BytesSource,
    Section,
    WrittenFile,
    read_file,
    write_file,
)

TARGETS = st.sampled_from([1, 100, 300, 2000, 10**6])
SMALL_BATCHES = st.builds(
    Batch,
    records=st.integers(1, 9),
    gap=st.integers(0, 9),
    size=st.integers(0, 200),
    timestamp=st.integers(0, 50),
)
STEPS = st.sampled_from([1, 7, 100, None])


def _holes(section: Section) -> BitMap64:
    section_offsets = BitMap64()
    section_offsets.add_range(0, section.last_offset - section.base_offset + 1)
    return section_offsets - BitMap64([each - section.base_offset for each in section.survivors])


def _assert_read_back(file: WrittenFile, *, step: int | None, size: int | None, read_size: int) -> None:
    read = read_file(file.data, step=step, size=size, read_size=read_size)

    assert (read.header.file_id, read.header.writer_id) == (FILE_ID, WRITER_ID)
    assert [section.entry for section in read.sections] == list(file.summary.sections)
    for section, found in zip(file.sections, read.sections, strict=True):
        assert found.key == (section.topic_id, section.partition)
        assert found.data == b"".join(section.encoded())
        assert found.footer.base_offset == section.base_offset
        assert found.footer.last_offset == section.last_offset
        assert found.footer.record_count == section.record_count
        assert found.footer.batch_count == len(section.batches)
        assert (found.footer.min_timestamp, found.footer.max_timestamp) == section.timestamps
        assert found.footer.unique_keys == section.unique_keys
        assert found.holes == (_holes(section) if read.header.kind is SegmentKind.COMPACTED else None)


@given(
    sections=COMPACTED_SECTIONS,
    target=TARGETS,
    step=STEPS,
    known=st.booleans(),
    read_size=st.integers(1, 3000),
)
def test_a_compacted_file_is_read_forward(
    sections: list[Section], target: int, step: int | None, *, known: bool, read_size: int
) -> None:
    file = write_file(sections, block_target=target)

    size = len(file.data) if known else None
    _assert_read_back(file, step=step, size=size, read_size=read_size)


@given(sections=INGESTION_SECTIONS, target=TARGETS, step=STEPS)
def test_an_ingestion_file_is_read_forward(sections: list[Section], target: int, step: int | None) -> None:
    file = write_file(sections, kind=SegmentKind.INGESTION, block_target=target)

    _assert_read_back(file, step=step, size=len(file.data), read_size=500)


@given(sections=COMPACTED_SECTIONS, target=TARGETS)
def test_checksums_and_directory_follow_the_specification(sections: list[Section], target: int) -> None:
    data = write_file(sections, block_target=target).data

    assert complete(split(data)[:-2]) == data


@given(sections=COMPACTED_SECTIONS, target=TARGETS, more=st.integers(0, 5000))
def test_the_directory_locates_all_parts(sections: list[Section], target: int, more: int) -> None:
    file = write_file(sections, block_target=target)
    need = file.summary.directory_length + TRAILER_LENGTH

    directory = read_directory(
        file.data[-(need + more) :], name="a.seg", size=len(file.data), file_id=FILE_ID
    )

    assert directory.sections == file.summary.sections
    for section, entry in zip(file.sections, directory.sections, strict=True):
        assert directory.find(section.topic_id, section.partition) == entry
        data = file.data[entry.data_position : entry.data_position + entry.data_length]
        payloads = parse_data_blocks(data, name="a.seg", file_id=FILE_ID, position=entry.data_position)
        assert b"".join(map(bytes, payloads)) == b"".join(section.encoded())
        block = file.data[entry.holes_position : entry.holes_position + entry.holes_length]
        holes = parse_holes_block(block, name="a.seg", file_id=FILE_ID, entry=entry)
        assert holes == _holes(section)
    assert directory.find(UUID(int=2**128 - 1), 0) is None


@given(
    batches=st.lists(SMALL_BATCHES, min_size=1, max_size=20),
    offset=st.integers(0, 400),
    timestamp=st.integers(0, 60),
    max_bytes=st.integers(0, 2000),
)
def test_the_index_locates_offsets_and_timestamps(
    batches: list[Batch], offset: int, timestamp: int, max_bytes: int
) -> None:
    section = Section(batches=tuple(batches), base_offset=50, tail_gap=3)
    file = write_file([section], block_target=200)
    (entry,) = file.summary.sections
    block = file.data[entry.index_position : entry.index_position + entry.index_length]
    index = SectionIndex.parse(block, name="a.seg", file_id=FILE_ID, position=entry.index_position)
    data = file.data[entry.data_position : entry.data_position + entry.data_length]
    assert index.data_length == entry.data_length

    def payloads(position: int, length: int) -> list[bytes]:
        views = parse_data_blocks(
            data[position : position + length],
            name="a.seg",
            file_id=FILE_ID,
            position=entry.data_position + position,
        )
        return [bytes(view) for view in views]

    def starts(of: list[bytes]) -> list[int]:
        return [int.from_bytes(payload[:8], "big") for payload in of]

    everything = payloads(0, entry.data_length)
    position, length = index.range_for_offset(offset, max_bytes)
    found = payloads(position, length)
    first = max((n for n, start in enumerate(starts(everything)) if start <= offset), default=0)
    assert found == everything[first : first + len(found)]
    assert length <= max_bytes or len(found) == 1
    if position + length < entry.data_length:
        assert length + 12 + len(everything[first + len(found)]) > max_bytes

    reached = index.range_for_timestamp(timestamp, max_bytes)
    newest = [max(payload[42] for payload in _batches(block)) for block in everything]
    expected = next((n for n, value in enumerate(newest) if value >= timestamp), None)
    assert (reached is None) == (expected is None)
    if reached is not None and expected is not None:
        assert payloads(*reached)[0] == everything[expected]


def _batches(payload: bytes) -> list[bytes]:
    found = []
    while payload:
        size = 12 + int.from_bytes(payload[8:12], "big")
        found.append(payload[:size])
        payload = payload[size:]
    return found


@given(sections=COMPACTED_SECTIONS, reads=st.data())
def test_sections_can_be_skipped_at_any_point(sections: list[Section], reads: st.DataObject) -> None:
    file = write_file(sections)
    reader = ForwardReader(BytesSource(file.data), name="a.seg", read_size=200)

    for section in sections:
        header = reader.next_section()
        assert header is not None
        assert header.key == (section.topic_id, section.partition)
        limit = reads.draw(st.integers(0, 4))
        for _, block in zip(range(limit), reader.blocks(), strict=False):
            assert bytes(block.payload) in b"".join(section.encoded())

    assert reader.next_section() is None
    assert reader.next_section() is None
    assert reader.position == len(file.data)


def test_a_footer_is_available_after_the_last_block_of_its_section() -> None:
    reader = ForwardReader(BytesSource(write_file([Section()]).data), name="a.seg")
    for step in (reader.next_section, lambda: next(reader.blocks())):
        with pytest.raises(InvalidInputError, match="footer has not been read"):
            _ = reader.footer
        step()
    with pytest.raises(InvalidInputError, match="footer has not been read"):
        _ = reader.entry
    assert list(reader.blocks()) == []
    assert reader.footer.record_count == 1


def test_two_readers_of_one_file_are_independent() -> None:
    sections = [
        Section(partition=number, batches=(Batch(records=1, size=number),) * 5, tail_gap=1)
        for number in range(9)
    ]
    data = write_file(sections).data
    first, second = (ForwardReader(BytesSource(data), name="a.seg", read_size=100) for _ in range(2))

    for section in sections:
        expected = b"".join(section.encoded())
        for reader in (first, second):
            assert reader.next_section() is not None
            assert b"".join(bytes(block.payload) for block in reader.blocks()) == expected


def test_a_thousand_partitions_take_few_reads_and_one_buffer() -> None:
    sections = [Section(partition=number, batches=(Batch(records=3, size=100),)) for number in range(1000)]
    data = write_file(sections, kind=SegmentKind.INGESTION).data
    source = BytesSource(data)
    reader = ForwardReader(source, name="a.seg", size=len(data), read_size=65_536)

    count = 0
    while (section := reader.next_section()) is not None:
        assert section.partition == count
        count += 1

    assert count == 1000
    assert source.reads <= len(data) // 65_000 + 2
    assert reader.buffer_size == 65_536


def test_a_file_without_sections_is_valid() -> None:
    file = write_file([])

    assert read_file(file.data).sections == []
    assert read_directory(file.data, name="a.seg", size=len(file.data)).sections == ()
