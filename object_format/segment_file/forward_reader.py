"""Reads a segment file once from its start to its end, without seeking."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from core.errors import InvalidInputError
from object_format.segment_file.block_checker import NEWER_REMEDY, BlockChecker, is_known
from object_format.segment_file.block_payloads import (
    FileHeader,
    SectionEntry,
    SectionFooter,
    SectionHeader,
    Trailer,
    file_id_of,
)
from object_format.segment_file.checksum import block_seed, extend, file_seed
from object_format.segment_file.features import check_header_features
from object_format.segment_file.layout import (
    BLOCK_HEADER,
    DIRECTORY_ENTRY,
    FILE_HEADER,
    INDEX_ENTRY,
    INDEX_HEADER,
    MAGIC,
    VERSION,
    BlockHeader,
    BlockType,
    SegmentKind,
)
from object_format.segment_file.random_access import checked_holes
from object_format.segment_file.stream_buffer import READ_SIZE, ByteSource, StreamBuffer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import TypeVar

    from pyroaring import BitMap64

    T = TypeVar("T")


class DataBlock(NamedTuple):
    """Complete record batches, and the position of their block in the file.

    `payload` is a writable view of the reader's buffer. It is valid until the reader's next step.
    """

    position: int
    payload: memoryview


class _SectionProgress:
    """Blocks of the current section so far, and the rules for their order.

    Each block is reported before its payload is read.
    """

    def __init__(self, header: SectionHeader, kind: SegmentKind, checker: BlockChecker) -> None:
        self.header = header
        self.holes_payload: bytes | None = None
        self.footer: SectionFooter | None = None
        self.entry: SectionEntry | None = None
        self._compacted = kind is SegmentKind.COMPACTED
        self._checker = checker
        self._data_position = 0
        self._data_length = 0
        self._data_blocks = 0
        self._index = (0, 0)
        self._holes = (0, 0)

    @property
    def holes_position(self) -> int:
        """Position of the HOLES block."""
        return self._holes[0]

    def note_data(self, block: BlockHeader, position: int) -> None:
        """Account for a DATA block. DATA blocks are contiguous, and precede the index and the holes."""
        follows = self._data_length == 0 or self._data_position + self._data_length == position
        if not follows or self._index[1] or self._holes[1]:
            raise self._checker.misplaced(block, position)
        if block.length == 0:
            raise self._checker.corrupt("a DATA block without batches", position)
        self._data_position = self._data_position or position
        self._data_length += block.size
        self._data_blocks += 1

    def note_index(self, block: BlockHeader, position: int) -> None:
        """Account for the only SECTION_INDEX block. It follows the DATA blocks and has one entry for each."""
        if not self._compacted or self._index[1] or self._holes[1]:
            raise self._checker.misplaced(block, position)
        if block.length != INDEX_HEADER.size + self._data_blocks * INDEX_ENTRY.size or not self._data_blocks:
            raise self._checker.corrupt(
                f"an index of {block.length} bytes for {self._data_blocks} DATA blocks", position
            )
        self._index = (position, block.size)

    def note_holes(self, block: BlockHeader, position: int) -> None:
        """Account for the only HOLES block. It follows the index."""
        if not self._compacted or self._holes[1]:
            raise self._checker.misplaced(block, position)
        self._holes = (position, block.size)

    def end(self, footer: SectionFooter, position: int, end: int) -> SectionEntry:
        """Compare the footer at `position` with the blocks of the section; return the section's entry."""
        if self._compacted and not self._holes[1]:
            raise self._checker.corrupt("a compacted section without HOLES", position)
        if self._compacted and self._data_blocks and not self._index[1]:
            raise self._checker.corrupt("a compacted section without SECTION_INDEX", position)
        if footer.data_length != self._data_length:
            raise self._checker.corrupt(
                f"the footer counts {footer.data_length} bytes of DATA, there are {self._data_length}",
                position,
            )
        self.footer = footer
        self.entry = SectionEntry.of(
            self.header,
            footer,
            end=end,
            data_position=self._data_position,
            index=self._index,
            holes=self._holes,
        )
        return self.entry


