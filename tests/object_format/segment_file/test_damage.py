"""Truncated, modified and malicious files: readers return only written blocks, or raise one error."""

from __future__ import annotations

import struct
import tracemalloc
from itertools import accumulate
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from object_format.segment_file import (
    CorruptSegmentError,
    ForwardReader,
    NeedMoreTail,
    SegmentKind,
    parse_data_blocks,
    read_directory,
)
from tests.object_format.segment_file.forging import (
    DATA,
    DIRECTORY,
    FILE_HEADER,
    HOLES,
    OPTIONAL,
    SECTION_FOOTER,
    SECTION_HEADER,
    SECTION_INDEX,
    TRAILER,
    Block,
    complete,
    join,
    split,
)
from tests.object_format.segment_file.samples import (
    FILE_ID,
    TOPIC,
    Batch,
    BytesSource,
    Section,
    read_file,
    write_file,
)

if TYPE_CHECKING:
    from collections.abc import Callable

SECTIONS = [
    Section(partition=0, batches=(Batch(records=2, size=90),) * 6, tail_gap=4),
    Section(partition=1, batches=(), tail_gap=70_000),
    Section(partition=2, batches=(Batch(records=1, missing=3, gap=2, size=400), Batch(records=5, size=10))),
]
FILE = write_file(SECTIONS)
OTHER_FILE = write_file(SECTIONS, file_id=UUID(int=FILE_ID.int + 1))
BLOCKS = split(FILE.data)
BOUNDARIES = [8]
for _block in BLOCKS:
    BOUNDARIES.append(BOUNDARIES[-1] + 12 + len(_block.payload))
POSITIONS = st.one_of(st.integers(0, len(FILE.data)), st.sampled_from(BOUNDARIES))


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    """Return the file with up to three edits, many of them at block boundaries."""
    data = bytearray(FILE.data)
    for _ in range(draw(st.integers(1, 3))):
        first, second = sorted((draw(POSITIONS), draw(POSITIONS)))
        match draw(st.integers(0, 5)):
            case 0:
                data[first : first + 8] = draw(st.binary(min_size=1, max_size=8))
            case 1:
                del data[first:]
            case 2:
                data[first:first] = draw(st.binary(max_size=40))
            case 3:
                data[first:first] = FILE.data[first:second]
            case 4:
                del data[first:second]
            case _:
                data[first:second] = OTHER_FILE.data[first:second]
    return bytes(data)


@given(data=damaged(), known=st.booleans(), step=st.sampled_from([1, 50, None]))
def test_a_forward_reader_returns_only_written_blocks(data: bytes, *, known: bool, step: int | None) -> None:
    reader = ForwardReader(
        BytesSource(data, step), name="a.seg", size=len(data) if known else None, read_size=128
    )
    written = [block.payload for block in BLOCKS if block.kind == DATA]
    found: list[bytes] = []
    failure: CorruptSegmentError | None = None
    try:
        while reader.next_section() is not None:
            found += [bytes(block.payload) for block in reader.blocks()]
    except CorruptSegmentError as error:
        failure = error
    if data == OTHER_FILE.data:
        return
    assert (failure is None) == (data == FILE.data)
    assert failure is None or (failure.file == "a.seg" and 0 <= failure.position <= len(data))
    assert found == written[: len(found)]
    assert reader.buffer_size <= 128 + 2 * len(data)


@given(data=damaged(), tail=st.integers(0, 2000))
def test_a_damaged_directory_is_rejected_or_read_exactly(data: bytes, tail: int) -> None:
    try:
        directory = read_directory(
            data[max(0, len(data) - tail) :], name="a.seg", size=len(data), file_id=FILE_ID
        )
    except CorruptSegmentError:
        return
    except NeedMoreTail as more:
        sections, need = None, more.length
    else:
        sections, need = directory.sections, 0
    assert sections == FILE.summary.sections if sections is not None else tail < need <= len(data)


