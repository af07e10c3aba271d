"""Reading of sections in byte ranges that start and end anywhere, at blocks that the index names."""

from __future__ import annotations

import io
import struct
from itertools import pairwise

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from core.errors import InvalidInputError
from object_format.segment_file import (
    CorruptSegmentError,
    RangeReader,
    SectionIndex,
    SegmentFileWriter,
    SegmentKind,
    checksum,
)
from object_format.segment_file.layout import MAGIC, SECTION_START_LENGTH
from tests.object_format.segment_file.forging import OPTIONAL, SECTION_HEADER, Block, join, split
from tests.object_format.segment_file.samples import CREATED_MS, FILE_ID, TOPIC, WRITER_ID, make_batch

KEY = (TOPIC, 1)
_PREFIX_BYTES = 16  # position and header, which a block's checksum also covers


class Section:
    """A section of a compacted file, its location and its index."""

    def __init__(self, bodies: list[bytes], *, block_target: int = 1) -> None:
        pieces: list[bytes] = []
        writer = SegmentFileWriter(
            kind=SegmentKind.COMPACTED,
            file_id=FILE_ID,
            writer_id=WRITER_ID,
            created_ms=CREATED_MS,
            sink=lambda data: pieces.append(bytes(data)),
            block_target=block_target,
        )
        writer.begin_section(*KEY)
        for number, body in enumerate(bodies):
            writer.append(make_batch(number, 1, body=body))
        entry = writer.end_section(
            base_offset=0,
            last_offset=len(bodies) - 1,
            record_count=len(bodies),
            min_timestamp=CREATED_MS,
            max_timestamp=CREATED_MS,
        )
        writer.finish()
        self.data = b"".join(pieces)
        self.start = entry.data_position
        self.end = entry.data_position + entry.data_length
        self.index = SectionIndex.parse(
            self.data[entry.index_position :][: entry.index_length],
            name="a.seg",
            file_id=FILE_ID,
            position=entry.index_position,
        )

    def reader(self, position: int, data: bytes | None = None, read_size: int = 1) -> RangeReader:
        source = io.BytesIO((self.data if data is None else data)[position:])
        reader = RangeReader(source, name="a.seg", file_id=FILE_ID, position=position, read_size=read_size)
        reader.enter(KEY, self.end)
        return reader

    def read(
        self, start: int, end: int, data: bytes | None = None
    ) -> tuple[int | None, list[bytes], int | None]:
        """Return the first block's offset, the blocks, and the offset of the next block."""
        first = self.index.block_from(start - self.start)
        if first is None or self.start + first[0] >= end:
            return None, [], None
        position, base_offset = self.start + first[0], first[1]
        reader = self.reader(position, data)
        reader.skip_to_block(position, base_offset)
        blocks = [bytes(block.payload) for block in reader.blocks(end)]
        return base_offset, blocks, reader.next_base_offset()


BODIES = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([b"\x03\0\0\0", b"\x03\0\0", b"\x03" * 9, bytes(80), b"\x03\0\0\0\0\0\0\x50" * 20]),
)


@given(
    bodies=st.lists(BODIES, min_size=1, max_size=12),
    block_target=st.sampled_from([1, 100, 300]),
    cuts=st.lists(st.floats(0, 1), max_size=6),
)
def test_adjacent_ranges_contain_every_block_once(
    bodies: list[bytes], block_target: int, cuts: list[float]
) -> None:
    """Each range ends at the offset where the next range with a block starts."""
    section = Section(bodies, block_target=block_target)
    whole = section.read(section.start, section.end)
    inner = {section.start + int(cut * (section.end - section.start)) for cut in cuts}
    boundaries = sorted({section.start, section.end} | inner)

    found = [section.read(start, end) for start, end in pairwise(boundaries)]

    assert [block for _, blocks, _ in found for block in blocks] == whole[1]
    assert b"".join(whole[1]) == b"".join(make_batch(n, 1, body=body) for n, body in enumerate(bodies))
    with_blocks = [each for each in found if each[0] is not None]
    assert [first for first, _, _ in with_blocks] == [0, *(end for _, _, end in with_blocks[:-1])]
    assert with_blocks[-1][2] is None


def test_records_that_look_like_blocks_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer may write copies of the file's own blocks, or a block header at every byte."""
    lookalike = b"\x03\0\0\0" + (1 << 20).to_bytes(4, "big") + bytes(12) + b"\0\0\0\x50\0\0\0\0\x02"
    bodies = [Section([b"x" * 50] * 3).data, lookalike * 3000, b"\x03\0\0\0" * 30_000, b"last"]
    section = Section(bodies)
    checked: list[int] = []

    def counted(data: memoryview, seed: int = 0) -> int:
        checked.append(len(data))
        return int(crc32c(data, seed))

    monkeypatch.setattr(checksum, "crc32c", counted)
    last = section.data.index(make_batch(3, 1, body=b"last")) - 12

    for start in range(section.start + 1, last, 1009):
        first, blocks, _ = section.read(start, section.end)
        assert first is not None
        assert blocks[-1] == make_batch(3, 1, body=b"last")
        assert sum(checked) == len(FILE_ID.bytes) + sum(_PREFIX_BYTES + len(block) for block in blocks)
        checked.clear()


