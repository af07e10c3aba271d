"""Fuzz target: arbitrary bytes as a segment file, or as changes to the blocks of a valid file.

Checksums reject almost every arbitrary input at its first byte. Changed blocks therefore get correct
checksums.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from object_format.segment_file import (
    CorruptSegmentError,
    ForwardReader,
    NeedMoreTail,
    SectionIndex,
    parse_data_blocks,
    parse_holes_block,
    read_directory,
)
from tests.fuzz.harness import fuzz
from tests.object_format.segment_file.forging import Block, complete, join, split
from tests.object_format.segment_file.samples import FILE_ID, Batch, BytesSource, Section, write_file

if TYPE_CHECKING:
    from object_format.segment_file import SectionEntry

FILE = write_file(
    [
        Section(partition=0, batches=(Batch(records=2, size=90),) * 6, tail_gap=4),
        Section(partition=1, batches=(), tail_gap=70_000),
        Section(partition=2, batches=(Batch(records=1, missing=3, gap=2, size=400),)),
    ]
)
BLOCKS = split(FILE.data)


def read_forward(data: bytes) -> None:
    """The result of a sequential reader is not larger than its input."""
    reader = ForwardReader(BytesSource(data, None), name="a.seg", size=len(data), read_size=128)
    found = 0
    try:
        while reader.next_section() is not None:
            found += sum(len(block.payload) for block in reader.blocks())
    except CorruptSegmentError as error:
        assert 0 <= error.position <= len(data)
    assert found <= len(data)
    assert reader.buffer_size <= 128 + 2 * len(data)


def read_parts(data: bytes) -> None:
    """Read all parts that the directory refers to."""
    try:
        directory = read_directory(data, name="a.seg", size=len(data), file_id=FILE_ID)
    except (CorruptSegmentError, NeedMoreTail):
        return
    for entry in directory.sections:
        for read in (read_data, read_holes, read_index):
            try:
                read(data, entry)
            except CorruptSegmentError as error:
                assert error.position >= 0


def read_data(data: bytes, entry: SectionEntry) -> None:
    part = data[entry.data_position : entry.data_position + entry.data_length]
    found = list(parse_data_blocks(part, name="a.seg", file_id=FILE_ID, position=entry.data_position))
    assert sum(map(len, found)) <= len(part)


def read_holes(data: bytes, entry: SectionEntry) -> None:
    part = data[entry.holes_position : entry.holes_position + entry.holes_length]
    holes = parse_holes_block(part, name="a.seg", file_id=FILE_ID, entry=entry)
    assert len(holes) == entry.last_offset - entry.base_offset + 1 - entry.record_count


def read_index(data: bytes, entry: SectionEntry) -> None:
    part = data[entry.index_position : entry.index_position + entry.index_length]
    index = SectionIndex.parse(part, name="a.seg", file_id=FILE_ID, position=entry.index_position)
    first, end = index.range_for_offset(3, 1000)
    assert 0 <= first <= end <= index.data_length


def forged(data: bytes) -> list[Block]:
    """Return the blocks of the valid file with changes; each change takes five bytes of `data`."""
    blocks = list(BLOCKS[:-2])
    for at in range(0, len(data) - 4, 5):
        which, position, value, kind, more = data[at : at + 5]
        number = which % len(blocks)
        block = blocks[number]
        payload = bytearray(block.payload)
        match kind % 5:
            case 0 if payload:
                payload[position % len(payload)] = value
                blocks[number] = block._replace(payload=bytes(payload))
            case 1:
                blocks[number] = block._replace(payload=bytes(payload[: position * more // 8]))
            case 2:
                blocks[number] = block._replace(kind=value % 10, flags=more % 3)
            case 3:
                blocks.insert(position % len(blocks), block)
            case _ if len(blocks) > 1:
                del blocks[number]
    return blocks


def one_input(data: bytes) -> None:
    """Read the input as a file, and as changes to a file."""
    read_forward(data)
    read_parts(data)
    blocks = forged(data)
    read_forward(join(blocks))
    try:
        file = complete(blocks)
    except Exception:  # noqa: BLE001 -- the forger's own trouble with blocks that make no directory
        return
    read_forward(file)
    read_parts(file)


if __name__ == "__main__":
    fuzz(one_input, [b"", FILE.data, b"\0\1\2\3\4" * 9])