@given(data=damaged())
def test_a_damaged_range_returns_only_written_blocks(data: bytes) -> None:
    entry = FILE.summary.sections[0]
    part = data[entry.data_position : entry.data_position + entry.data_length]
    found: list[bytes] = []
    failed_at = entry.data_position
    try:
        found += map(
            bytes, parse_data_blocks(part, name="a.seg", file_id=FILE_ID, position=entry.data_position)
        )
    except CorruptSegmentError as error:
        failed_at = error.position
    assert entry.data_position <= failed_at <= entry.data_position + len(part)
    written = [block.payload for block in BLOCKS if block.kind == DATA]
    assert found == written[: len(found)]


@given(garbage=st.binary(max_size=300))
def test_arbitrary_bytes_are_rejected(garbage: bytes) -> None:
    for data in (garbage, FILE.data[:8] + garbage, FILE.data[:68] + garbage):
        with pytest.raises(CorruptSegmentError):
            read_file(data)
    with pytest.raises((CorruptSegmentError, NeedMoreTail)):
        read_directory(garbage, name="a.seg", size=len(garbage))


def _index_of(kind: int, number: int = 0) -> int:
    return [index for index, block in enumerate(BLOCKS) if block.kind == kind][number]


def _moved(kind: int, to: int) -> list[Block]:
    blocks = list(BLOCKS[:-2])
    blocks.insert(to, blocks.pop(_index_of(kind)))
    return blocks


def _changed(kind: int, change: Callable[[bytes], bytes], number: int = 0) -> list[Block]:
    blocks = list(BLOCKS)
    index = _index_of(kind, number)
    blocks[index] = blocks[index]._replace(payload=change(blocks[index].payload))
    return blocks


def _patched(kind: int, at: int, value: bytes, number: int = 0) -> list[Block]:
    return _changed(kind, lambda payload: payload[:at] + value + payload[at + len(value) :], number)


def _with(index: int, *blocks: Block) -> list[Block]:
    return [*BLOCKS[:index], *blocks, *BLOCKS[index:]]


def _without(kind: int, number: int = 0) -> list[Block]:
    index = _index_of(kind, number)
    return BLOCKS[:index] + BLOCKS[index + 1 :]


