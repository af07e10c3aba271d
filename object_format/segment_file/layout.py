"""Constants of the segment file format, shared by writer and readers.

Names are those of the specification, docs/reference/segment-file.md.
"""

from __future__ import annotations

from enum import IntEnum
from struct import Struct
from typing import NamedTuple

MAGIC = b"\x89SILT\r\n\x1a"
END_MAGIC = MAGIC[::-1]
VERSION = 1

BLOCK_TARGET = 256 * 1024
MAX_PAYLOAD = 2**30
MAX_INT64 = 2**63 - 1
NO_TIMESTAMP = -1

OPTIONAL = 0x01
IGNORED_BLOCK_FLAGS = 0xF0
"""Flags of blocks that a reader ignores if it does not know them; it rejects the others."""

UNIQUE_KEYS = 0x01
IGNORED_SECTION_FLAGS = 0xFFFF_0000
"""Flags of sections that a reader ignores if it does not know them; it rejects the others."""


class BlockType(IntEnum):
    """Types of blocks."""

    FILE_HEADER = 1
    SECTION_HEADER = 2
    DATA = 3
    SECTION_INDEX = 4
    HOLES = 5
    SECTION_FOOTER = 6
    DIRECTORY = 7
    TRAILER = 8


class SegmentKind(IntEnum):
    """Kind of writer: an agent (INGESTION) or a compaction task (COMPACTED)."""

    INGESTION = 1
    COMPACTED = 2


BLOCK_HEADER = Struct(">BBHII")
FILE_HEADER = Struct(">HBBIq16s16s")
SECTION_HEADER = Struct(">16siI")
INDEX_HEADER = Struct(">Q")
INDEX_ENTRY = Struct(">qqQ")
SECTION_FOOTER = Struct(">qqqqQqqII")
DIRECTORY_ENTRY = Struct(">16siI8Qqqqqq")
TRAILER = Struct(">16sQIIQ8s")
FILE_START_LENGTH = len(MAGIC) + BLOCK_HEADER.size + FILE_HEADER.size
"""Size of the magic number and the FILE_HEADER block."""

TRAILER_LENGTH = BLOCK_HEADER.size + TRAILER.size
SECTION_START_LENGTH = BLOCK_HEADER.size + SECTION_HEADER.size
"""Size of a SECTION_HEADER block, after which a section's data usually starts."""

FIXED_PAYLOADS = {
    BlockType.FILE_HEADER: FILE_HEADER.size,
    BlockType.SECTION_HEADER: SECTION_HEADER.size,
    BlockType.SECTION_FOOTER: SECTION_FOOTER.size,
    BlockType.TRAILER: TRAILER.size,
}


class BlockHeader(NamedTuple):
    """The 12 bytes before a payload; `kind` is a `BlockType` or a number that this version does not know."""

    kind: int
    flags: int
    reserved: int
    length: int
    checksum: int

    @property
    def size(self) -> int:
        """Size of the whole block in bytes."""
        return BLOCK_HEADER.size + self.length