def test_a_range_that_ends_inside_a_block_contains_all_of_it() -> None:
    section = Section([b"a" * 100_000, b"b" * 300_000, b"c"])

    first, blocks, following = section.read(section.start, section.start + 100_200)

    assert (first, len(blocks), following) == (0, 2, 2)


def test_damage_is_detected() -> None:
    """In a block that is read, and in the header at the end of a range."""
    section = Section([b"a" * 40, b"b" * 40])
    second = section.data.index(make_batch(1, 1, body=b"b" * 40)) - 12

    def damaged(position: int) -> bytes:
        data = bytearray(section.data)
        data[position] ^= 1
        return bytes(data)

    with pytest.raises(CorruptSegmentError, match="checksum"):
        section.read(section.start, section.end, damaged(section.end - 1))
    with pytest.raises(CorruptSegmentError, match="SECTION_HEADER payload"):
        section.read(section.start, section.start + 1, damaged(second))
    with pytest.raises(CorruptSegmentError, match="the index has a block of base offset 1, but it is 257"):
        section.read(section.start + 1, section.end, damaged(second + 18))


def test_peeked_bytes_stay_in_the_stream() -> None:
    """They end at a position of the file, or with the file."""
    section = Section([b"a" * 40])
    reader = section.reader(section.start)

    assert reader.peek_to(section.start + 50) == section.data[section.start : section.start + 50]
    assert reader.peek_to(len(section.data) + 1) == section.data[section.start :]
    assert [bytes(block.payload) for block in reader.blocks(section.end)] == [
        make_batch(0, 1, body=b"a" * 40)
    ]


def test_the_header_directly_before_data_must_be_that_of_the_section() -> None:
    """A reader that starts after the first byte of the header has not read it."""
    section = Section([b"a" * 40])
    start = section.start - SECTION_START_LENGTH
    for position in (0, start):
        section.reader(position).skip_to_data(section.start)
        reader = section.reader(position)
        reader.enter((TOPIC, 2), section.end)
        with pytest.raises(CorruptSegmentError, match=f"section {TOPIC}/1 begins here") as caught:
            reader.skip_to_data(section.start)
        assert caught.value.position == start
    reader = section.reader(start + 1)
    reader.enter((TOPIC, 2), section.end)
    reader.skip_to_data(section.start)
    assert reader.position == section.start


@pytest.mark.parametrize("read_size", [1, 7, 100, 10_000])
def test_a_reader_skips_to_any_position(read_size: int) -> None:
    """It reads neither more nor less than it skips, whatever is in its buffer."""
    section = Section([b"a" * 40, b"b" * 40])
    for start in (0, 5, section.start):
        for position in range(start, section.end + 1):
            reader = section.reader(start, read_size=read_size)
            reader.skip_to(start + (position - start) // 2)
            reader.skip_to(position)
            assert reader.position == position
            assert reader.peek_to(position + 9) == section.data[position : position + 9]


@pytest.mark.parametrize(
    ("partition", "flags", "message"), [(-1, 0, "partition -1 is negative"), (1, 2, "reserved in version 1")]
)
def test_a_section_header_of_values_that_no_writer_writes_is_corrupt(
    partition: int, flags: int, message: str
) -> None:
    section = Section([b"a" * 40])
    blocks = split(section.data)
    blocks[1] = blocks[1]._replace(payload=struct.pack(">16siI", TOPIC.bytes, partition, flags))

    with pytest.raises(CorruptSegmentError, match=message) as caught:
        section.reader(0, join(blocks)).skip_to_data(section.start)

    assert caught.value.position == section.start - SECTION_START_LENGTH


@pytest.mark.parametrize("is_moved", [False, True])
def test_bytes_before_data_that_are_no_section_header_are_skipped(*, is_moved: bool) -> None:
    """They end a batch with the header of another place, or are an optional block of a later version."""
    section = Section([b"a" * 40])
    blocks = split(section.data)
    other = struct.pack(">16siI", TOPIC.bytes, 2, 0)
    if is_moved:
        header = join([blocks[0]._replace(kind=SECTION_HEADER, payload=other)])[len(MAGIC) :]
        data = join([*blocks[:2], blocks[2]._replace(payload=blocks[2].payload + header), *blocks[2:]])
    else:
        data = join([*blocks[:2], Block(200, OPTIONAL, other), *blocks[2:]])
    start = len(join(blocks[:2])) + len(data) - len(section.data)
    reader = section.reader(0, data)
    reader.enter(KEY, start + section.end - section.start)

    reader.skip_to_data(start)

    assert [bytes(block.payload) for block in reader.blocks(len(data))] == [blocks[2].payload]


def test_a_truncated_file_is_detected() -> None:
    section = Section([b"a" * 40, b"b" * 40])

    with pytest.raises(CorruptSegmentError, match="ends within a block"):
        section.read(section.start, section.end, section.data[: section.end - 1])
    with pytest.raises(CorruptSegmentError, match="ends before"):
        section.reader(0, section.data[:9]).skip_to(section.start)
    for end in (section.start - SECTION_START_LENGTH + 1, section.start - 1):
        with pytest.raises(CorruptSegmentError, match="ends before") as caught:
            section.reader(0, section.data[:end]).skip_to_data(section.start)
        assert caught.value.position == end
    with pytest.raises(InvalidInputError, match="after byte"):
        section.reader(section.start).skip_to(section.start - 1)
