"""One pass over one input file, or a stretch of one: a single GET, opened when it is first needed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from bedrock.errors import CorruptDataError, InvalidInputError
from object_format.segment_file import ForwardReader, RangeReader
from object_store.interface import Purpose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catalog.model import JobInput, PartitionId
    from object_format.segment_file import DataBlock
    from object_store.interface import ForwardStream, ObjectStore
    from spark_jobs.arrangement import InputPart
    from spark_jobs.task_counts import TaskCounts


class InputStream(Protocol):
    """One pass over an input; parts are asked for in the order of the file, and it only goes forward."""

    @property
    def buffer_size(self) -> int:
        """Bytes that reading holds at the moment."""
        ...

    @property
    def was_opened(self) -> bool:
        """Whether the object was asked for."""
        ...

    def first_offset(self, partition: PartitionId, part: InputPart) -> int | None:
        """The offset at which the part begins in what is read here; None when nothing does."""
        ...

    def blocks(self, partition: PartitionId, part: InputPart) -> Iterator[DataBlock]:
        """The part's DATA blocks; each is valid until the next."""
        ...

    def end_offset(self, part: InputPart) -> int:
        """The offset behind those of the part that belong to what is read here; after its blocks."""
        ...

    def close(self) -> None:
        """Let go of the object; the stream cannot be used again."""
        ...


class SectionStream:
    """The sections of an input file that a job takes, in the order of every segment file.

    The object is opened by the first `blocks` and read no further than the last section that was asked for.
    """

    def __init__(
        self, store: ObjectStore, job_input: JobInput, *, read_size: int, counts: TaskCounts
    ) -> None:
        self._store = store
        self._input = job_input
        self._read_size = read_size
        self._counts = counts
        self._source: ForwardStream | None = None
        self._reader: ForwardReader | None = None
        self._closed = self._was_opened = False

    @property
    def buffer_size(self) -> int:
        """Bytes that reading holds at the moment."""
        return self._reader.buffer_size if self._reader is not None else 0

    @property
    def was_opened(self) -> bool:
        """Whether the object was asked for."""
        return self._was_opened

    def first_offset(self, partition: PartitionId, part: InputPart) -> int | None:  # noqa: ARG002 -- as in the protocol
        """That of the part, which is never cut here."""
        return part.extents[0].base_offset

    def end_offset(self, part: InputPart) -> int:
        """That of the part, which is never cut here."""
        return part.offset_of(None)

    def blocks(self, partition: PartitionId, part: InputPart) -> Iterator[DataBlock]:  # noqa: ARG002 -- likewise
        """The DATA blocks of the partition's section.

        Raises CorruptDataError when the file has no such section, or is not the file that the catalog means.
        """
        reader = self._open()
        wanted = (partition.topic_id, partition.partition)
        while (section := reader.next_section()) is not None and section.key < wanted:
            pass
        if section is None or section.key != wanted:
            raise CorruptDataError(
                f"{self._input.object_name} has no section of {partition.topic_id}/{partition.partition},"
                " though the catalog has an extent of it"
            )
        yield from reader.blocks()

    def close(self) -> None:
        """Let go of the object; the stream cannot be used again."""
        self._closed = True
        if self._source is not None:
            self._source.close()
        self._source = self._reader = None

    def _open(self) -> ForwardReader:
        if self._closed:
            raise InvalidInputError(f"the stream over {self._input.object_name} is closed")
        if self._reader is None:
            name = self._input.object_name
            self._was_opened = True
            self._source = self._store.open_stream(name, purpose=Purpose.COMPACTION)
            reader = ForwardReader(
                self._counts.timed_source(self._source),
                name=name,
                size=self._input.size,
                read_size=self._read_size,
            )
            if reader.header.file_id != self._input.file_id:
                raise CorruptDataError(
                    f"{name} holds the segment file {reader.header.file_id}, not {self._input.file_id}"
                )
            self._reader = reader
        return self._reader


class StretchStream:
    """The parts of an input file that have blocks in one stretch of it, by one ranged GET.

    The object is opened at the first part's data and read no further than the block that the next stretch
    begins with.
    """

    def __init__(
        self, store: ObjectStore, job_input: JobInput, *, read_size: int, counts: TaskCounts
    ) -> None:
        self._store = store
        self._input = job_input
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
        """Goes to the part's first block; None when none begins in the stretch."""
        if self._entered is None or self._entered[0] != partition:
            self._entered = partition, self._enter(partition, part)
        return self._entered[1]

    def blocks(self, partition: PartitionId, part: InputPart) -> Iterator[DataBlock]:
        """The DATA blocks that begin in the stretch."""
        if self.first_offset(partition, part) is not None and part.has_bytes:
            assert part.stretch is not None
            yield from self._open(part).blocks(part.stretch.end)

    def end_offset(self, part: InputPart) -> int:
        """Where the next stretch's first block begins, or the part ends."""
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
        assert part.stretch is not None
        reader = self._open(part)
        reader.enter((partition.topic_id, partition.partition), part.data_end)
        if not part.cut_before:
            reader.skip_to(part.data_start)
            return part.extents[0].base_offset
        found = reader.find_block(part.stretch.end)
        return part.offset_of(reader.next_base_offset()) if found else None

    def _open(self, part: InputPart) -> RangeReader:
        if self._closed:
            raise InvalidInputError(f"the stream over {self._input.object_name} is closed")
        if self._reader is None:
            assert part.stretch is not None
            name = self._input.object_name
            position = max(part.stretch.start, part.data_start)
            self._was_opened = True
            self._source = self._store.open_stream(name, position, purpose=Purpose.COMPACTION)
            self._reader = RangeReader(
                self._counts.timed_source(self._source),
                name=name,
                file_id=self._input.file_id,
                position=position,
                read_size=self._read_size,
            )
        return self._reader
