"""Validation of blocks that are read: the header first, then the checksum of the payload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from object_format.segment_file.checksum import block_seed, extend
from object_format.segment_file.errors import CorruptSegmentError
from object_format.segment_file.layout import (
    BLOCK_HEADER,
    FIXED_PAYLOADS,
    IGNORED_BLOCK_FLAGS,
    MAX_PAYLOAD,
    OPTIONAL,
    BlockHeader,
    BlockType,
)

if TYPE_CHECKING:
    from uuid import UUID

NEWER_REMEDY = "if a newer version wrote the file, read it with that version"

_KNOWN = {kind.value: kind for kind in BlockType}


def header_fault(header: BlockHeader) -> str | None:
    """Return why this version cannot read a block with this header; None if it can."""
    kind = _KNOWN.get(header.kind)
    name = kind.name if kind is not None else f"type {header.kind}"
    flags = header.flags & ~IGNORED_BLOCK_FLAGS
    if flags & ~OPTIONAL or header.reserved:
        return f"a {name} block has reserved bits set"
    if kind is None:
        return None if flags & OPTIONAL else f"a block of unknown required type {header.kind}"
    if flags != (OPTIONAL if kind is BlockType.SECTION_INDEX else 0):
        return f"a {name} block has the wrong optional bit"
    fixed = FIXED_PAYLOADS.get(kind, header.length)
    if header.length != fixed:
        return f"a {name} payload of {header.length} bytes instead of {fixed}"
    return None


def is_known(kind: int) -> bool:
    """Return True if this version knows the block type."""
    return kind in _KNOWN


def type_name(kind: int) -> str:
    """Return the name of a block type for messages."""
    return _KNOWN[kind].name if kind in _KNOWN else f"type {kind}"


class BlockChecker:
    """Validates blocks of one file. Its errors name the file and the section that is being read."""

    def __init__(self, *, file: str, seed: int, section: tuple[UUID, int] | None = None) -> None:
        self.file = file
        self.seed = seed
        self.section = section

    def corrupt(self, what: str, position: int, *, remedy: str | None = None) -> CorruptSegmentError:
        """Return the error to raise about byte `position`."""
        return CorruptSegmentError(
            what, file=self.file, section=self.section, position=position, remedy=remedy
        )

    def misplaced(self, block: BlockHeader, position: int) -> CorruptSegmentError:
        """Return the error to raise about a block whose type is not allowed at this position."""
        return self.corrupt(f"a {type_name(block.kind)} block is out of place", position)

    def header(self, data: memoryview, position: int, limit: int | None) -> BlockHeader:
        """Return the header at byte `position` from its 12 bytes.

        The block must end at or before `limit`, if that is known. Raises CorruptSegmentError.
        """
        header = BlockHeader._make(BLOCK_HEADER.unpack(data))
        fault = header_fault(header)
        if fault is not None:
            raise self.corrupt(fault, position, remedy=NEWER_REMEDY if "unknown" in fault else None)
        if header.length > MAX_PAYLOAD:
            raise self.corrupt(
                f"a {type_name(header.kind)} payload of {header.length} bytes is above the limit", position
            )
        if limit is not None and position + header.size > limit:
            raise self.corrupt(
                f"a {type_name(header.kind)} block of {header.size} bytes ends beyond byte {limit}", position
            )
        return header

    def verify(self, header: BlockHeader, position: int, payload: memoryview) -> None:
        """Raise CorruptSegmentError unless the payload was written at `position` of this file."""
        self.compare(header, position, extend(block_seed(self.seed, position, header), payload))

    def compare(self, header: BlockHeader, position: int, checksum: int) -> None:
        """Raise CorruptSegmentError unless the header contains this checksum."""
        if checksum != header.checksum:
            raise self.corrupt(f"the checksum of a {type_name(header.kind)} block does not match", position)

    def single_block(self, data: memoryview, position: int, kind: BlockType) -> memoryview:
        """Return the verified payload of `data`, which must be exactly one block of type `kind`."""
        if len(data) < BLOCK_HEADER.size:
            raise self.corrupt(f"{len(data)} bytes are no {kind.name} block", position)
        header = self.header(data[: BLOCK_HEADER.size], position, position + len(data))
        if header.kind != kind:
            raise self.corrupt(f"a {type_name(header.kind)} block instead of {kind.name}", position)
        if header.size != len(data):
            raise self.corrupt(f"a {kind.name} block of {header.size} bytes instead of {len(data)}", position)
        payload = data[BLOCK_HEADER.size :]
        self.verify(header, position, payload)
        return payload
