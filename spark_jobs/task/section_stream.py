"""One pass over the sections of an input file that a job needs: one ranged GET, sent when first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import CorruptDataError, InvalidInputError
from object_format.segment_file import (
    SECTION_START_LENGTH,
    CorruptSegmentError,
    RangeReader,
    SectionIndex,
)
from object_store.accounting import Purpose
from spark_jobs.task.read_ahead import ReadAhead

if TYPE_CHECKING:
    from collections.abc import Iterator
    from concurrent.futures import Executor
    from uuid import UUID

    from catalog.model import JobInput, PartitionId
    from object_format.segment_file import DataBlock
    from object_store.interface import ForwardStream, ObjectStore
    from spark_jobs.task.arrangement import InputPart
    from spark_jobs.task.counts import TaskCounts, TimedSource


class SectionStream:
    """Forward-only stream over the parts of one input file, requested in file order.

    The object is requested when the first part's data is needed: from the start of that section, or from
    the first block of its byte range, up to byte `end`, the last byte that the job needs. That block's
    position is in the section's index, which costs another request. The stream reads to the last block that
    was requested or, if a part is cut after that, to the header of the next block. Bytes between two parts
    are read and skipped, which costs less than another request.

    Every returned block has been verified to belong to this file, to this position, and to the requested
    partition if the part includes the start of its section.
    """

    def __init__(
        self,
        store: ObjectStore,
        job_input: JobInput,
        *,
        end: int,
        read_size: int,
        counts: TaskCounts,
        thread: Executor | None = None,
    ) -> None:
        """With `thread`, up to `read_size` more bytes are read there in advance."""
        self._store = store
        self._input = job_input
        self._end = end
        self._read_size = read_size
        self._counts = counts
        self._thread = thread
        self._source: ForwardStream | ReadAhead | None = None
        self._reader: RangeReader | None = None
        self._entered: tuple[PartitionId, int | None] | None = None
        self._closed = self._was_opened = False

    @property
    def buffer_size(self) -> int:
        """Bytes that the reader holds at the moment."""
        return self._reader.buffer_size if self._reader is not None else 0

    @property
    def was_opened(self) -> bool:
        """Return True if the object was requested."""
        return self._was_opened

    def prefetch(self, part: InputPart) -> None:
        """Request the object for its first part, if that has bytes and bytes can be read in advance."""
        if self._thread is None or self._closed or part.cut_before or not part.has_bytes:
            return
        self._open(part.data.start - SECTION_START_LENGTH)
        if isinstance(self._source, ReadAhead):
            self._source.start()

    def first_offset(self, partition: PartitionId, part: InputPart) -> int | None:
        """Advance to the part's first block and return its offset; None if the part has no block."""
        if self._entered is None or self._entered[0] != partition:
            self._entered = partition, self._enter(partition, part)
        return self._entered[1]

    def blocks(self, partition: PartitionId, part: InputPart) -> Iterator[DataBlock]:
        """Yield the DATA blocks of a part that has bytes; each is valid until the next.

        Raise CorruptDataError if the bytes are not the ones that the catalog describes.
        """
        if self.first_offset(partition, part) is not None:
            yield from self._opened().blocks(part.read_end)

    def peek(self, start: int, end: int) -> memoryview | None:
        """Advance to byte `start` and return the unverified bytes up to `end`, which stay in the stream.

        Return None if the stream is after `start`, or ends before `end`. The bytes are valid until the next
        call.
        """
        reader = self._open(start)
        if reader.position > start:
            return None
        try:
            reader.skip_to(start)
        except CorruptSegmentError:  # the next reader of the section raises it again, with the right name
            return None
        found = reader.peek_to(end)
        return found if len(found) == end - start else None

    def skip_to(self, position: int) -> None:
        """Advance to byte `position` without verifying the bytes before it."""
        self._opened().skip_to(position)

    def end_offset(self, part: InputPart) -> int:
        """Return the offset after the part, at which the next byte range starts or the part ends."""
        return part.offset_of(self._opened().next_base_offset())

    def close(self) -> None:
        """Close the object; the stream cannot be used again."""
        self._closed = True
        if self._source is not None:
            self._source.close()
        self._source = self._reader = None

    def _enter(self, partition: PartitionId, part: InputPart) -> int | None:
        section = partition.topic_id, partition.partition
        if part.cut_before:
            return self._enter_at_block(section, part)
        start = part.data.start - SECTION_START_LENGTH
        reader = self._open(start)
        reader.enter(section, part.data.end)
        if start < reader.position:  # the header of the section is after all data of the one before it
            raise CorruptDataError(
                f"{self._input.object_name} has no section of {partition.topic_id}/{partition.partition} at"
                f" byte {part.data.start}, but the catalog has an extent there: the data is of another one"
            )
        reader.skip_to_data(part.data.start)
        return part.extents[0].base_offset

    def _enter_at_block(self, section: tuple[UUID, int], part: InputPart) -> int | None:
        """Enter the section at the first block of its byte range; return None if no block starts there."""
        found = self._index_of(section, part).block_from(part.read_start - part.data.start)
        if found is None or part.data.start + found[0] >= part.read_end:
            return None
        position, base_offset = part.data.start + found[0], found[1]
        reader = self._open(position)
        reader.enter(section, part.data.end)
        reader.skip_to_block(position, base_offset)
        return part.offset_of(base_offset)

    def _index_of(self, section: tuple[UUID, int], part: InputPart) -> SectionIndex:
        name, located = self._input.object_name, part.section_index
        if located is None:
            raise InvalidInputError(
                f"{name}: a section without an index cannot be read from byte {part.read_start}"
            )
        self._counts.add("index_reads", 1)
        with self._counts.timed("read_objects_ms"):
            block = self._store.read_range(
                name, located.start, located.end - located.start, purpose=Purpose.COMPACTION
            )
        index = SectionIndex.parse(
            block, name=name, file_id=self._input.file_id, position=located.start, section=section
        )
        if index.data_length != part.data.end - part.data.start:
            raise CorruptDataError(
                f"{name}: the index of section {section[0]}/{section[1]} covers {index.data_length} bytes of"
                f" data, but the catalog has {part.data.end - part.data.start}"
            )
        return index

    def _open(self, position: int) -> RangeReader:
        """Return the reader; if it is the first call, request the object from byte `position`."""
        if self._closed:
            raise InvalidInputError(f"the stream over {self._input.object_name} is closed")
        if self._reader is None:
            name = self._input.object_name
            position = max(position, 0)
            self._was_opened = True
            read_size = min(self._read_size, self._end - position)
            source = self._store.open_stream(name, position, self._end, purpose=Purpose.COMPACTION)
            timed: ReadAhead | TimedSource
            if self._thread is None:
                self._source, timed = source, self._counts.timed_source(source)
            else:
                self._source = timed = ReadAhead(source, self._thread, read_size, self._counts)
            self._reader = RangeReader(
                timed,
                name=name,
                file_id=self._input.file_id,
                position=position,
                read_size=read_size,
            )
        return self._reader

    def _opened(self) -> RangeReader:
        if self._reader is None:
            raise InvalidInputError(f"the stream over {self._input.object_name} is not open")
        return self._reader
