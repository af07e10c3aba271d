"""A store with one compacted file of any size, whose bytes are generated when they are read.

The file has one section with an index, so that it can be read in byte ranges. Each of its blocks has one
batch of a single record. The blocks differ only in their base offset.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from uuid import UUID

from catalog.model import Extent, FileKind, JobInput, JobPartition, JobSpec
from object_format.record_batch.records import encode_batch
from object_format.segment_file import SegmentFileWriter, SegmentKind
from object_format.segment_file.block_payloads import SectionFooter
from object_format.segment_file.checksum import block_seed, extend, file_seed
from object_format.segment_file.layout import (
    BLOCK_HEADER,
    INDEX_ENTRY,
    INDEX_HEADER,
    OPTIONAL,
    BlockHeader,
    BlockType,
)
from object_store.accounting import Purpose, RequestCounts, RequestKind
from object_store.names import compacted_name

if TYPE_CHECKING:
    from object_store.interface import Buffer

FILE_ID = UUID(int=0x77)
TOPIC_ID = UUID(int=0x78)
JOB_ID = UUID(int=0x7A)
NOW_MS = 1_700_000_000_000


class GeneratedFile:
    """A compacted file with one section of `blocks` records of one key, with values of `value_bytes`."""

    def __init__(self, blocks: int, value_bytes: int) -> None:
        pieces: list[bytes] = []
        writer = SegmentFileWriter(
            kind=SegmentKind.COMPACTED,
            file_id=FILE_ID,
            writer_id=FILE_ID,
            created_ms=NOW_MS,
            sink=lambda data: pieces.append(bytes(data)),
        )
        writer.begin_section(TOPIC_ID, 0)
        self._head = b"".join(pieces)
        self._batch = bytearray(encode_batch([NOW_MS], [b"key"], [bytes(value_bytes)]))
        self._header = BlockHeader(BlockType.DATA, 0, 0, len(self._batch), 0)
        self._kept: tuple[int, memoryview] | None = None
        self.blocks = blocks
        self.data_position = len(self._head)
        self.data_length = blocks * self._header.size
        entries = (INDEX_ENTRY.pack(each, NOW_MS, each * self._header.size) for each in range(blocks))
        index = INDEX_HEADER.pack(self.data_length) + b"".join(entries)
        self.index_position = self.data_position + self.data_length
        self.index = self._block(
            BlockHeader(BlockType.SECTION_INDEX, OPTIONAL, 0, len(index), 0), self.index_position, index
        )
        footer_position = self.index_position + len(self.index)
        footer = SectionFooter(
            base_offset=0,
            last_offset=blocks - 1,
            record_count=blocks,
            batch_count=blocks,
            data_length=self.data_length,
            min_timestamp=NOW_MS,
            max_timestamp=NOW_MS,
            unique_keys=False,
        ).pack()
        self._after_data = bytes(self.index) + self._block(
            BlockHeader(BlockType.SECTION_FOOTER, 0, 0, len(footer), 0), footer_position, footer
        )
        self.size = self.index_position + len(self._after_data)

    def readinto(self, position: int, target: memoryview) -> int:
        """Copy bytes from `position` on into `target`; return their number."""
        number, inside = divmod(position - self.data_position, self._header.size)
        piece: bytes | memoryview
        if number < 0:
            piece = self._head[position:]
        elif number < self.blocks:
            piece = self._data_block(number)[inside:]
        else:
            piece = self._after_data[position - self.index_position :]
        count = min(len(piece), len(target))
        target[:count] = piece[:count]
        return count

    def spec(self, table_bytes: int) -> JobSpec:
        """Return a job over the file."""
        extent = Extent(
            topic_id=TOPIC_ID,
            partition=0,
            base_offset=0,
            last_offset=self.blocks - 1,
            record_count=self.blocks,
            min_timestamp=NOW_MS,
            max_timestamp=NOW_MS,
            file_id=FILE_ID,
            object_name=compacted_name(JOB_ID, JOB_ID, FILE_ID),
            file_kind=FileKind.COMPACTED,
            position=self.data_position,
            length=self.data_length,
            index_position=self.index_position,
            index_length=len(self.index),
            offset_shift=0,
            leader_epoch=0,
            unique_keys=False,
            committed_ms=NOW_MS,
        )
        partition = JobPartition(
            topic_id=TOPIC_ID,
            partition=0,
            topic_name="fabricated",
            cleanup_policy="compact",
            compression_type="producer",
            deduplicate=True,
            reaches_log_start=True,
            base_offset=0,
            upper_offset=self.blocks,
            delete_retention_ms=1000,
        )
        job_input = JobInput(
            file_id=FILE_ID, object_name=extent.object_name, size=self.size, extents=(extent,)
        )
        return JobSpec(
            job_id=UUID(int=0x79),
            created_ms=NOW_MS,
            now_ms=NOW_MS,
            hash_seed=bytes(16),
            table_bytes=table_bytes,
            reason="a test",
            inputs=(job_input,),
            partitions=(partition,),
        )

    def _data_block(self, number: int) -> memoryview:
        """Return one block; the last one is cached, because it is read in pieces."""
        if self._kept is None or self._kept[0] != number:
            self._batch[:8] = number.to_bytes(8, "big")
            at = self.data_position + number * self._header.size
            self._kept = number, self._block(self._header, at, self._batch)
        return self._kept[1]

    def _block(self, header: BlockHeader, position: int, payload: bytes | bytearray) -> memoryview:
        checksum = extend(block_seed(file_seed(FILE_ID), position, header), payload)
        return memoryview(BLOCK_HEADER.pack(*header[:4], checksum) + payload)


class GeneratedStream:
    """A stream over the file that counts as one GET."""

    resumes = 0

    def __init__(self, file: GeneratedFile, position: int, end: int | None, counts: RequestCounts) -> None:
        self._file = file
        self._position = position
        self._end = file.size if end is None else end
        self._counts = counts
        self._begun = False

    def readinto(self, target: memoryview) -> int:
        if not self._begun:
            self._counts.record(RequestKind.GET, Purpose.COMPACTION, requests=1)
            self._begun = True
        count = self._file.readinto(self._position, target[: self._end - self._position])
        self._position += count
        self._counts.record(RequestKind.GET, Purpose.COMPACTION, bytes_in=count)
        return count

    def close(self) -> None:
        pass


class DiscardingUpload:
    """An upload that discards its data."""

    def __init__(self) -> None:
        self.size = 0

    def write(self, data: Buffer) -> None:
        self.size += len(data)

    def complete(self) -> int:
        return self.size

    def abort(self) -> None:
        pass


class GeneratedStore:
    """The part of an `ObjectStore` that tasks use."""

    def __init__(self, file: GeneratedFile) -> None:
        self._file = file
        self.counts = RequestCounts()

    def open_stream(
        self, _name: str, position: int = 0, end: int | None = None, *, purpose: Purpose
    ) -> GeneratedStream:
        assert purpose is Purpose.COMPACTION
        return GeneratedStream(self._file, position, end, self.counts)

    def read_range(self, _name: str, position: int, length: int, *, purpose: Purpose) -> memoryview:
        assert purpose is Purpose.COMPACTION
        assert (position, length) == (self._file.index_position, len(self._file.index))
        self.counts.record(RequestKind.GET, purpose, requests=1, bytes_in=length)
        return self._file.index

    def start_upload(self, _name: str, *, purpose: Purpose) -> DiscardingUpload:
        assert purpose is Purpose.COMPACTION
        return DiscardingUpload()

    def close(self) -> None:
        pass
