"""Reconstruction of an ingestion file's commit from the object alone.

Ingestion files describe themselves: the header names the session, the sections their partitions, and the
batches their producers and sequence numbers. The result equals the `FileCommit` of the agent that wrote the
file; a property test compares them.
"""

from __future__ import annotations

from io import BytesIO
from typing import TYPE_CHECKING

from catalog.model import BatchRun, FileCommit, FileFormat, ProducerStamp, SectionCommit
from core.errors import CorruptDataError
from object_format.record_batch.headers import iter_headers, verify_checksum
from object_format.record_batch.records import decode_batch
from object_format.segment_file import (
    FILE_START_LENGTH,
    TRAILER_LENGTH,
    VERSION,
    ForwardReader,
    SegmentKind,
    check_format,
    features_for_catalog,
    read_directory,
    stated_version,
)
from object_format.segment_file.errors import NeedMoreTail
from object_store import names
from object_store.accounting import Purpose

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from object_format.record_batch.headers import BatchHeader
    from object_format.segment_file import Directory
    from object_store.interface import ObjectStore
    from object_store.names import IngestionName

_TAIL_BYTES = 16_384


def read_contents(store: ObjectStore, object_name: str) -> Directory:
    """Return the directory of a file: its sections with their records, read from its end.

    Raise UnsupportedFormatError if this version cannot read the file, ObjectNotFoundError, and
    CorruptDataError for anything but a segment file.
    """
    _check_readable(store, object_name)
    length = _TAIL_BYTES
    while True:
        tail, size = store.read_tail(object_name, length, purpose=Purpose.FSCK)
        try:
            return read_directory(tail, name=object_name, size=size)
        except NeedMoreTail as error:
            length = error.length


def read_file_commit(store: ObjectStore, object_name: str) -> FileCommit:
    """Return the commit of the ingestion file `object_name`, after a check of each of its bytes.

    Raises UnsupportedFormatError as `read_contents` does, ObjectNotFoundError, and CorruptDataError for
    anything but a sound file of the session in its name.
    """
    name = names.parse(object_name)
    if not isinstance(name, names.IngestionName):
        raise CorruptDataError(f"{object_name} is not the name of an ingestion file")
    contents = read_contents(store, object_name)
    stream = store.open_stream(object_name, purpose=Purpose.FSCK)
    try:
        reader = ForwardReader(stream, name=object_name, size=contents.size)
        _check_owner(reader, name)
        sections: list[SectionCommit] = []
        while (section := reader.next_section()) is not None:
            runs = _Runs()
            for block in reader.blocks():
                for position, header in iter_headers(block.payload):
                    runs.add(block.payload, position, header)
            entry = reader.entry
            sections.append(
                SectionCommit(
                    topic_id=section.topic_id,
                    partition=section.partition,
                    position=entry.data_position,
                    length=entry.data_length,
                    runs=tuple(runs.runs),
                )
            )
    finally:
        stream.close()
    return FileCommit(
        file_id=name.file_id,
        object_name=object_name,
        size=contents.size,
        directory_length=contents.length,
        session_id=name.session_id,
        sections=tuple(sections),
        format=FileFormat(VERSION, features_for_catalog(reader.header.required_features)),
    )


def _check_readable(store: ObjectStore, object_name: str) -> None:
    """Read the file's header, because no row of the catalog says what its readers must know.

    A file that needs a newer Siltstone is not damaged: agents that can read it will commit it again.
    """
    head = store.read_range(object_name, 0, FILE_START_LENGTH, purpose=Purpose.FSCK)
    if (version := stated_version(head)) is not None:
        check_format(object_name, version, "")
    _ = ForwardReader(BytesIO(head), name=object_name).header


def _check_owner(reader: ForwardReader, name: IngestionName) -> None:
    header = reader.header
    found = (header.kind, header.file_id, header.writer_id)
    if found != (SegmentKind.INGESTION, name.file_id, name.session_id):
        raise CorruptDataError(f"{name} holds the file {header.file_id} of {header.writer_id}")


class _Runs:
    """The runs of one section: a batch of an idempotent producer, or adjacent batches of other producers."""

    def __init__(self) -> None:
        self.runs: list[BatchRun] = []

    def add(self, payload: Buffer, position: int, header: BatchHeader) -> None:
        """Add the next batch of the section."""
        verify_checksum(payload, header, position)
        stamp = None
        if header.producer_id >= 0:
            stamp = ProducerStamp(
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                is_transactional=header.is_transactional,
            )
        timestamps = decode_batch(payload, position, verify=False).timestamps
        run = BatchRun(
            first_offset=header.base_offset,
            offset_count=header.last_offset_delta + 1,
            record_count=header.record_count,
            min_timestamp=int(timestamps.min()),
            max_timestamp=header.max_timestamp,
            producer=stamp,
        )
        if stamp is None and self.runs and self.runs[-1].producer is None:
            self.runs[-1] = _joined(self.runs[-1], run)
        else:
            self.runs.append(run)


def _joined(first: BatchRun, second: BatchRun) -> BatchRun:
    return BatchRun(
        first_offset=first.first_offset,
        offset_count=first.offset_count + second.offset_count,
        record_count=first.record_count + second.record_count,
        min_timestamp=min(first.min_timestamp, second.min_timestamp),
        max_timestamp=max(first.max_timestamp, second.max_timestamp),
        producer=None,
    )


assert TRAILER_LENGTH <= _TAIL_BYTES
