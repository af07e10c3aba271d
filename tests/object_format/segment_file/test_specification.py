"""The tables and the worked example of docs/reference/segment-file.md agree with the code."""

from __future__ import annotations

import re
from pathlib import Path
from struct import Struct, calcsize
from uuid import UUID

import pytest
from pyroaring import BitMap64

from object_format.limits import MAX_SPAN
from object_format.segment_file import (
    TRAILER_LENGTH,
    CorruptSegmentError,
    NeedMoreTail,
    SectionIndex,
    SegmentFileWriter,
    SegmentKind,
    layout,
    parse_data_blocks,
    parse_holes_block,
    read_directory,
)
from tests.object_format.segment_file.forging import complete, split
from tests.object_format.segment_file.samples import holes_at, read_file

DOCUMENT = (Path(__file__).parents[3] / "docs" / "reference" / "segment-file.md").read_text()
TOPIC = UUID("5b1e0000-0000-4000-8000-000000000001")
FILE_ID = UUID("0192d3b0-11b2-7f00-8a00-0123456789ab")
WRITER_ID = UUID("0192d3b0-0000-7000-8000-00000000cafe")
FIRST_MS = 1_730_000_000_000
BATCH = slice(0x74, 0xC9)


def _example() -> bytes:
    """Return the bytes of the listing; the position in each line must be that of its first byte."""
    listing = DOCUMENT.split("## A worked example")[1]
    data = bytearray()
    for position, digits in re.findall(
        r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} )*[0-9a-f]{2})", listing, re.MULTILINE
    ):
        assert int(position, 16) == len(data)
        data += bytes.fromhex(digits)
    return bytes(data)


EXAMPLE = _example()


def test_the_example_is_read_as_documented() -> None:
    read = read_file(EXAMPLE, size=len(EXAMPLE))

    assert read.header.kind is SegmentKind.COMPACTED
    assert (read.header.file_id, read.header.writer_id) == (FILE_ID, WRITER_ID)
    assert read.header.created_ms == FIRST_MS + 60_000
    first, second = read.sections
    assert (first.key, second.key) == ((TOPIC, 0), (TOPIC, 3))
    assert (first.data, second.data) == (EXAMPLE[BATCH], b"")
    assert (first.footer.base_offset, first.footer.last_offset, first.footer.record_count) == (100, 103, 2)
    assert (first.footer.min_timestamp, first.footer.max_timestamp) == (FIRST_MS, FIRST_MS + 5)
    assert (second.footer.base_offset, second.footer.last_offset, second.footer.record_count) == (7, 15, 0)
    assert (first.holes, second.holes) == (BitMap64([1, 3]), BitMap64(range(9)))


def test_the_writer_writes_the_example() -> None:
    parts: list[bytes | memoryview] = []
    writer = SegmentFileWriter(
        kind=SegmentKind.COMPACTED,
        file_id=FILE_ID,
        writer_id=WRITER_ID,
        created_ms=FIRST_MS + 60_000,
        sink=parts.append,
    )
    writer.begin_section(TOPIC, 0)
    writer.append(EXAMPLE[BATCH])
    writer.end_section(
        base_offset=100,
        last_offset=103,
        record_count=2,
        min_timestamp=FIRST_MS,
        max_timestamp=FIRST_MS + 5,
        unique_keys=True,
        holes=holes_at(1, 3, span=4),
    )
    writer.begin_section(TOPIC, 3)
    writer.end_section(
        base_offset=7,
        last_offset=15,
        record_count=0,
        min_timestamp=-1,
        max_timestamp=-1,
        unique_keys=True,
        holes=holes_at(*range(9), span=9),
    )
    writer.finish()

    assert b"".join(parts) == EXAMPLE


def test_the_example_is_opened_from_its_end() -> None:
    directory = read_directory(EXAMPLE[-400:], name="example", size=len(EXAMPLE), file_id=FILE_ID)

    entry = directory.find(TOPIC, 0)
    assert entry is not None
    data = EXAMPLE[entry.data_position : entry.data_position + entry.data_length]
    payloads = parse_data_blocks(data, name="example", file_id=FILE_ID, position=entry.data_position)
    assert [bytes(payload) for payload in payloads] == [EXAMPLE[BATCH]]
    block = EXAMPLE[entry.index_position : entry.index_position + entry.index_length]
    index = SectionIndex.parse(block, name="example", file_id=FILE_ID, position=entry.index_position)
    assert index.range_for_offset(102, 2**20) == (0, entry.data_length)
    block = EXAMPLE[entry.holes_position : entry.holes_position + entry.holes_length]
    assert parse_holes_block(block, name="example", file_id=FILE_ID, entry=entry) == BitMap64([1, 3])


