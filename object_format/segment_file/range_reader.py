"""Reads the DATA blocks of sections forward, from any block of the first to any position in the last.

A block has no marker, and its bytes cannot be told from those of a record. The caller therefore names the
position of a range's first block. It takes the position from the catalog, or from the section's index
(`SectionIndex.block_from`), and never searches for it in the data, which producers control.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from core.errors import InvalidInputError
from object_format.segment_file.block_checker import BlockChecker, type_name
from object_format.segment_file.block_payloads import SectionHeader
from object_format.segment_file.checksum import block_seed, extend, file_seed
from object_format.segment_file.forward_reader import DataBlock
from object_format.segment_file.layout import BLOCK_HEADER, SECTION_START_LENGTH, BlockHeader, BlockType
from object_format.segment_file.stream_buffer import READ_SIZE, ByteSource, StreamBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

_BATCH_BASE: Final = Struct(">q")


class RangeReader:
    """Forward reader of a file's DATA blocks, for a source that starts at byte `position` of the file.

    For each section, in file order::

        reader.enter(section, data_end)
        reader.skip_to_data(data_start)                    # or:
        reader.skip_to_block(position, base_offset)
        for block in reader.blocks(end): ...
        reader.next_base_offset()

    A block belongs to the range in which it starts. Returned blocks have been verified, skipped bytes have
    not. Memory is `read_size`, or up to twice the received part of a longer block. A reader is not
    thread-safe.
    """

    def __init__(
        self, source: ByteSource, *, name: str, file_id: UUID, position: int, read_size: int = READ_SIZE
    ) -> None:
        self._buffer = StreamBuffer(source, read_size)
        self._buffer.position = position
        self._checker = BlockChecker(file=name, seed=file_seed(file_id))
        self._data_end = position

    @property
    def position(self) -> int:
        """Position of the next byte in the file."""
        return self._buffer.position

    @property
    def buffer_size(self) -> int:
        """Allocated size of the buffer in bytes."""
        return self._buffer.capacity

    def enter(self, section: tuple[UUID, int], data_end: int) -> None:
        """Start a section, whose DATA blocks end at byte `data_end` of the file."""
        self._checker.section = section
        self._data_end = data_end

    def skip_to_data(self, position: int) -> None:
        """Skip to byte `position`, where data of the section starts.

        If the section's header is directly before this position and is read, it must be that of the entered
        section. Raises CorruptSegmentError.
        """
        start = position - SECTION_START_LENGTH
        if self.position <= start:
            self.skip_to(start)
            self._check_section_header()
        self.skip_to(position)

    def skip_to(self, position: int) -> None:
        """Skip to byte `position` without verifying anything. Raises CorruptSegmentError if the file ends."""
        if position < self.position:
            raise InvalidInputError(f"the reader is at byte {self.position}, after byte {position}")
        while self.position < position:
            passed = len(self._buffer.read_available(position - self.position))
            if not passed:
                raise self._checker.corrupt("the file ends before the section's data", self.position)
            self._buffer.advance(passed)

    def peek_to(self, position: int) -> memoryview:
        """Return the unverified bytes up to byte `position`, or fewer at the end of the file.

        They stay in the buffer, and are valid until the next call.
        """
        return self._buffer.peek(self._buffer.ensure(position - self.position))

    def skip_to_block(self, position: int, base_offset: int) -> None:
        """Skip to the block at byte `position`, whose stored base offset is `base_offset`.

        Raises CorruptSegmentError if another block is there.
        """
        self.skip_to(position)
        found = self.next_base_offset()
        if found != base_offset:
            raise self._checker.corrupt(
                f"the index has a block of base offset {base_offset}, but it is {found}", position
            )

    def blocks(self, end: int) -> Iterator[DataBlock]:
        """Yield the section's blocks that start before byte `end`; a payload is valid until the next step.

        Raises CorruptSegmentError for anything but DATA blocks of this file.
        """
        end = min(end, self._data_end)
        while self.position < end:
            header = self._header()
            if self._buffer.ensure(header.size) < header.size:
                raise self._checker.corrupt(
                    f"the file ends within a block of {header.size} bytes", self.position
                )
            position = self.position
            payload = self._buffer.peek(header.size)[BLOCK_HEADER.size :]
            self._checker.verify(header, position, payload)
            self._buffer.advance(header.size)
            yield DataBlock(position, payload)
        self._buffer.shrink()

    def next_base_offset(self) -> int | None:
        """Return the stored base offset of the next block, or None after the section's last block."""
        if self.position >= self._data_end:
            return None
        self._header()
        needed = BLOCK_HEADER.size + _BATCH_BASE.size
        if self._buffer.ensure(needed) < needed:
            raise self._checker.corrupt("the file ends within a block", self.position)
        (base,) = _BATCH_BASE.unpack_from(self._buffer.peek(needed), BLOCK_HEADER.size)
        return int(base)

    def _check_section_header(self) -> None:
        """Compare the section's header with the section, if the next bytes are a section header."""
        if self._buffer.ensure(SECTION_START_LENGTH) < SECTION_START_LENGTH:
            return  # the file ends here; the next read reports it
        start = self._buffer.peek(SECTION_START_LENGTH)
        header = BlockHeader._make(BLOCK_HEADER.unpack_from(start))
        payload = start[BLOCK_HEADER.size :]
        if header.kind != BlockType.SECTION_HEADER or not self._matches_checksum(header, payload):
            return  # the end of a DATA block, or of a block type that this version does not know
        try:
            found = SectionHeader.unpack(payload, self.position).key
        except ValueError as error:
            raise self._checker.corrupt(str(error), self.position) from error
        if found != self._checker.section:
            raise self._checker.corrupt(f"section {found[0]}/{found[1]} begins here", self.position)

    def _matches_checksum(self, header: BlockHeader, payload: memoryview) -> bool:
        """Return True if the next bytes are a block of this file at this position."""
        return extend(block_seed(self._checker.seed, self.position, header), payload) == header.checksum

    def _header(self) -> BlockHeader:
        """Return the next block's header without consuming it."""
        if self._buffer.ensure(BLOCK_HEADER.size) < BLOCK_HEADER.size:
            raise self._checker.corrupt("the file ends within a block's header", self.position)
        header = self._checker.header(self._buffer.peek(BLOCK_HEADER.size), self.position, self._data_end)
        if header.kind != BlockType.DATA:
            raise self._checker.corrupt(f"a {type_name(header.kind)} block instead of DATA", self.position)
        return header
