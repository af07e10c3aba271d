"""Turns a closed buffer into the bytes of one ingestion file and the commit that the catalog is asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from agent.pending_append import AppendResult
from catalog.model import BatchRun, FileCommit, PartitionId, SectionCommit
from object_format.record_batch import place_batch
from object_format.segment_file import SegmentFileWriter, SegmentKind
from object_store.names import IngestionName

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from agent.ingestion_buffer import OpenFile, Piece
    from agent.validation import BatchColumns
    from catalog.model import SectionResult
    from object_store.interface import Buffer


class PieceRuns(NamedTuple):
    """A piece, and where its batches are found among the runs of its section.

    For each batch: the run's number, and the batch's first offset relative to the run's.
    """

    piece: Piece
    places: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedFile:
    """An ingestion file that is ready to be put: the buffers of `body`, in order, are the whole object.

    They are the producers' own where they can be, so nothing may be changed in them before the file is put.
    `pieces` lists, section by section in the order of `commit.sections`, whose batches lie where.
    """

    body: tuple[Buffer, ...]
    commit: FileCommit
    pieces: tuple[tuple[PieceRuns, ...], ...]

    @property
    def object_name(self) -> str:
        """The object's name in the store."""
        return self.commit.object_name

    @property
    def size(self) -> int:
        """The object's bytes."""
        return self.commit.size


class _SectionRuns:
    """Numbers the batches of one section and joins them to runs as the catalog takes them."""

    def __init__(self) -> None:
        self.next_offset = 0
        self._runs: list[BatchRun] = []
        self._joined: list[BatchColumns] = []  # of the run that is being made
        self._joined_from = 0

    def add(self, batch: BatchColumns) -> tuple[int, int]:
        """Give the batch the next offsets of the section; returns its place in the runs."""
        offset = self.next_offset
        self.next_offset += batch.offset_count
        if batch.producer is not None:
            self._close()
            self._runs.append(_run(offset, [batch]))
            return len(self._runs) - 1, 0
        if not self._joined:
            self._joined_from = offset
        self._joined.append(batch)
        return len(self._runs), offset - self._joined_from

    def _close(self) -> None:
        if self._joined:
            self._runs.append(_run(self._joined_from, self._joined))
            self._joined = []

    def finish(self) -> tuple[BatchRun, ...]:
        """All runs; nothing is added after this."""
        self._close()
        return tuple(self._runs)


def _run(first_offset: int, batches: Sequence[BatchColumns]) -> BatchRun:
    return BatchRun(
        first_offset=first_offset,
        offset_count=sum(batch.offset_count for batch in batches),
        record_count=sum(batch.record_count for batch in batches),
        min_timestamp=min(batch.min_timestamp for batch in batches),
        max_timestamp=max(batch.max_timestamp for batch in batches),
        producer=batches[0].producer,
    )


def seal(file: OpenFile, *, file_id: UUID, session_id: UUID, created_ms: int) -> SealedFile:
    """Lay out `file` with its sections sorted by (topic id, partition), offsets relative to their section.

    The batches are patched where they lie (neither base offset nor leader epoch is covered by their CRC) and
    not copied: the body holds on to the producers' buffers.
    """
    parts: list[Buffer] = []
    writer = SegmentFileWriter(
        kind=SegmentKind.INGESTION,
        file_id=file_id,
        writer_id=session_id,
        created_ms=created_ms,
        sink=parts.append,
    )
    sections: list[SectionCommit] = []
    pieces: list[tuple[PieceRuns, ...]] = []
    for topic_id in sorted(file.topics):
        for partition, waiting in sorted(file.topics[topic_id].items()):
            section, placed = _write_section(writer, PartitionId(topic_id, partition), waiting)
            sections.append(section)
            pieces.append(placed)
    summary = writer.finish()
    name = IngestionName(session_id=session_id, file_id=file_id)
    return SealedFile(
        body=tuple(parts),
        commit=FileCommit(
            file_id=file_id,
            object_name=str(name),
            size=summary.size,
            directory_length=summary.directory_length,
            session_id=session_id,
            sections=tuple(sections),
        ),
        pieces=tuple(pieces),
    )


def _write_section(
    writer: SegmentFileWriter, partition: PartitionId, pieces: Sequence[Piece]
) -> tuple[SectionCommit, tuple[PieceRuns, ...]]:
    writer.begin_section(partition.topic_id, partition.partition)
    numbering = _SectionRuns()
    placed: list[PieceRuns] = []
    for piece in pieces:
        start = piece.batches[0].position
        places = []
        for batch in piece.batches:
            data = piece.data[batch.position - start : batch.position - start + batch.size]
            base_offset = numbering.next_offset
            place_batch(data, base_offset, 0)
            places.append(numbering.add(batch))
            writer.append_batch(
                data, base_offset, numbering.next_offset - 1, batch.record_count, batch.max_timestamp
            )
        placed.append(PieceRuns(piece, tuple(places)))
    runs = numbering.finish()
    entry = writer.end_section(
        base_offset=0,
        last_offset=numbering.next_offset - 1,
        record_count=sum(run.record_count for run in runs),
        min_timestamp=min(run.min_timestamp for run in runs),
        max_timestamp=max(run.max_timestamp for run in runs),
    )
    section = SectionCommit(
        topic_id=partition.topic_id,
        partition=partition.partition,
        position=entry.data_position,
        length=entry.data_length,
        runs=runs,
    )
    return section, tuple(placed)


def settle(sealed: SealedFile, results: Sequence[SectionResult]) -> None:
    """Hand every append what the catalog said of its batches; `results` is in the order of the sections."""
    for section, pieces in zip(results, sealed.pieces, strict=True):
        for placed in pieces:
            placed.piece.pending.settle(
                placed.piece.first_batch,
                [_batch_result(section, run, offset) for run, offset in placed.places],
            )


def _batch_result(section: SectionResult, run: int, offset: int) -> AppendResult:
    result = section.runs[run]
    return AppendResult(
        result.base_offset + offset if result.refusal is None else -1,
        result.duplicate,
        result.refusal,
        result.detail,
        None,
        section.log_start_offset,
        section.high_watermark,
    )