def test_checksums_and_directory_of_the_example_follow_the_specification() -> None:
    assert complete(split(EXAMPLE)[:-2]) == EXAMPLE


def test_a_truncated_example_is_rejected() -> None:
    for length in range(len(EXAMPLE)):
        with pytest.raises(CorruptSegmentError):
            read_file(EXAMPLE[:length])
        with pytest.raises((CorruptSegmentError, NeedMoreTail)):
            read_directory(EXAMPLE[:length], name="example", size=length)


def test_a_flipped_bit_in_the_example_is_detected() -> None:
    for position in range(len(EXAMPLE)):
        for bit in range(8):
            damaged = bytearray(EXAMPLE)
            damaged[position] ^= 1 << bit
            with pytest.raises(CorruptSegmentError, match=r"segment file a\.seg: .*byte \d+"):
                read_file(bytes(damaged))


def test_block_types_agree_with_the_code() -> None:
    rows = re.findall(r"^\| (\d) \| ([A-Z_]+) \| (\d) \| ([^|]*) \|$", DOCUMENT, re.MULTILINE)

    assert [(int(number), name) for number, name, *_ in rows] == [
        (kind.value, kind.name) for kind in layout.BlockType
    ]
    assert {name for _, name, flags, _ in rows if int(flags) == layout.OPTIONAL} == {"SECTION_INDEX"}
    assert {int(flags) for *_, flags, _ in rows} == {0, layout.OPTIONAL}
    fixed = {name: int(size.split()[0]) for _, name, _, size in rows if re.fullmatch(r"\d+ bytes", size)}
    assert fixed == {kind.name: size for kind, size in layout.FIXED_PAYLOADS.items()}
    assert TRAILER_LENGTH == 60
    assert layout.DIRECTORY_ENTRY.size == 128
    assert layout.INDEX_ENTRY.size == 24


@pytest.mark.parametrize(
    ("title", "structs"),
    [
        ("FILE_HEADER", [layout.FILE_HEADER]),
        ("SECTION_HEADER", [layout.SECTION_HEADER]),
        ("SECTION_INDEX", [layout.INDEX_HEADER, layout.INDEX_ENTRY]),
        ("SECTION_FOOTER", [layout.SECTION_FOOTER]),
        ("DIRECTORY", [layout.DIRECTORY_ENTRY]),
        ("TRAILER", [layout.TRAILER]),
    ],
)
def test_positions_and_types_of_fields_agree_with_the_code(title: str, structs: list[Struct]) -> None:
    """Each table of a payload lists the fields of one struct."""
    section = DOCUMENT.split(f"\n### {title}\n")[1].split("\n#")[0]
    tables = re.findall(r"(?:^\| \d+ \| .* \|\n)+", section, re.MULTILINE)
    fields = [re.findall(r"^\| (\d+) \| `?([^`|]*)`? \|", table, re.MULTILINE) for table in tables]

    assert [[(int(position), kind) for position, kind in table] for table in fields] == [
        _fields(struct) for struct in structs
    ]


def _fields(struct: Struct) -> list[tuple[int, str]]:
    """Return the position and the type of each field."""
    types = {
        "B": "u8",
        "H": "u16",
        "I": "u32",
        "Q": "u64",
        "i": "i32",
        "q": "i64",
        "8s": "8 bytes",
        "16s": "uuid",
    }
    found = []
    position = 0
    for count, code in re.findall(r"(\d*)([A-Za-z])", struct.format):
        for field in [count + code] if code == "s" else [code] * int(count or 1):
            found.append((position, types[field]))
            position += calcsize(">" + field)
    assert position == struct.size
    return found


def test_limits_agree_with_the_code() -> None:
    limits = dict(re.findall(r"^\| ([^|]*) \| 2\^(\d+)[^|]* \|$", DOCUMENT, re.MULTILINE))

    assert 2 ** int(limits["payload of a block, and therefore a batch"]) == layout.MAX_PAYLOAD
    assert 2 ** int(limits["sections per file"]) == layout.MAX_PAYLOAD // layout.DIRECTORY_ENTRY.size
    assert 2 ** int(limits["offsets of a section with holes"]) == MAX_SPAN