I64 = struct.Struct(">q")
UNKNOWN = Block(200, OPTIONAL, b"a later version's block")
FORGED: dict[str, tuple[list[Block], str]] = {
    "no file header": (BLOCKS[1:], "SECTION_HEADER block is out of place"),
    "two file headers": (_with(1, BLOCKS[0]), "FILE_HEADER block is out of place"),
    "a later version": (_patched(FILE_HEADER, 0, b"\0\2"), "format version 2, not 1"),
    "a later version with a longer header": (
        _changed(FILE_HEADER, lambda p: b"\0\2" + p[2:] + b"\0"),
        "format version 2, not 1",
    ),
    "an unknown kind": (_patched(FILE_HEADER, 2, b"\3"), "3 is not a valid SegmentKind"),
    "a long file header": (_changed(FILE_HEADER, lambda p: p + b"\0"), "FILE_HEADER payload of 49 bytes"),
    "an unknown required block": (_with(3, UNKNOWN._replace(flags=0)), "unknown required type 200"),
    "a reserved flag": (_with(3, UNKNOWN._replace(flags=3)), "type 200 block has reserved bits set"),
    "a reserved byte": (_with(3, UNKNOWN._replace(reserved=256)), "type 200 block has reserved bits set"),
    "type 0": (_with(3, Block(0, 0, b"")), "unknown required type 0"),
    "data marked optional": (_with(3, Block(DATA, OPTIONAL, b"x")), "wrong optional bit"),
    "an optional block between DATA": (_with(3, UNKNOWN), "DATA block is out of place"),
    "an empty DATA block": (_with(3, Block(DATA, 0, b"")), "DATA block without batches"),
    "an index before the last DATA": (_moved(SECTION_INDEX, 3), "index of"),
    "DATA behind the holes": (_with(_index_of(HOLES, 1) + 1, BLOCKS[2]), "DATA block is out of place"),
    "the index behind the holes": (
        _moved(SECTION_INDEX, _index_of(HOLES)),
        "SECTION_INDEX block is out of place",
    ),
    "two indexes": (
        _with(_index_of(SECTION_INDEX), BLOCKS[_index_of(SECTION_INDEX)]),
        "SECTION_INDEX block is out of place",
    ),
    "two bitmaps": (_with(_index_of(HOLES), BLOCKS[_index_of(HOLES)]), "HOLES block is out of place"),
    "no index": (_without(SECTION_INDEX), "without SECTION_INDEX"),
    "no bitmap": (_without(HOLES), "without HOLES"),
    "no footer": (_without(SECTION_FOOTER), "SECTION_HEADER block is out of place"),
    "no section header": (_without(SECTION_HEADER, 1), "HOLES block is out of place"),
    "a lost DATA block": (_without(DATA), "index of"),
    "an index with an entry too many": (_changed(SECTION_INDEX, lambda p: p + p[-24:]), "index of"),
    "an index without DATA": (
        _with(_index_of(HOLES, 1), Block(SECTION_INDEX, OPTIONAL, bytes(8))),
        "an index of 8 bytes for 0 DATA blocks",
    ),
    "a footer that counts other bytes": (_patched(SECTION_FOOTER, 32, I64.pack(7)), "counts 7 bytes of DATA"),
    "a footer with unknown flags": (_patched(SECTION_FOOTER, 58, b"\x80"), "SECTION_FOOTER has bits set"),
    "a footer that runs backwards": (_patched(SECTION_FOOTER, 8, I64.pack(-1)), "offsets run from 0 to -1"),
    "a footer with too many records": (_patched(SECTION_FOOTER, 16, I64.pack(99)), "99 records at offsets"),
    "records without DATA": (_patched(SECTION_FOOTER, 16, I64.pack(9), 1), "9 records in a section without"),
    "batches without DATA": (_patched(SECTION_FOOTER, 24, I64.pack(9), 1), "9 batches in 0 bytes"),
    "DATA without batches": (_patched(SECTION_FOOTER, 24, I64.pack(0)), "0 batches in [1-9]"),
    "a negative number of batches": (_patched(SECTION_FOOTER, 24, I64.pack(-1), 1), "-1 batches in 0 bytes"),
    "holes that do not add up": (_patched(SECTION_FOOTER, 16, I64.pack(11)), "11 records and 4 holes"),
    "a malformed bitmap": (_changed(HOLES, lambda p: p[:-1]), "bitmap of holes is malformed"),
    "a negative partition": (_patched(SECTION_HEADER, 16, b"\xff" * 4), "partition -1 is negative"),
    "flags in a section header": (_patched(SECTION_HEADER, 20, b"\1"), "SECTION_HEADER has bits set"),
    "the same section twice": (_patched(SECTION_HEADER, 16, bytes(4), 1), "not in ascending order"),
    "sections out of order": (_patched(SECTION_HEADER, 0, bytes(16), 1), "not in ascending order"),
    "a directory that lacks a section": (_changed(DIRECTORY, lambda p: p[128:]), "directory of 256 bytes"),
    "a directory with another offset": (_patched(DIRECTORY, 88, I64.pack(5)), "directory disagrees"),
    "no directory": (_without(DIRECTORY), "TRAILER block is out of place"),
    "a trailer with another size": (_patched(TRAILER, 32, I64.pack(9)), "does not end a file of 9 bytes"),
    "a trailer with another count": (_patched(TRAILER, 28, b"\0\0\0\1"), "cannot hold 1 sections"),
    "a trailer of another file": (_patched(TRAILER, 0, bytes(16)), "trailer disagrees with the file"),
    "a trailer without magic": (_patched(TRAILER, 40, b"x"), "does not end like a segment file"),
    "no trailer": (BLOCKS[:-1], "ends without a trailer"),
    "two trailers": ([*BLOCKS, BLOCKS[-1]], "bytes follow the trailer"),
}  # fmt: skip


@pytest.mark.parametrize("what", FORGED)
def test_an_invalid_file_with_correct_checksums_is_rejected(what: str) -> None:
    blocks, message = FORGED[what]

    with pytest.raises(CorruptSegmentError, match=message) as caught:
        read_file(join(blocks))

    assert caught.value.position in accumulate((12 + len(block.payload) for block in blocks), initial=8)