class ForwardReader:
    """Reader of a file's sections in order, from any byte source; see docs/reference/segment-file.md.

    ::

        reader = ForwardReader(stream, name=object_name, size=size)
        while (section := reader.next_section()) is not None:
            for block in reader.blocks():   # optional: unread blocks are skipped
                ...
            reader.footer, reader.holes

    Nothing is read before the first call that needs it. The reader verifies every checksum, including those
    of skipped blocks. At the end it compares the directory and the trailer with the sections. Any violation
    of the specification raises CorruptSegmentError, and every later call raises the same error again.

    Memory is `read_size`, or up to twice the received part of a longer block, plus the serialized holes of
    one section. It does not depend on the number or size of sections. Readers share nothing. A reader is not
    thread-safe.
    """

    def __init__(
        self, source: ByteSource, *, name: str, size: int | None = None, read_size: int = READ_SIZE
    ) -> None:
        self._buffer = StreamBuffer(source, read_size if size is None else min(read_size, size))
        self._size = size
        self._checker = BlockChecker(file=name, seed=0)
        self._header: FileHeader | None = None
        self._progress: _SectionProgress | None = None
        self._section_count = 0
        self._directory_checksum = 0
        self._ended = False
        self._failure: Exception | None = None

    @property
    def position(self) -> int:
        """Position of the next block in the file."""
        return self._buffer.position

    @property
    def buffer_size(self) -> int:
        """Allocated size of the buffer in bytes."""
        return self._buffer.capacity

    @property
    def header(self) -> FileHeader:
        """The file header: identity and writer of the file."""
        return self._header if self._header is not None else self._attempt(self._open_file)

    @property
    def footer(self) -> SectionFooter:
        """Footer of the current section; available after its last block."""
        footer = self._finished_section().footer
        assert footer is not None
        return footer

    @property
    def entry(self) -> SectionEntry:
        """Directory entry of the current section; available after its last block."""
        entry = self._finished_section().entry
        assert entry is not None
        return entry

    @property
    def holes(self) -> BitMap64 | None:
        """Holes of the current section relative to its base offset; available after its last block.

        None in an ingestion file. Each call decodes the bitmap and compares it with the footer.
        """
        section = self._finished_section()
        payload, footer = section.holes_payload, section.footer
        if payload is None or footer is None:
            return None
        return checked_holes(
            payload,
            self._checker,
            section.holes_position,
            span=footer.last_offset - footer.base_offset + 1,
            record_count=footer.record_count,
        )

    def next_section(self) -> SectionHeader | None:
        """Skip the rest of the current section, and return the next one; None at the end of a valid file."""
        return self._attempt(self._next_section)

    def blocks(self) -> Iterator[DataBlock]:
        """Yield the DATA blocks of the current section that have not been read."""
        section = self._progress
        if section is None:
            raise InvalidInputError("the reader is in no section", remedy="call next_section first")
        while section.footer is None:
            block = self._attempt(lambda: self._next_block(section, skip=False))
            if block is None:
                return
            yield block
            if self._progress is not section:
                raise InvalidInputError("the reader has left this section", remedy="call blocks again")

    def _attempt(self, step: Callable[[], T]) -> T:
        """Run a step that reads. A failed step leaves the position undefined, so its error is permanent."""
        if self._failure is not None:
            raise self._failure
        try:
            return step()
        except Exception as failure:
            self._failure = failure
            raise

    def _finished_section(self) -> _SectionProgress:
        section = self._progress
        if section is None or section.entry is None:
            raise InvalidInputError(
                "the section's footer has not been read", remedy="read all its blocks first"
            )
        return section

    def _open_file(self) -> FileHeader:
        buffer = self._buffer
        magic = buffer.peek(buffer.ensure(len(MAGIC)))
        if magic != MAGIC:
            raise self._checker.corrupt("the file does not begin like a segment file", 0)
        buffer.advance(len(MAGIC))
        start = BLOCK_HEADER.size
        if buffer.ensure(start + 2) == start + 2 and buffer.peek(1)[0] == BlockType.FILE_HEADER:
            version = int.from_bytes(buffer.peek(start + 2)[start:], "big")
            if version != VERSION:
                raise self._checker.corrupt(
                    f"format version {version}, not {VERSION}", buffer.position, remedy=NEWER_REMEDY
                )
        block = self._block_header()
        if block.kind != BlockType.FILE_HEADER:
            raise self._checker.misplaced(block, self.position)
        self._require(block.size)
        self._checker.seed = file_seed(file_id_of(buffer.peek(start + FILE_HEADER.size)[start:]))
        header = self._unpacked(block, FileHeader.unpack)
        check_header_features(self._checker.file, header.required_features)
        self._header = header
        return self._header

    def _next_section(self) -> SectionHeader | None:
        if self._header is None:
            self._open_file()
        if self._ended:
            return None
        if self._progress is not None and self._progress.footer is None:
            self._next_block(self._progress, skip=True)
        previous, self._progress, self._checker.section = self._progress, None, None
        while True:
            block = self._block_header()
            if block.kind == BlockType.SECTION_HEADER:
                return self._enter_section(block, previous)
            if block.kind == BlockType.DIRECTORY:
                self._read_directory(block)
                return None
            if is_known(block.kind):
                raise self._checker.misplaced(block, self.position)
            self._skip(block)

    def _enter_section(self, block: BlockHeader, previous: _SectionProgress | None) -> SectionHeader:
        position = self.position
        header = self._unpacked(block, lambda payload: SectionHeader.unpack(payload, position))
        self._checker.section = header.key
        if previous is not None and header.key <= previous.header.key:
            raise self._checker.corrupt("sections are not in ascending order", position)
        self._progress = _SectionProgress(header, self.header.kind, self._checker)
        return header

    def _next_block(self, section: _SectionProgress, *, skip: bool) -> DataBlock | None:
        """Return the next DATA block, or None after the footer; with `skip`, go to the footer directly."""
        while section.footer is None:
            block = self._block_header()
            if block.kind == BlockType.DATA:
                position = self.position
                section.note_data(block, position)
                if not skip:
                    return DataBlock(position, self._payload(block))
                self._skip(block)
            elif block.kind == BlockType.SECTION_FOOTER:
                self._leave_section(section, block)
            elif block.kind == BlockType.SECTION_INDEX:
                section.note_index(block, self.position)
                self._skip(block)
            elif block.kind == BlockType.HOLES:
                section.note_holes(block, self.position)
                if skip:
                    self._skip(block)
                else:
                    section.holes_payload = bytes(self._payload(block))
            elif is_known(block.kind):
                raise self._checker.misplaced(block, self.position)
            else:
                self._skip(block)
        return None

    def _leave_section(self, section: _SectionProgress, block: BlockHeader) -> None:
        position = self.position
        footer = self._unpacked(block, SectionFooter.unpack)
        entry = section.end(footer, position, self.position)
        self._directory_checksum = extend(self._directory_checksum, entry.pack())
        self._section_count += 1

    def _read_directory(self, block: BlockHeader) -> None:
        """Compare the directory (by a running checksum) with the sections, and then the trailer."""
        position = self.position
        if block.length != self._section_count * DIRECTORY_ENTRY.size:
            raise self._checker.corrupt(
                f"a directory of {block.length} bytes after {self._section_count} sections", position
            )
        checksum = 0
        for chunk in self._chunks(block):
            checksum = extend(checksum, chunk)
        if checksum != self._directory_checksum:
            raise self._checker.corrupt("the directory disagrees with the sections", position)
        self._read_trailer(position, block.size)
        if self._buffer.read_available(1):
            raise self._checker.corrupt("bytes follow the trailer", self.position)
        self._ended = True

    def _read_trailer(self, directory_position: int, directory_length: int) -> None:
        position = self.position
        block = self._block_header()
        if block.kind != BlockType.TRAILER:
            raise self._checker.misplaced(block, self.position)
        trailer = self._unpacked(block, Trailer.unpack)
        expected = Trailer(
            file_id=self.header.file_id,
            directory_position=directory_position,
            directory_length=directory_length,
            section_count=self._section_count,
            size=self.position,
        )
        if trailer != expected:
            raise self._checker.corrupt("the trailer disagrees with the file", position)
        if self._size is not None and self._size != self.position:
            raise self._checker.corrupt(f"the file ends before its size of {self._size} bytes", self.position)

    def _block_header(self) -> BlockHeader:
        """Return the next block's header without consuming it."""
        count = self._buffer.ensure(BLOCK_HEADER.size)
        if count < BLOCK_HEADER.size:
            what = "within a block's header" if count else "without a trailer"
            raise self._checker.corrupt(f"the file ends {what}", self.position)
        return self._checker.header(self._buffer.peek(BLOCK_HEADER.size), self.position, self._size)

    def _require(self, length: int) -> None:
        if self._buffer.ensure(length) < length:
            raise self._checker.corrupt(f"the file ends within a block of {length} bytes", self.position)

    def _payload(self, block: BlockHeader) -> memoryview:
        """Return the verified payload of the block, which is valid until the next step."""
        self._require(block.size)
        payload = self._buffer.peek(block.size)[BLOCK_HEADER.size :]
        self._checker.verify(block, self.position, payload)
        self._buffer.advance(block.size)
        return payload

    def _unpacked(self, block: BlockHeader, unpack: Callable[[memoryview], T]) -> T:
        position = self.position
        payload = self._payload(block)
        try:
            return unpack(payload)
        except ValueError as error:
            raise self._checker.corrupt(str(error), position) from error

    def _chunks(self, block: BlockHeader) -> Iterator[memoryview]:
        """Yield the payload in parts as they arrive, without keeping them; verify it after the last part."""
        position = self.position
        checksum = block_seed(self._checker.seed, position, block)
        self._buffer.advance(BLOCK_HEADER.size)
        left = block.length
        while left:
            chunk = self._buffer.read_available(left)
            if not chunk:
                raise self._checker.corrupt(f"the file ends within a block of {block.size} bytes", position)
            checksum = extend(checksum, chunk)
            yield chunk
            self._buffer.advance(len(chunk))
            left -= len(chunk)
        self._checker.compare(block, position, checksum)

    def _skip(self, block: BlockHeader) -> None:
        for _ in self._chunks(block):
            pass
