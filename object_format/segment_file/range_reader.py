"""Reads the DATA blocks of sections forward, from any position in the first to any position in the last.

A block has no marker, and needs none: its checksum covers the file id and the block's own position. Bytes
with a matching checksum are therefore a block of this file at this position. The bytes of a record cannot
imitate a block, not even if they are a copy of a segment file: the producer of a record does not know the id
of the file that will contain it.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from core.errors import InvalidInputError
from object_format.kernels.batches.layout import BATCH_OVERHEAD, LENGTH_OVERHEAD
from object_format.segment_file.block_checker import BlockChecker, type_name
from object_format.segment_file.block_payloads import SectionHeader
from object_format.segment_file.checksum import block_seed, extend, file_seed
from object_format.segment_file.forward_reader import DataBlock
from object_format.segment_file.layout import BLOCK_HEADER, SECTION_START_LENGTH, BlockHeader, BlockType
from object_format.segment_file.stream_buffer import READ_SIZE, ByteSource, StreamBuffer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

MAX_SPLIT_BLOCK_BYTES: Final = 80 << 20
"""Size of the largest block of a section that is read in ranges.

A candidate for a block is buffered until its checksum is known. The limit bounds the memory that a producer
can make a reader use by writing records that look like block headers. It exceeds the largest batch that is
ever decompressed.
"""

_WINDOW: Final = 64 << 10
_DATA_HEADER: Final = bytes((BlockType.DATA, 0, 0, 0))
_BATCH_START: Final = Struct(">qiiB")  # base offset, length, leader epoch, magic
_MAGIC: Final = 2
_MIN_BLOCK: Final = BLOCK_HEADER.size + BATCH_OVERHEAD


class RangeReader:
    """Forward reader of a file's DATA blocks, for a source that starts at byte `position` of the file.

    For each section, in file order::

        reader.enter(section, data_end)
        reader.skip_to_data(data_start)                    # or:
        reader.find_block(end)
        for block in reader.blocks(end): ...
        reader.next_base_offset()

    A block belongs to the range in which it starts. Returned blocks have been verified, skipped bytes have
    not. Memory is `read_size`, or up to twice the received part of a longer block. A reader is not
    thread-safe.
    """

    def __init__(
        self, source: ByteSource, *, name: str, file_id: UUID, position: int, read_size: int = READ_SIZE
    ) -> None:
        self._buffer = StreamBuffer(source, max(read_size, _WINDOW))
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

    def find_block(self, end: int) -> bool:
        """Skip to the section's next block, if it starts before byte `end`; return False otherwise.

        The section must not have a block above `MAX_SPLIT_BLOCK_BYTES`.
        """
        end = min(end, self._data_end)
        while self.position < end:
            window = self._buffer.peek(self._buffer.ensure(min(_WINDOW, self._data_end - self.position)))
            if len(window) < _MIN_BLOCK:
                return False
            found = bytes(window).find(_DATA_HEADER)
            if found < 0:
                self._buffer.advance(len(window) - len(_DATA_HEADER) + 1)
                continue
            self._buffer.advance(found)
            if self.position < end and self._is_block():
                return True
            self._buffer.advance(1)
        return False

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
        header = self._header()
        if header.size > MAX_SPLIT_BLOCK_BYTES:
            raise InvalidInputError(
                f"segment file {self._checker.file}: a block of {header.size} bytes at byte {self.position}"
                " is too large for a section that is read in ranges",
                remedy="read the file as a whole",
            )
        needed = BLOCK_HEADER.size + _BATCH_START.size
        if self._buffer.ensure(needed) < needed:
            raise self._checker.corrupt("the file ends within a block", self.position)
        base, *_ = _BATCH_START.unpack_from(self._buffer.peek(needed), BLOCK_HEADER.size)
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
        found = SectionHeader.unpack(payload, self.position).key
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

    def _is_block(self) -> bool:
        """Return True if the next bytes are a valid block. Its start is checked before the rest is read."""
        if self._buffer.ensure(_MIN_BLOCK) < _MIN_BLOCK:
            return False
        start = self._buffer.peek(_MIN_BLOCK)
        header = BlockHeader._make(BLOCK_HEADER.unpack_from(start))
        base, length, _, magic = _BATCH_START.unpack_from(start, BLOCK_HEADER.size)
        plausible = (
            magic == _MAGIC
            and base >= 0
            and 0 < length <= header.length - LENGTH_OVERHEAD
            and header.size <= min(self._data_end - self.position, MAX_SPLIT_BLOCK_BYTES)
        )
        if not plausible or self._buffer.ensure(header.size) < header.size:
            return False
        return self._matches_checksum(header, self._buffer.peek(header.size)[BLOCK_HEADER.size :])
