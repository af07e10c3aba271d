"""One pass over one input file: a single GET, opened when it is first needed, that only goes forward."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bedrock.errors import CorruptDataError, InvalidInputError
from object_format.segment_file import ForwardReader
from object_store.interface import Purpose

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catalog.model import JobInput, PartitionId
    from object_format.segment_file import DataBlock
    from object_store.interface import ForwardStream, ObjectStore


class SectionStream:
    """The sections of an input file that a job takes, in the order of every segment file.

    The object is opened by the first `blocks` and read no further than the last section that was asked for.
    """

    def __init__(self, store: ObjectStore, job_input: JobInput, *, read_size: int) -> None:
        self._store = store
        self._input = job_input
        self._read_size = read_size
        self._source: ForwardStream | None = None
        self._reader: ForwardReader | None = None
        self._closed = False

    @property
    def buffer_size(self) -> int:
        """Bytes that reading holds at the moment."""
        return self._reader.buffer_size if self._reader is not None else 0

    def blocks(self, partition: PartitionId) -> Iterator[DataBlock]:
        """The DATA blocks of the partition's section; each is valid until the next.

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
            self._source = self._store.open_stream(name, purpose=Purpose.COMPACTION)
            reader = ForwardReader(self._source, name=name, size=self._input.size, read_size=self._read_size)
            if reader.header.file_id != self._input.file_id:
                raise CorruptDataError(
                    f"{name} holds the segment file {reader.header.file_id}, not {self._input.file_id}"
                )
            self._reader = reader
        return self._reader
