"""Reading of known ranges, directories, indexes and holes."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from pyroaring import BitMap64

from core.errors import InvalidInputError
from object_format.segment_file import (
    TRAILER_LENGTH,
    CorruptSegmentError,
    NeedMoreTail,
    SectionIndex,
    parse_data_blocks,
    parse_holes_block,
    read_directory,
)
from tests.object_format.segment_file.forging import (
    DATA,
    DIRECTORY,
    HOLES,
    OPTIONAL,
    SECTION_INDEX,
    Block,
    join,
    split,
)
from tests.object_format.segment_file.samples import FILE_ID, TOPIC, Batch, Section, write_file

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE = write_file(
    [
        Section(partition=1, batches=(Batch(records=1, size=200),) * 4, tail_gap=2),
        Section(partition=2, batches=(), tail_gap=5),
    ]
)
FIRST, EMPTY = FILE.summary.sections
RANGE = FILE.data[FIRST.data_position : FIRST.data_position + FIRST.data_length]
KEY = (TOPIC, 1)


def _blocks(data: bytes | bytearray, position: int = FIRST.data_position) -> Iterator[memoryview]:
    return parse_data_blocks(data, name="a.seg", file_id=FILE_ID, position=position, section=KEY)


def test_payloads_are_views_that_can_be_patched_in_place() -> None:
    data = bytearray(RANGE)

    for number, payload in enumerate(_blocks(data)):
        struct.pack_into(">q", payload, 0, 1000 + number)

    assert data[12:20] == struct.pack(">q", 1000)
    assert all(payload.readonly for payload in _blocks(RANGE))


def test_an_empty_range_has_no_blocks() -> None:
    assert list(_blocks(b"")) == []


@pytest.mark.parametrize("missing", [1, 100, 261, 265, 272])
def test_a_range_must_end_with_a_block(missing: int) -> None:
    with pytest.raises(CorruptSegmentError, match=r"range ends within|ends beyond byte"):
        list(_blocks(RANGE[:-missing]))


def test_a_range_must_begin_with_a_block() -> None:
    with pytest.raises(CorruptSegmentError) as caught:
        list(_blocks(RANGE[1:], FIRST.data_position + 1))

    assert (caught.value.section, caught.value.position) == (KEY, FIRST.data_position + 1)


def test_a_range_must_contain_only_data() -> None:
    data = FILE.data[FIRST.data_position : FIRST.index_position + FIRST.index_length]

    with pytest.raises(CorruptSegmentError, match="SECTION_INDEX block instead of DATA"):
        list(_blocks(data))


def test_valid_blocks_at_the_wrong_position_are_rejected() -> None:
    block = len(RANGE) // 4

    with pytest.raises(CorruptSegmentError, match="checksum of a DATA block"):
        list(_blocks(RANGE[block:]))
    with pytest.raises(CorruptSegmentError, match="checksum of a DATA block"):
        list(_blocks(RANGE[:block] * 2))


def test_valid_blocks_of_another_file_are_rejected() -> None:
    other = UUID(int=FILE_ID.int ^ 1)

    with pytest.raises(CorruptSegmentError, match="checksum of a DATA block"):
        list(parse_data_blocks(RANGE, name="a.seg", file_id=other, position=FIRST.data_position))


def test_a_short_tail_reports_the_required_length() -> None:
    size = len(FILE.data)

    with pytest.raises(NeedMoreTail) as first:
        read_directory(b"", name="a.seg", size=size)
    assert first.value.length == TRAILER_LENGTH
    with pytest.raises(NeedMoreTail) as second:
        read_directory(FILE.data[-first.value.length :], name="a.seg", size=size)
    assert second.value.length == TRAILER_LENGTH + FILE.summary.directory_length

    directory = read_directory(FILE.data[-second.value.length :], name="a.seg", size=size)
    assert directory.sections == FILE.summary.sections
    assert (directory.position, directory.length) == (
        FILE.summary.directory_position,
        FILE.summary.directory_length,
    )


def test_a_tail_longer_than_the_file_is_invalid_input() -> None:
    with pytest.raises(InvalidInputError, match="a tail of"):
        read_directory(FILE.data, name="a.seg", size=100)


def test_size_and_id_must_match_the_file() -> None:
    with pytest.raises(CorruptSegmentError, match=r"checksum|not end"):
        read_directory(FILE.data, name="a.seg", size=len(FILE.data) + 5)
    with pytest.raises(CorruptSegmentError, match=f"the file is {FILE_ID}, not") as caught:
        read_directory(FILE.data, name="a.seg", size=len(FILE.data), file_id=UUID(int=1))
    assert caught.value.position == len(FILE.data) - TRAILER_LENGTH


@pytest.mark.parametrize(
    ("entry", "at", "value", "message"),
    [
        (0, 24, 0, "overlaps another part"),
        (0, 32, 2**40, "overlaps another part"),
        (0, 40, 2**40, "are not inside their section"),
        (0, 48, 2**63, "are not inside their section"),
        (0, 56, 3, "are not inside their section"),
        (0, 80, 0, "are not inside their section"),
        (1, 24, FIRST.position + 200, "are not inside their section"),
        (0, 88, 9, "offsets run from 9"),
        (0, 104, 99, "99 records"),
        (1, 104, 1, "1 records in a section without DATA"),
        (1, 0, 0, "not in ascending order"),
        (1, 16, 1 << 32, "not in ascending order"),
        (1, 16, -1 << 32, "partition -1 is negative"),
        (0, 16, 1 << 32 | 2, "DIRECTORY entry has bits set"),
    ],
)
def test_an_invalid_directory_with_correct_checksums_is_rejected(
    entry: int, at: int, value: int, message: str
) -> None:
    blocks = split(FILE.data)
    payload = bytearray(blocks[-2].payload)
    struct.pack_into(">Q", payload, entry * 128 + at, value & 2**64 - 1)
    blocks[-2] = Block(DIRECTORY, 0, bytes(payload))

    with pytest.raises(CorruptSegmentError, match=message) as caught:
        read_directory(join(blocks), name="a.seg", size=len(FILE.data))

    assert caught.value.position == FILE.summary.directory_position + 12 + 128 * entry


def test_a_trailer_of_a_longer_file_is_rejected() -> None:
    blocks = split(FILE.data)
    payload = bytearray(blocks[-1].payload)
    struct.pack_into(">Q", payload, 16, FILE.summary.directory_position + 1)
    struct.pack_into(">Q", payload, 32, len(FILE.data) + 1)
    blocks[-1] = blocks[-1]._replace(payload=bytes(payload))

    with pytest.raises(CorruptSegmentError, match=f"has {len(FILE.data)} bytes, its trailer says"):
        read_directory(join(blocks), name="a.seg", size=len(FILE.data))


def _single(block: Block) -> bytes:
    """Return the block as it is stored directly after the magic number."""
    return join([block])[8:]


def _index(payload: bytes) -> SectionIndex:
    block = _single(Block(SECTION_INDEX, OPTIONAL, payload))
    return SectionIndex.parse(block, name="a.seg", file_id=FILE_ID, position=8, section=KEY)


@pytest.mark.parametrize(
    ("length", "entries", "message"),
    [
        (100, [], "an index of 8 bytes has no or incomplete entries"),
        (100, [(0, 0, 5)], "positions"),
        (12, [(0, 0, 0)], "positions"),
        (2**63, [(0, 0, 0)], "positions"),
        (300, [(0, 0, 0), (5, 0, 10)], "positions"),
        (300, [(0, 0, 0), (5, 0, 300)], "positions"),
        (2**63 + 99, [(0, 0, 0), (5, 0, 2**63 - 1), (6, 0, 2**63 + 20)], "positions"),
        (300, [(0, 0, 0), (0, 0, 100)], "offsets are not ascending"),
        (300, [(-5, 0, 0)], "offsets are not ascending"),
    ],
)
def test_an_invalid_index_is_rejected(length: int, entries: list[tuple[int, int, int]], message: str) -> None:
    payload = struct.pack(">Q", length) + b"".join(struct.pack(">qqQ", *entry) for entry in entries)

    with pytest.raises(CorruptSegmentError, match=message):
        _index(payload)


def test_an_index_with_incomplete_entries_is_rejected() -> None:
    with pytest.raises(CorruptSegmentError, match="33 bytes has no or incomplete entries"):
        _index(struct.pack(">QqqQ", 100, 0, 0, 0) + b"x")
    with pytest.raises(CorruptSegmentError, match="0 bytes has no or incomplete entries"):
        _index(b"")


def test_an_index_finds_the_block_of_an_offset() -> None:
    index = _index(struct.pack(">QqqQqqQqqQ", 1000, 10, 7, 0, 20, 5, 300, 30, 9, 600))

    assert len(index) == 3
    assert index.range_for_offset(10, 0) == (0, 300)
    assert index.range_for_offset(19, 10**9) == (0, 1000)
    assert index.range_for_offset(20, 699) == (300, 300)
    assert index.range_for_offset(29, 700) == (300, 700)
    assert index.range_for_offset(3, 600) == (0, 600)
    assert index.range_for_offset(10**12, 1) == (600, 400)
    with pytest.raises(InvalidInputError, match="at most -1 bytes"):
        index.range_for_offset(10, -1)


def test_an_index_finds_the_first_block_for_a_timestamp() -> None:
    index = _index(struct.pack(">QqqQqqQqqQ", 1000, 10, 7, 0, 20, 5, 300, 30, 9, 600))

    assert index.range_for_timestamp(-1, 1) == (0, 300)
    assert index.range_for_timestamp(6, 1) == (0, 300)
    assert index.range_for_timestamp(8, 1) == (600, 400)
    assert index.range_for_timestamp(10, 1) is None


def test_an_index_contains_the_max_timestamp_of_each_block() -> None:
    batches = tuple(Batch(records=1, timestamp=value) for value in (3, 9, 4, 1, 1, 2))
    file = write_file([Section(batches=batches, batches_per_append=6)], block_target=3 * 61)
    (entry,) = file.summary.sections
    block = file.data[entry.index_position : entry.index_position + entry.index_length]
    index = SectionIndex.parse(block, name="a.seg", file_id=FILE_ID, position=entry.index_position)

    assert block[20 + 8 : 20 + 16] == struct.pack(">q", 9)
    assert block[20 + 32 : 20 + 40] == struct.pack(">q", 2)
    assert index.range_for_timestamp(9, 0) == (0, 195)


def test_a_block_of_another_type_is_rejected() -> None:
    data = _single(Block(DATA, 0, b"x" * 40))

    with pytest.raises(CorruptSegmentError, match="a DATA block instead of SECTION_INDEX"):
        SectionIndex.parse(data, name="a.seg", file_id=FILE_ID, position=8)
    with pytest.raises(CorruptSegmentError, match="a DATA block instead of HOLES"):
        parse_holes_block(data, name="a.seg", file_id=FILE_ID, entry=FIRST)
    with pytest.raises(CorruptSegmentError, match="5 bytes are no HOLES block"):
        parse_holes_block(data[:5], name="a.seg", file_id=FILE_ID, entry=FIRST)
    with pytest.raises(CorruptSegmentError, match="ends beyond byte"):
        SectionIndex.parse(data[:-1], name="a.seg", file_id=FILE_ID, position=8)


def test_holes_are_compared_with_the_entry() -> None:
    block = FILE.data[EMPTY.holes_position : EMPTY.holes_position + EMPTY.holes_length]

    assert parse_holes_block(block, name="a.seg", file_id=FILE_ID, entry=EMPTY) == BitMap64(range(5))
    with pytest.raises(CorruptSegmentError, match=r"HOLES block of .* instead of"):
        parse_holes_block(block + b"x", name="a.seg", file_id=FILE_ID, entry=EMPTY)
    assert split(FILE.data)[-4].kind == HOLES
