"""Writes a segment file from start to end into a sink."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from core.errors import FatalError, InvalidInputError
from object_format.holes import SectionHoles, no_holes
from object_format.segment_file.block_payloads import (
    FileHeader,
    SectionEntry,
    SectionFooter,
    SectionHeader,
    Trailer,
)
from object_format.segment_file.block_splitter import (
    BATCHES,
    BOUNDARY_BASE,
    BOUNDARY_END,
    BOUNDARY_TIMESTAMP,
    FIRST_OFFSET,
    LAST_OFFSET,
    PENDING_BASE,
    PENDING_BYTES,
    PENDING_TIMESTAMP,
    RECORDS,
    BlockSplitter,
)
from object_format.segment_file.checksum import block_seed, extend, file_seed
from object_format.segment_file.layout import (
    BLOCK_HEADER,
    BLOCK_TARGET,
    DIRECTORY_ENTRY,
    INDEX_ENTRY,
    INDEX_HEADER,
    MAGIC,
    MAX_INT64,
    MAX_PAYLOAD,
    NO_TIMESTAMP,
    OPTIONAL,
    TRAILER_LENGTH,
    BlockHeader,
    BlockType,
    SegmentKind,
)
from object_format.segment_file.verified_batches import check_columns, split_verified

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from typing_extensions import Buffer

    from object_format.segment_file.verified_batches import VerifiedBatches

    Piece = bytes | memoryview
    Sink = Callable[[Piece], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSummary:
    """A finished file: its sections, and the location of its directory for readers that open it."""

    file_id: UUID
    size: int
    directory_position: int
    directory_length: int
    sections: tuple[SectionEntry, ...]


class _BlockSink:
    """Writes blocks and counts their bytes; after any failure, it refuses to write more."""

    def __init__(self, sink: Sink, seed: int) -> None:
        self._sink = sink
        self.seed = seed
        self._failed = False
        self.position = 0

    def check(self) -> None:
        """Raise FatalError if an earlier write failed."""
        if self._failed:
            raise FatalError("writing this segment file failed earlier", remedy="write a new file")

    def put(self, data: Piece) -> None:
        """Write bytes outside of blocks."""
        self.check()
        self._failed = True
        self._sink(data)
        self._failed = False
        self.position += len(data)

    def put_block(self, kind: BlockType, payload: Sequence[Piece], flags: int = 0) -> tuple[int, int]:
        """Write a block whose payload is the concatenation of `payload`; return its position and length."""
        length = sum(map(len, payload))
        if length > MAX_PAYLOAD:
            self._failed = True
            raise InvalidInputError(
                f"a {kind.name} payload of {length} bytes is above the limit of {MAX_PAYLOAD}"
            )
        position = self.position
        checksum = block_seed(self.seed, position, BlockHeader(kind, flags, 0, length, 0))
        for piece in payload:
            checksum = extend(checksum, piece)
        self._put_checked(kind, flags, payload, length, checksum)
        return position, self.position - position

    def put_data(self, payload: Sequence[Piece], length: int, checksum: int) -> None:
        """Write a DATA block with a known length and checksum."""
        self._put_checked(BlockType.DATA, 0, payload, length, checksum)

    def _put_checked(
        self, kind: BlockType, flags: int, payload: Sequence[Piece], length: int, checksum: int
    ) -> None:
        self.put(BLOCK_HEADER.pack(kind, flags, 0, length, checksum))
        self._failed = True
        for piece in payload:
            self._sink(piece)
        self._failed = False
        self.position += length


class _OpenSection:
    """State of the open section; `data_position` is the position of its first DATA block."""

    def __init__(self, header: SectionHeader, data_position: int, block_target: int) -> None:
        self.header = header
        self.data_position = data_position
        self.splitter = BlockSplitter(block_target)
        self.pending: list[bytes | memoryview] = []
        self.index = bytearray()

    def check_end(
        self,
        kind: SegmentKind,
        base_offset: int,
        last_offset: int,
        record_count: int,
        holes: SectionHoles | None,
    ) -> SectionHoles | None:
        """Return the holes to write. Raises InvalidInputError if the fields do not agree with the batches."""
        if not 0 <= base_offset <= last_offset <= MAX_INT64:
            raise InvalidInputError(f"a section cannot cover offsets {base_offset} to {last_offset}")
        counted = self.splitter.get(RECORDS)
        if counted != record_count:
            raise InvalidInputError(f"{record_count} records, but the batch headers count {counted}")
        first, last = self.splitter.get(FIRST_OFFSET), self.splitter.get(LAST_OFFSET)
        if self.splitter.get(BATCHES) and not base_offset <= first <= last <= last_offset:
            raise InvalidInputError(
                f"batches have offsets {first} to {last}, not in {base_offset} to {last_offset}"
            )
        span = last_offset - base_offset + 1
        if record_count > span:
            raise InvalidInputError(f"{record_count} records do not fit {span} offsets")
        if kind is SegmentKind.COMPACTED:
            return _checked_holes(no_holes(span) if holes is None else holes, span, record_count)
        if base_offset != 0 or holes is not None:
            raise InvalidInputError("a section of an ingestion file must start at offset 0 and have no holes")
        return None


def _checked_holes(holes: SectionHoles, span: int, record_count: int) -> SectionHoles:
    if holes.span != span:
        raise InvalidInputError(f"holes for {holes.span} offsets do not match a section of {span} offsets")
    if holes.count != span - record_count:
        raise InvalidInputError(f"{record_count} records and {holes.count} holes do not make {span} offsets")
    return holes


class SegmentFileWriter:
    """Writer of one segment file; docs/reference/segment-file.md lists the duties of a writer.

    Sections must be sorted by (topic id, partition). The sink receives, in file order, views of the caller's
    buffers with the batches, and small immutable `bytes` objects. The caller decides with its sink whether a
    view may be used after the sink's call: an upload consumes the bytes during the call, whereas an agent
    collects the views and leaves its buffers unchanged until the PUT is done.

    Between calls, the writer holds less than one `block_target` of batches. Bytes of buffers that are not
    `stable` are copied, see `append`.

    A rejected call (InvalidInputError) changes nothing. If the sink raises, or an index or bitmap exceeds the
    size of a block, the file is lost: every later call raises FatalError. A writer is not thread-safe.
    """

    def __init__(
        self,
        *,
        kind: SegmentKind,
        file_id: UUID,
        writer_id: UUID,
        created_ms: int,
        sink: Sink,
        block_target: int = BLOCK_TARGET,
    ) -> None:
        if not 1 <= block_target <= MAX_PAYLOAD:
            raise InvalidInputError(f"a block target of {block_target} bytes is not in 1..{MAX_PAYLOAD}")
        self._kind = kind
        self._file_id = file_id
        self._blocks = _BlockSink(sink, file_seed(file_id))
        self._block_target = block_target
        self._section: _OpenSection | None = None
        self._entries: list[SectionEntry] = []
        self._data_bytes = 0
        self._finished = False
        header = FileHeader(kind=kind, file_id=file_id, writer_id=writer_id, created_ms=created_ms)
        self._blocks.put(MAGIC)
        self._blocks.put_block(BlockType.FILE_HEADER, [header.pack()])

    @property
    def file_id(self) -> UUID:
        """Identifier of the file."""
        return self._file_id

    @property
    def position(self) -> int:
        """Number of bytes written to the sink."""
        return self._blocks.position

    @property
    def data_bytes(self) -> int:
        """Total size of the data of finished sections, which callers use to limit the size of files."""
        return self._data_bytes

    def begin_section(self, topic_id: UUID, partition: int) -> None:
        """Start the section of a partition, which must sort after the previous one."""
        self._check_open()
        if self._section is not None:
            raise InvalidInputError("a section is still open", remedy="end it first")
        if not 0 <= partition < 2**31:
            raise InvalidInputError(f"partition {partition} is not in 0..2^31-1")
        if self._entries and (topic_id, partition) <= self._entries[-1].key:
            last_topic, last_partition = self._entries[-1].key
            raise InvalidInputError(
                f"section {topic_id}/{partition} does not sort after {last_topic}/{last_partition}",
                remedy="write each section once, in ascending order of topic id and partition",
            )
        header = SectionHeader(topic_id=topic_id, partition=partition, position=self.position)
        self._blocks.put_block(BlockType.SECTION_HEADER, [header.pack()])
        self._section = _OpenSection(header, self.position, self._block_target)

    def append(self, batches: Buffer, *, stable: bool = False) -> None:
        """Add complete v2 batches, in offset order, to the open section.

        With `stable`, nothing is copied: the caller leaves the buffer unchanged until all of it has been
        written, at the latest when `end_section` returns. Otherwise, the caller may reuse the buffer after
        this call, as far as the sink allows: a remainder of at least half a block target is written as a
        shorter block, and a smaller one is copied.
        """
        section = self._open_section()
        data = memoryview(batches)
        if data.format != "B" or data.ndim != 1:
            data = data.cast("B")
        start = 0
        for boundary in section.splitter.split(data):
            end = boundary[BOUNDARY_END]
            if end > start:
                section.pending.append(data[start:end])
            self._put_data(section, boundary[BOUNDARY_BASE], boundary[BOUNDARY_TIMESTAMP])
            start = end
        if start == len(data):
            return
        section.pending.append(data[start:])
        pending = section.splitter.get(PENDING_BYTES)
        if pending >= (self._block_target if stable else self._block_target // 2):
            self._put_pending(section)
        elif not stable:
            section.pending[-1] = bytes(data[start:])

    def append_verified(self, batches: VerifiedBatches) -> None:
        """Add batches with known headers, and end their last block.

        No block may be open from `append`. The caller leaves the buffers unchanged, as with `stable`.
        """
        section = self._open_section()
        if section.splitter.get(PENDING_BYTES):
            raise InvalidInputError("a block with appended batches is still open")
        check_columns(batches)
        section.splitter.check_order(batches.base_offsets[0], batches.last_offset)
        blocks = split_verified(
            batches, target=self._block_target, seed=self._blocks.seed, position=self.position
        )
        start = 0
        for block in blocks:
            end = block.end
            self._note_block(section, batches.base_offsets[start], max(batches.max_timestamps[start:end]))
            self._blocks.put_data(batches.views[start:end], block.length, block.checksum)
            start = end
        section.splitter.count(batches.base_offsets, batches.last_offset, batches.record_count)

    def end_section(
        self,
        *,
        base_offset: int,
        last_offset: int,
        record_count: int,
        min_timestamp: int,
        max_timestamp: int,
        unique_keys: bool = False,
        holes: SectionHoles | None = None,
    ) -> SectionEntry:
        """End the section, which covers the offsets [base_offset, last_offset].

        Offsets are those of the appended batches: relative in an ingestion file, absolute in a compacted one.
        A compacted section may cover more offsets than its batches, even without any batch. `holes` are the
        offsets without a record; None means that every offset has one. All fields must agree with the batches
        and with each other.
        """
        section = self._open_section()
        holes = section.check_end(self._kind, base_offset, last_offset, record_count, holes)
        if not -MAX_INT64 <= min_timestamp <= max_timestamp <= MAX_INT64:
            raise InvalidInputError(f"timestamps cannot range from {min_timestamp} to {max_timestamp}")
        if section.splitter.get(PENDING_BYTES):
            self._put_pending(section)
        data_length = self.position - section.data_position
        index = self._put_index(section, data_length) if self._kind is SegmentKind.COMPACTED else (0, 0)
        bitmap = (0, 0)
        if holes is not None:
            bitmap = self._blocks.put_block(BlockType.HOLES, holes.parts)
        footer = SectionFooter(
            base_offset=base_offset,
            last_offset=last_offset,
            record_count=record_count,
            batch_count=section.splitter.get(BATCHES),
            data_length=data_length,
            min_timestamp=min_timestamp if record_count else NO_TIMESTAMP,
            max_timestamp=max_timestamp if record_count else NO_TIMESTAMP,
            unique_keys=unique_keys,
        )
        self._blocks.put_block(BlockType.SECTION_FOOTER, [footer.pack()])
        self._section = None
        entry = SectionEntry.of(
            section.header,
            footer,
            end=self.position,
            data_position=section.data_position,
            index=index,
            holes=bitmap,
        )
        self._add_entries([entry])
        return entry

    def append_sections(self, data: memoryview, entries: Sequence[SectionEntry]) -> None:
        """Write complete sections, whose blocks were written for this file and this position.

        `entries` locate them, without bytes between them.
        """
        self._check_open()
        if self._section is not None:
            raise InvalidInputError("a section is still open", remedy="end it first")
        keys = [entry.key for entry in (*self._entries[-1:], *entries)]
        if any(before >= after for before, after in pairwise(keys)):
            raise InvalidInputError("the sections do not sort after the previous ones")
        position = self.position
        for entry in entries:
            if entry.position != position:
                raise InvalidInputError(f"a section at byte {entry.position} instead of {position}")
            position += entry.length
        if position != self.position + len(data):
            raise InvalidInputError(f"{len(data)} bytes do not end at byte {position}")
        self._blocks.put(data)
        self._add_entries(entries)

    def _add_entries(self, entries: Sequence[SectionEntry]) -> None:
        self._entries += entries
        self._data_bytes += sum(entry.data_length for entry in entries)

    def finish(self) -> FileSummary:
        """Write the directory and the trailer, which complete the file."""
        self._check_open()
        if self._section is not None:
            raise InvalidInputError("a section is still open", remedy="end it first")
        if len(self._entries) * DIRECTORY_ENTRY.size > MAX_PAYLOAD:
            raise InvalidInputError(f"{len(self._entries)} sections do not fit one directory")
        payload = b"".join([entry.pack() for entry in self._entries])
        position, length = self._blocks.put_block(BlockType.DIRECTORY, [payload])
        trailer = Trailer(
            file_id=self._file_id,
            directory_position=position,
            directory_length=length,
            section_count=len(self._entries),
            size=position + length + TRAILER_LENGTH,
        )
        self._blocks.put_block(BlockType.TRAILER, [trailer.pack()])
        self._finished = True
        return FileSummary(
            file_id=self._file_id,
            size=self.position,
            directory_position=position,
            directory_length=length,
            sections=tuple(self._entries),
        )

    def _check_open(self) -> None:
        self._blocks.check()
        if self._finished:
            raise InvalidInputError("the file is finished", remedy="use a new writer for another file")

    def _open_section(self) -> _OpenSection:
        self._check_open()
        if self._section is None:
            raise InvalidInputError("no section is open", remedy="begin one first")
        return self._section

    def _put_index(self, section: _OpenSection, data_length: int) -> tuple[int, int]:
        if data_length == 0:
            return 0, 0
        header = INDEX_HEADER.pack(data_length)
        return self._blocks.put_block(BlockType.SECTION_INDEX, [header, bytes(section.index)], OPTIONAL)

    def _put_pending(self, section: _OpenSection) -> None:
        splitter = section.splitter
        self._put_data(section, splitter.get(PENDING_BASE), splitter.get(PENDING_TIMESTAMP))
        splitter.block_written()

    def _put_data(self, section: _OpenSection, base_offset: int, max_timestamp: int) -> None:
        self._note_block(section, base_offset, max_timestamp)
        pieces, section.pending = section.pending, []
        self._blocks.put_block(BlockType.DATA, pieces)

    def _note_block(self, section: _OpenSection, base_offset: int, max_timestamp: int) -> None:
        relative = self.position - section.data_position
        section.index += INDEX_ENTRY.pack(base_offset, max_timestamp, relative)