@pytest.mark.parametrize("at", [-1, -11, -12, -48, -60])
def test_a_first_section_inside_the_file_header_is_rejected(at: int) -> None:
    """The first section begins after the magic, the header of the FILE_HEADER block and its payload."""
    position, length = struct.unpack(">QQ", BLOCKS[_index_of(DIRECTORY)].payload[24:40])
    assert position == 8 + 12 + 48
    data = join(_patched(DIRECTORY, 24, struct.pack(">QQ", position + at, length - at)))
    with pytest.raises(CorruptSegmentError, match="overlaps another part"):
        read_directory(data, name="a.seg", size=len(data))


def test_a_section_that_overlaps_its_neighbour_or_the_directory_is_rejected() -> None:
    payload = BLOCKS[_index_of(DIRECTORY)].payload
    for start in range(24, len(payload), 128):
        position, length = struct.unpack(">QQ", payload[start : start + 16])
        data = join(_patched(DIRECTORY, start, struct.pack(">QQ", position, length + 1)))
        with pytest.raises(CorruptSegmentError, match="overlaps another part"):
            read_directory(data, name="a.seg", size=len(data))


def test_bytes_without_the_magic_number_are_rejected_at_byte_0() -> None:
    with pytest.raises(CorruptSegmentError, match="does not begin like a segment file") as caught:
        read_file(b"\0" + FILE.data[1:])
    assert caught.value.position == 0


def test_directory_entries_ascend_from_each_to_the_next() -> None:
    data = join(_patched(DIRECTORY, 128 + 16, (5).to_bytes(4, "big")))  # partitions 0, 5 and 2

    with pytest.raises(CorruptSegmentError, match="not in ascending order"):
        read_directory(data, name="a.seg", size=len(data))


def test_a_file_shorter_than_a_trailer_is_rejected() -> None:
    for size in (0, 59):
        with pytest.raises(CorruptSegmentError, match=f"{size} bytes are too short") as caught:
            read_directory(bytes(size), name="a.seg", size=size)
        assert caught.value.position == 0
    with pytest.raises(NeedMoreTail) as more:
        read_directory(bytes(59), name="a.seg", size=60)
    assert more.value.length == 60


@pytest.mark.parametrize(
    "what", [what for what, (blocks, _) in FORGED.items() if BLOCKS[-1] in blocks and blocks[0] == BLOCKS[0]]
)
def test_skipped_blocks_are_verified(what: str) -> None:
    if what in {"holes that do not add up", "a malformed bitmap"}:
        return  # a bitmap is decoded only on request
    reader = ForwardReader(BytesSource(join(FORGED[what][0])), name="a.seg")

    with pytest.raises(CorruptSegmentError, match=FORGED[what][1]):
        list(iter(reader.next_section, None))


OPTIONAL_INDEXES = [
    1,
    2,
    _index_of(SECTION_INDEX),
    _index_of(HOLES),
    _index_of(SECTION_FOOTER),
    _index_of(SECTION_HEADER, 1),
    _index_of(DIRECTORY),
]


@pytest.mark.parametrize("index", OPTIONAL_INDEXES)
def test_an_unknown_optional_block_is_skipped(index: int) -> None:
    data = complete(_with(index, UNKNOWN, UNKNOWN)[:-2])

    read = read_file(data)

    assert [section.data for section in read.sections] == [
        b"".join(section.encoded()) for section in SECTIONS
    ]
    entries = read_directory(data, name="a.seg", size=len(data)).sections
    assert list(entries) == [section.entry for section in read.sections]


def test_the_checksum_of_an_unknown_optional_block_is_verified() -> None:
    data = bytearray(complete(_with(1, UNKNOWN)[:-2]))
    data[68 + 12 + 3] ^= 1

    with pytest.raises(CorruptSegmentError, match="checksum of a type 200 block"):
        read_file(bytes(data))


@pytest.mark.parametrize("kind", [SECTION_INDEX, HOLES])
def test_an_ingestion_file_has_neither_index_nor_holes(kind: int) -> None:
    blocks = split(write_file([Section()], kind=SegmentKind.INGESTION).data)
    payload = struct.pack(">Qqqq", 99, 0, 0, 0) if kind == SECTION_INDEX else bytes(8)
    blocks.insert(3, Block(kind, OPTIONAL if kind == SECTION_INDEX else 0, payload))

    with pytest.raises(CorruptSegmentError, match="out of place"):
        read_file(join(blocks))


