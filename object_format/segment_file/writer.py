"""Writing a segment file, front to back, into a sink."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from bedrock.errors import FatalError, InvalidInputError
from object_format.holes import serialise_holes
from object_format.segment_file.checksum import block_seed, extend, file_seed
from object_format.segment_file.cutting import (
    BATCHES,
    CUT_BASE,
    CUT_END,
    CUT_SIZE,
    CUT_TIMESTAMP,
    FIRST_OFFSET,
    LAST_OFFSET,
    PENDING_BASE,
    PENDING_BYTES,
    PENDING_TIMESTAMP,
    RECORDS,
    BlockCutter,
)
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
    FileHeader,
    SectionEntry,
    SectionFooter,
    SectionHeader,
    SegmentKind,
    Trailer,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from uuid import UUID

    from typing_extensions import Buffer

    Piece = bytes | memoryview
    Sink = Callable[[bytes | memoryview], object]


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSummary:
    """A finished file: what the catalog needs to open it from its end, and its sections in file order."""

    file_id: UUID
    size: int
    directory_position: int
    directory_length: int
    sections: tuple[SectionEntry, ...]


class _OpenSection:
    """What is known of the section being written."""

    def __init__(self, header: SectionHeader, data_position: int, block_target: int) -> None:
        self.header = header
        self.data_position = data_position
        self.cutter = BlockCutter(block_target)
        self.pending: list[Piece] = []
        self.index = bytearray()


class SegmentFileWriter:
    """Sections in, buffers out; see docs/segment-file.md for the bytes and a writer's duties.

    Sections come sorted by (topic id, partition). Batch bytes are handed to the sink as views of the caller's
    buffers, in file order, between small `bytes` objects of the writer's own, which nobody changes any more.
    Whether a view may outlive the call of the sink is between the caller and its sink: an upload takes the
    bytes during the call, an agent collects the views and leaves its buffers alone until the PUT is done.

    What the writer itself holds between calls is less than one `block_target` of batches, and, of buffers
    that are not `stable`, only copies: see `append`.

    A refused call (InvalidInputError) changes nothing. When the sink raises, or an index or bitmap turns out
    larger than a block may be, the file is lost: every later call raises FatalError. Not safe for several
    threads at once.
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
        self._seed = file_seed(file_id)
        self._sink = sink
        self._block_target = block_target
        self._position = 0
        self._section: _OpenSection | None = None
        self._entries: list[SectionEntry] = []
        self._state = "open"
        header = FileHeader(kind=kind, file_id=file_id, writer_id=writer_id, created_ms=created_ms)
        self._put(MAGIC)
        self._put_block(BlockType.FILE_HEADER, [header.pack()])

    @property
    def position(self) -> int:
        """Bytes of the file that went to the sink so far."""
        return self._position

    def begin_section(self, topic_id: UUID, partition: int) -> None:
        """Start the section of one partition; it must sort after the one before."""
        self._check_open()
        if self._section is not None:
            raise InvalidInputError("a section is still open", remedy="end it first")
        if not 0 <= partition < 2**31:
            raise InvalidInputError(f"partition {partition} is not in 0..2^31-1")
        if self._entries and (topic_id, partition) <= self._entries[-1].key:
            last_topic, last_partition = self._entries[-1].key
            raise InvalidInputError(
                f"section {topic_id}/{partition} does not sort after {last_topic}/{last_partition}",
                remedy="write sections in ascending order of topic id and partition, each once",
            )
        header = SectionHeader(topic_id=topic_id, partition=partition, position=self._position)
        self._put_block(BlockType.SECTION_HEADER, [header.pack()])
        self._section = _OpenSection(header, self._position, self._block_target)

    def append(self, batches: Buffer, *, stable: bool = False) -> None:
        """Add whole v2 batches, in offset order, to the open section.

        With `stable` the caller leaves the buffer unchanged until all of it reached the sink, at the latest
        when `end_section` returns, and nothing is copied. Otherwise the buffer is the caller's again on
        return, as far as its sink is done with it: a rest of at least half a block target was emitted as a
        shorter block, and a smaller rest was copied.
        """
        section = self._open_section()
        data = memoryview(batches)
        if data.format != "B" or data.ndim != 1:
            data = data.cast("B")
        start = 0
        for cut in section.cutter.take(data):
            end = cut[CUT_END]
            if end > start:
                section.pending.append(data[start:end])
            self._put_data(section, cut[CUT_SIZE], cut[CUT_BASE], cut[CUT_TIMESTAMP])
            start = end
        if start == len(data):
            return
        section.pending.append(data[start:])
        pending = section.cutter.get(PENDING_BYTES)
        if pending >= (self._block_target if stable else self._block_target // 2):
            self._put_pending(section)
        elif not stable:
            section.pending[-1] = bytes(data[start:])

    def end_section(
        self,
        *,
        base_offset: int,
        last_offset: int,
        record_count: int,
        min_timestamp: int,
        max_timestamp: int,
        unique_keys: bool = False,
        holes: BitMap64 | None = None,
    ) -> SectionEntry:
        """Close the section, which covers the offsets [base_offset, last_offset].

        Offsets are those of the appended batches: relative in an ingestion file, absolute in a compacted one.
        A compacted section may cover more than its batches, also without any batch; `holes`, relative to
        `base_offset`, then says which offsets have no record (None: each has one) and is run-encoded in
        place. The numbers must agree with the batches and with each other.
        """
        section = self._open_section()
        holes = self._check_end(section, base_offset, last_offset, record_count, holes)
        if min_timestamp > max_timestamp:
            raise InvalidInputError(f"timestamps run from {min_timestamp} to {max_timestamp}")
        if section.cutter.get(PENDING_BYTES):
            self._put_pending(section)
        data_length = self._position - section.data_position
        index = self._put_index(section, data_length) if self._kind is SegmentKind.COMPACTED else (0, 0)
        bitmap = (0, 0) if holes is None else self._put_located(BlockType.HOLES, [serialise_holes(holes)])
        footer = SectionFooter(
            base_offset=base_offset,
            last_offset=last_offset,
            record_count=record_count,
            batch_count=section.cutter.get(BATCHES),
            data_length=data_length,
            min_timestamp=min_timestamp if record_count else NO_TIMESTAMP,
            max_timestamp=max_timestamp if record_count else NO_TIMESTAMP,
            unique_keys=unique_keys,
        )
        self._put_block(BlockType.SECTION_FOOTER, [footer.pack()])
        self._section = None
        entry = SectionEntry.of(
            section.header,
            footer,
            end=self._position,
            data_position=section.data_position,
            index=index,
            holes=bitmap,
        )
        self._entries.append(entry)
        return entry

    def finish(self) -> FileSummary:
        """Write the directory and the trailer; the file is complete when this returns."""
        self._check_open()
        if self._section is not None:
            raise InvalidInputError("a section is still open", remedy="end it first")
        if len(self._entries) * DIRECTORY_ENTRY.size > MAX_PAYLOAD:
            raise InvalidInputError(f"{len(self._entries)} sections do not fit one directory")
        payload = b"".join([entry.pack() for entry in self._entries])
        position, length = self._put_located(BlockType.DIRECTORY, [payload])
        trailer = Trailer(
            file_id=self._file_id,
            directory_position=position,
            directory_length=length,
            section_count=len(self._entries),
            size=position + length + TRAILER_LENGTH,
        )
        self._put_block(BlockType.TRAILER, [trailer.pack()])
        self._state = "finished"
        return FileSummary(
            file_id=self._file_id,
            size=self._position,
            directory_position=position,
            directory_length=length,
            sections=tuple(self._entries),
        )

    def _check_open(self) -> None:
        if self._state == "failed":
            raise FatalError("writing this file failed earlier", remedy="write the file anew")
        if self._state == "finished":
            raise InvalidInputError("the file is finished", remedy="take a new writer for another file")

    def _open_section(self) -> _OpenSection:
        self._check_open()
        if self._section is None:
            raise InvalidInputError("no section is open", remedy="begin one first")
        return self._section

    def _check_end(
        self,
        section: _OpenSection,
        base_offset: int,
        last_offset: int,
        record_count: int,
        holes: BitMap64 | None,
    ) -> BitMap64 | None:
        """Whether the caller's numbers agree with the batches; returns the holes to write."""
        if not 0 <= base_offset <= last_offset <= MAX_INT64:
            raise InvalidInputError(f"a section cannot run from offset {base_offset} to {last_offset}")
        cutter = section.cutter
        if cutter.get(RECORDS) != record_count:
            raise InvalidInputError(
                f"{record_count} records, but the batch headers count {cutter.get(RECORDS)}"
            )
        first, last = cutter.get(FIRST_OFFSET), cutter.get(LAST_OFFSET)
        if cutter.get(BATCHES) and not base_offset <= first <= last <= last_offset:
            raise InvalidInputError(
                f"batches hold offsets {first} to {last}, the section only {base_offset} to {last_offset}"
            )
        span = last_offset - base_offset + 1
        if record_count > span:
            raise InvalidInputError(f"{record_count} records do not fit {span} offsets")
        if self._kind is SegmentKind.INGESTION:
            if holes is not None:
                raise InvalidInputError("an ingestion file has no holes")
            return None
        return self._check_holes(BitMap64() if holes is None else holes, span, record_count)

    @staticmethod
    def _check_holes(holes: BitMap64, span: int, record_count: int) -> BitMap64:
        if len(holes) != span - record_count:
            raise InvalidInputError(
                f"{record_count} records and {len(holes)} holes do not make {span} offsets"
            )
        if holes and holes.max() >= span:
            raise InvalidInputError(
                f"hole {holes.max()} lies beyond the section's {span} offsets",
                remedy="give holes relative to the base offset",
            )
        return holes

    def _put(self, data: Piece) -> None:
        try:
            self._sink(data)
        except BaseException:
            self._state = "failed"
            raise
        self._position += len(data)

    def _put_block(self, kind: BlockType, payload: Sequence[Piece], flags: int = 0) -> None:
        length = sum(map(len, payload))
        if length > MAX_PAYLOAD:
            self._state = "failed"
            raise InvalidInputError(
                f"a {kind.name} payload of {length} bytes is above the limit of {MAX_PAYLOAD}"
            )
        header = BlockHeader(kind, flags, 0, length, 0)
        checksum = block_seed(self._seed, self._position, header)
        for piece in payload:
            checksum = extend(checksum, piece)
        self._put(BLOCK_HEADER.pack(kind, flags, 0, length, checksum))
        for piece in payload:
            self._put(piece)

    def _put_located(self, kind: BlockType, payload: Sequence[Piece], flags: int = 0) -> tuple[int, int]:
        """Write a block; returns its position and length."""
        position = self._position
        self._put_block(kind, payload, flags)
        return position, self._position - position

    def _put_index(self, section: _OpenSection, data_length: int) -> tuple[int, int]:
        if data_length == 0:
            return 0, 0
        return self._put_located(
            BlockType.SECTION_INDEX, [INDEX_HEADER.pack(data_length), bytes(section.index)], OPTIONAL
        )

    def _put_pending(self, section: _OpenSection) -> None:
        cutter = section.cutter
        self._put_data(
            section, cutter.get(PENDING_BYTES), cutter.get(PENDING_BASE), cutter.get(PENDING_TIMESTAMP)
        )
        cutter.block_done()

    def _put_data(self, section: _OpenSection, size: int, base_offset: int, max_timestamp: int) -> None:
        relative = self._position - section.data_position
        section.index += INDEX_ENTRY.pack(base_offset, max_timestamp, relative)
        pieces, section.pending = section.pending, []
        self._put_block(BlockType.DATA, pieces)
        assert self._position - section.data_position == relative + BLOCK_HEADER.size + size
