"""Old files stay readable, unknown optional bits are ignored, and unknown required features are refused."""

from __future__ import annotations

from pathlib import Path
from struct import Struct

import pytest

from core.errors import CorruptDataError
from object_format.record_batch.records import decode_batches
from object_format.segment_file import (
    CorruptSegmentError,
    UnsupportedFormatError,
    check_format,
    features,
    features_for_catalog,
    format_fault,
    parse_data_blocks,
    read_directory,
    stated_version,
)
from object_format.segment_file.features import Feature
from object_format.segment_file.layout import BLOCK_HEADER, MAGIC
from tests.object_format.segment_file.forging import DATA, FILE_HEADER, SECTION_FOOTER, Block, complete, split
from tests.object_format.segment_file.samples import Batch, Section, read_file, write_file

GOLDEN = Path(__file__).parent / "golden"
FLAGS_OF_FOOTER = 56
HEADER = Struct(">HBBI")


@pytest.mark.parametrize("kind", ["ingestion", "compacted"])
def test_a_file_of_version_1_is_read(kind: str) -> None:
    """The first release that wrote it has these bytes; no later change of the code may change the result."""
    read = read_file((GOLDEN / f"version-1-{kind}.seg").read_bytes())
    assert read.header.kind.name.lower() == kind
    assert (read.header.required_features, read.header.optional_features) == (0, 0)
    records = [
        [record for columns in decode_batches(section.data) for record in columns.records()]
        for section in read.sections
    ]
    base = 0 if kind == "ingestion" else 100
    assert [(each.offset, each.key, each.value) for each in records[0]] == [
        (base, b"a", b"clay"),
        (base + 1, b"b", None),
    ]
    assert [each.value for each in records[1]] == [b"sand"]
    assert [section.footer.unique_keys for section in read.sections] == [kind == "compacted"] * 2


def changed(kind: int, change: Block) -> bytes:
    """Return a file in which the first block of a kind is replaced."""
    blocks = split(write_file([Section(batches=(Batch(records=2, size=40),), unique_keys=True)]).data)
    index = next(number for number, block in enumerate(blocks) if block.kind == kind)
    blocks[index] = change
    return complete([block for block in blocks if block.kind not in {7, 8}])


def block_of(kind: int) -> Block:
    blocks = split(write_file([Section(batches=(Batch(records=2, size=40),), unique_keys=True)]).data)
    return next(block for block in blocks if block.kind == kind)


def with_header(*, required: int = 0, optional: int = 0) -> bytes:
    block = block_of(FILE_HEADER)
    version, kind, _, _ = HEADER.unpack_from(block.payload)
    payload = HEADER.pack(version, kind, optional, required) + block.payload[HEADER.size :]
    return changed(FILE_HEADER, block._replace(payload=payload))


def with_section_flags(flags: int) -> bytes:
    block = block_of(SECTION_FOOTER)
    payload = bytearray(block.payload)
    payload[FLAGS_OF_FOOTER : FLAGS_OF_FOOTER + 4] = flags.to_bytes(4, "big")
    return changed(SECTION_FOOTER, block._replace(payload=bytes(payload)))


@pytest.mark.parametrize("bit", range(8))
def test_unknown_optional_features_of_a_file_are_ignored(bit: int) -> None:
    read = read_file(with_header(optional=1 << bit))
    assert read.header.optional_features == 1 << bit
    assert len(read.sections) == 1


@pytest.mark.parametrize("bit", [0, 7, 31])
def test_unknown_required_features_of_a_file_are_refused(bit: int) -> None:
    """The file is not corrupt, so compaction does not quarantine it."""
    with pytest.raises(UnsupportedFormatError, match=f"unknown features of bits {bit} .upgrade") as error:
        read_file(with_header(required=1 << bit))
    assert not isinstance(error.value, CorruptDataError)


@pytest.mark.parametrize("bit", range(4, 8))
def test_unknown_optional_flags_of_blocks_are_ignored(bit: int) -> None:
    """Readers of byte ranges ignore them, too."""
    block = block_of(DATA)
    data = changed(DATA, block._replace(flags=1 << bit))
    (section,) = read_file(data).sections
    assert section.data == block.payload
    entry = section.entry
    found = parse_data_blocks(
        data[entry.data_position :][: entry.data_length],
        name="a.seg",
        file_id=read_file(data).header.file_id,
        position=entry.data_position,
    )
    assert b"".join(map(bytes, found)) == block.payload


@pytest.mark.parametrize("bit", range(1, 4))
def test_unknown_required_flags_of_blocks_are_refused(bit: int) -> None:
    with pytest.raises(CorruptSegmentError, match="reserved bits"):
        read_file(changed(DATA, block_of(DATA)._replace(flags=1 << bit)))


@pytest.mark.parametrize("bit", range(16, 32))
def test_unknown_optional_flags_of_sections_are_ignored(bit: int) -> None:
    """The directory has them, too."""
    data = with_section_flags(1 << bit | 1)
    (section,) = read_file(data).sections
    assert section.footer.unique_keys
    directory = read_directory(data, name="a.seg", size=len(data), file_id=read_file(data).header.file_id)
    assert directory.sections == (section.entry,)
    assert section.entry.unique_keys
    assert not read_file(with_section_flags(1 << bit)).sections[0].footer.unique_keys


@pytest.mark.parametrize("bit", [1, 8, 15])
def test_unknown_required_flags_of_sections_are_refused(bit: int) -> None:
    with pytest.raises(CorruptSegmentError, match="reserved in version 1"):
        read_file(with_section_flags(1 << bit))


def test_the_catalogs_values_name_the_feature_and_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    assert format_fault(1, "") is None
    assert format_fault(2, "") == "has format version 2, and this Siltstone reads version 1"
    assert format_fault(0, "") == "has format version 0, and this Siltstone reads version 1"
    needed = "encrypted-blocks@0.4,dictionaries@0.5"
    with pytest.raises(
        UnsupportedFormatError,
        match=r"a\.seg requires the feature encrypted-blocks of Siltstone 0\.4 and the feature dict",
    ):
        check_format("a.seg", 1, needed)
    monkeypatch.setattr(features, "FEATURES", (Feature(3, "encrypted-blocks", "0.4"),))
    assert format_fault(1, needed) == "requires the feature dictionaries of Siltstone 0.5"
    assert format_fault(1, "encrypted-blocks@0.4") is None
    assert len(read_file(with_header(required=1 << 3)).sections) == 1
    assert (features_for_catalog(1 << 3), features_for_catalog(0)) == ("encrypted-blocks@0.4", "")
    with pytest.raises(UnsupportedFormatError, match="bits 2, 4"):
        read_file(with_header(required=0b11100))


def test_the_version_is_stated_up_to_its_last_byte() -> None:
    """A later version may have a shorter header, and it is not known where its checksum is."""
    head = with_header()[: len(MAGIC) + BLOCK_HEADER.size + 2]
    later = head[:-2] + (0x0203).to_bytes(2, "big")
    assert (stated_version(head), stated_version(later)) == (1, 0x0203)
    assert stated_version(memoryview(later + bytes(50))) == 0x0203


def test_other_bytes_state_no_version() -> None:
    head = with_header()[: len(MAGIC) + BLOCK_HEADER.size + 2]
    data_block = head[: len(MAGIC)] + bytes([DATA]) + head[len(MAGIC) + 1 :]
    other_magic = b"\x88" + head[1:]
    for other in (b"", MAGIC, head[:-1], data_block, other_magic):
        assert stated_version(other) is None