def test_an_error_contains_file_section_and_position() -> None:
    data = bytearray(FILE.data)
    entry = FILE.summary.sections[0]
    data[entry.data_position + 20] ^= 4

    with pytest.raises(CorruptSegmentError) as caught:
        read_file(bytes(data))

    error = caught.value
    assert (error.file, error.section, error.position) == ("a.seg", (TOPIC, 0), entry.data_position)
    assert str(error) == (
        f"segment file a.seg: section {TOPIC}/0, byte {entry.data_position}: "
        "the checksum of a DATA block does not match"
    )


def test_a_failed_reader_repeats_its_error() -> None:
    data = bytearray(FILE.data)
    data[FILE.summary.sections[0].data_position + 20] ^= 4
    reader = ForwardReader(BytesSource(bytes(data)), name="a.seg")
    reader.next_section()

    for _ in range(3):
        with pytest.raises(CorruptSegmentError, match="checksum of a DATA block"):
            reader.next_section()


def test_a_block_beyond_the_known_size_is_rejected_before_it_is_read() -> None:
    header = struct.pack(">BBHII", SECTION_HEADER, 0, 0, 24, 0)
    source = BytesSource(FILE.data[:68] + header + bytes(1000))
    reader = ForwardReader(source, name="a.seg", size=100, read_size=100)

    with pytest.raises(CorruptSegmentError, match="SECTION_HEADER block of 36 bytes ends beyond byte 100"):
        reader.next_section()

    assert source.position == 100


def test_a_file_longer_than_its_known_size_is_rejected() -> None:
    with pytest.raises(CorruptSegmentError, match="bytes follow the trailer"):
        read_file(FILE.data + b"x", size=len(FILE.data))


def test_a_file_shorter_than_its_known_size_is_rejected() -> None:
    with pytest.raises(CorruptSegmentError, match=f"ends before its size of {len(FILE.data) + 1} bytes"):
        read_file(FILE.data, size=len(FILE.data) + 1)


@pytest.mark.parametrize("length", [2**20, 2**30])
def test_a_false_length_costs_no_memory(length: int) -> None:
    delivered = 50_000
    header = struct.pack(">BBHII", DATA, 0, 0, length, 0)
    data = FILE.data[: FILE.summary.sections[0].data_position] + header + bytes(delivered)
    reader = ForwardReader(BytesSource(data, 1000), name="a.seg", read_size=4096)
    reader.next_section()

    tracemalloc.start()
    with pytest.raises(CorruptSegmentError, match="the file ends within a block"):
        list(reader.blocks())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert reader.buffer_size <= 2 * delivered
    assert peak < 4 * delivered


def test_a_length_above_the_limit_is_rejected() -> None:
    header = struct.pack(">BBHII", DATA, 0, 0, 2**30 + 1, 0)
    data = FILE.data[: FILE.summary.sections[0].data_position] + header

    with pytest.raises(CorruptSegmentError, match="payload of 1073741825 bytes is above the limit"):
        read_file(data)


def test_the_buffer_grows_for_a_long_block_and_shrinks_again() -> None:
    batches = (Batch(records=1, size=500_000), Batch(records=1, size=20), Batch(records=1, size=20))
    data = write_file([Section(batches=batches)], block_target=100).data
    reader = ForwardReader(BytesSource(data), name="a.seg", read_size=1000)
    reader.next_section()

    sizes = [(len(block.payload), reader.buffer_size) for block in reader.blocks()]

    assert sizes == [(500_061, 500_073), (81, 1000), (81, 1000)]


def test_skipping_a_long_block_does_not_grow_the_buffer() -> None:
    data = write_file([Section(batches=(Batch(records=1, size=500_000),), tail_gap=1)]).data
    reader = ForwardReader(BytesSource(data), name="a.seg", read_size=1000)

    while reader.next_section() is not None:
        pass

    assert reader.buffer_size == 1000
