"""One pass over the sections of an input file that a job takes: a ranged GET, made when first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import CorruptDataError, InvalidInputError
from object_format.segment_file import SECTION_START_LENGTH, RangeReader
from object_store.interface import Purpose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catalog.model import JobInput, PartitionId
    from object_format.segment_file import DataBlock
    from object_store.interface import ForwardStream, ObjectStore
    from spark_jobs.task.arrangement import InputPart
    from spark_jobs.task.counts import TaskCounts


class SectionStream:
    """The parts of an input file, asked for in the order of the file; it only goes forward.

    The object is asked for when the first part's data is: from the beginning of that section, or from where
    a stretch of it begins, up to byte `end`, behind which nobody wants anything. It is read no further than
    the last block that was asked for, or, where a part is cut behind that, the header of the next one. What
    lies between two parts is read and passed over: it costs less than another request, and is not looked at.

    What is handed on has proved to be of this file, at this place in it, and of the partition that was asked
    for, where the part has the beginning of its section.
    """

    def __init__(
        self, store: ObjectStore, job_input: JobInput, *, end: int, read_size: int, counts: TaskCounts
    ) -> None:
        self._store = store
        self._input = job_input
        self._end = end
        self._read_size = read_size
        self._counts = counts
        self._source: ForwardStream | None = None
        self._reader: RangeReader | None = None
        self._entered: tuple[PartitionId, int | None] | None = None
        self._closed = self._was_opened = False

    @property
    def buffer_size(self) -> int:
        """Bytes that reading holds at the moment."""
        return self._reader.buffer_size if self._reader is not None else 0

    @property
    def was_opened(self) -> bool:
        """Whether the object was asked for."""
        return self._was_opened

    def first_offset(self, partition: PartitionId, part: InputPart) -> int | None:
        """Goes to the part's first block and tells its offset; None when no block of it begins here."""
        if self._entered is None or self._entered[0] != partition:
            self._entered = partition, self._enter(partition, part)
        return self._entered[1]

    def blocks(self, partition: PartitionId, part: InputPart) -> Iterator[DataBlock]:
        """The part's DATA blocks; each is valid until the next.

        Raises CorruptDataError when the bytes are not those that the catalog means.
        """
        if self.first_offset(partition, part) is not None and part.has_bytes:
            yield from self._open(part).blocks(part.read_end)

    def end_offset(self, part: InputPart) -> int:
        """The offset behind the part, after its blocks: where the next stretch begins, or the part ends."""
        return part.offset_of(self._open(part).next_base_offset() if part.cut_behind else None)

    def close(self) -> None:
        """Let go of the object; the stream cannot be used again."""
        self._closed = True
        if self._source is not None:
            self._source.close()
        self._source = self._reader = None

    def _enter(self, partition: PartitionId, part: InputPart) -> int | None:
        if not part.has_bytes:
            return part.extents[0].base_offset
        reader = self._open(part)
        reader.enter((partition.topic_id, partition.partition), part.data_end)
        if part.cut_before:
            found = reader.find_block(part.read_end)
            return part.offset_of(reader.next_base_offset()) if found else None
        if part.data_start < reader.position:
            raise CorruptDataError(
                f"{self._input.object_name} has no section of {partition.topic_id}/{partition.partition} at"
                f" byte {part.data_start}, where the catalog has an extent of it: another one's data is there"
            )
        reader.skip_to_data(part.data_start)
        return part.extents[0].base_offset

    def _open(self, part: InputPart) -> RangeReader:
        if self._closed:
            raise InvalidInputError(f"the stream over {self._input.object_name} is closed")
        if self._reader is None:
            name = self._input.object_name
            position = max(part.read_start - (0 if part.cut_before else SECTION_START_LENGTH), 0)
            self._was_opened = True
            self._source = self._store.open_stream(name, position, self._end, purpose=Purpose.COMPACTION)
            self._reader = RangeReader(
                self._counts.timed_source(self._source),
                name=name,
                file_id=self._input.file_id,
                position=position,
                read_size=min(self._read_size, self._end - position),
            )
        return self._reader
