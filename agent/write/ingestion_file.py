"""Layout of a closed buffer as one ingestion file, and the commit that the catalog receives for it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, repeat
from typing import TYPE_CHECKING, NamedTuple

from agent.cluster.commits import AppendedBatches
from agent.write.pending_append import AppendResult
from catalog.model import BatchRun, FileCommit, FileFormat, PartitionId, SectionCommit
from object_format.record_batch.headers import set_base_offsets, stored_checksums
from object_format.segment_file import VERSION, SegmentFileWriter, SegmentKind, VerifiedBatches
from object_store.names import IngestionName

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from agent.write.ingestion_buffer import OpenFile, Piece
    from catalog.model import ProducerStamp, SectionResult, Topic
    from object_store.interface import Buffer

_FORMAT = FileFormat(version=VERSION)


class SealedSection(NamedTuple):
    """The contents of one section of a file.

    It has the pieces in order and, for each of their batches, columns with its bytes, its number of offsets,
    and its run. `runs` has the index of a batch's run, and `offsets` the batch's first offset relative to the
    run's. With only one run, `runs` is empty instead of zeros.
    """

    pieces: Sequence[Piece]
    batches: Sequence[memoryview]
    offset_counts: Sequence[int]
    runs: Sequence[int]
    offsets: Sequence[int]

    def appended(self, result: SectionResult) -> AppendedBatches:
        """Return the batches that became part of the log, with their offsets in the log."""
        if not self.runs:
            (run,) = result.runs
            if run.refusal is not None or run.duplicate:
                return _NOTHING
            base = run.base_offset
            return AppendedBatches(
                self.batches, [base + offset for offset in self.offsets], self.offset_counts
            )
        runs = [result.runs[number] for number in self.runs]
        rows = zip(self.batches, runs, self.offsets, self.offset_counts, strict=True)
        kept = [
            (batch, run.base_offset + offset, count)
            for batch, run, offset, count in rows
            if run.refusal is None and not run.duplicate
        ]
        return AppendedBatches(*zip(*kept, strict=True)) if kept else _NOTHING


_NOTHING = AppendedBatches((), (), ())


@dataclass(frozen=True, slots=True, kw_only=True)
class SealedFile:
    """An ingestion file that is ready for the upload: the buffers of `body`, in order, are the whole object.

    The buffers are the producers' own where possible. Nothing may change in them before the upload.
    `sections` has the order of `commit.sections`, `topics` what the agent knows of their topics.
    """

    body: tuple[Buffer, ...]
    commit: FileCommit
    sections: tuple[SealedSection, ...]
    topics: Mapping[UUID, Topic]

    @property
    def object_name(self) -> str:
        """The name of the object in the store."""
        return self.commit.object_name

    @property
    def size(self) -> int:
        """The size of the object in bytes."""
        return self.commit.size


class _Columns(NamedTuple):
    """The fields of the `ValidatedBatch`es of one section as columns."""

    positions: Sequence[int]
    sizes: Sequence[int]
    offset_counts: Sequence[int]
    record_counts: Sequence[int]
    min_timestamps: Sequence[int]
    max_timestamps: Sequence[int]
    producers: Sequence[ProducerStamp | None]

    @property
    def has_producers(self) -> bool:
        """Return True if any batch is from an idempotent producer."""
        return self.producers.count(None) < len(self.producers)

    def run(self, first_offset: int, start: int, end: int) -> BatchRun:
        """Return the batches from `start` up to `end` as one run."""
        return BatchRun(
            first_offset=first_offset,
            offset_count=sum(self.offset_counts[start:end]),
            record_count=sum(self.record_counts[start:end]),
            min_timestamp=min(self.min_timestamps[start:end]),
            max_timestamp=max(self.max_timestamps[start:end]),
            producer=self.producers[start],
        )


def _runs(columns: _Columns, bases: Sequence[int]) -> tuple[list[BatchRun], list[int], list[int]]:
    """Return the runs for the catalog and, for each batch, the index of its run and its offset within it."""
    runs: list[BatchRun] = []
    numbers: list[int] = []
    offsets: list[int] = []
    start = 0
    for end, (producer, following) in enumerate(
        zip(columns.producers, (*columns.producers[1:], None), strict=True), 1
    ):
        numbers.append(len(runs))
        offsets.append(bases[end - 1] - bases[start])
        if producer is not None or following is not None or end == len(bases):
            runs.append(columns.run(bases[start], start, end))
            start = end
    return runs, numbers, offsets


def seal(file: OpenFile, *, file_id: UUID, session_id: UUID, created_ms: int) -> SealedFile:
    """Lay out `file`: sections sorted by (topic id, partition), offsets relative to their section.

    The batches are patched in place (their CRC covers neither base offset nor leader epoch) and not copied.
    The body keeps references to the producers' buffers.
    """
    parts: list[Buffer] = []
    writer = SegmentFileWriter(
        kind=SegmentKind.INGESTION,
        file_id=file_id,
        writer_id=session_id,
        created_ms=created_ms,
        sink=parts.append,
    )
    commits: list[SectionCommit] = []
    sections: list[SealedSection] = []
    for topic_id in sorted(file.topics):
        for partition, waiting in sorted(file.topics[topic_id].items()):
            commit, section = _write_section(writer, PartitionId(topic_id, partition), waiting)
            commits.append(commit)
            sections.append(section)
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
            sections=tuple(commits),
            format=_FORMAT,
        ),
        sections=tuple(sections),
        topics=file.known_topics,
    )


def _write_section(
    writer: SegmentFileWriter, partition: PartitionId, pieces: Sequence[Piece]
) -> tuple[SectionCommit, SealedSection]:
    columns = _Columns(*zip(*[batch for piece in pieces for batch in piece.batches], strict=True))
    batches = _views(pieces)
    *bases, end = accumulate(columns.offset_counts, initial=0)
    set_base_offsets(batches, bases, 0)
    if columns.has_producers:
        runs, numbers, offsets = _runs(columns, bases)
    else:
        runs, numbers, offsets = [columns.run(0, 0, len(bases))], [], bases
    record_count = sum(columns.record_counts)
    writer.begin_section(partition.topic_id, partition.partition)
    writer.append_verified(
        VerifiedBatches(
            views=batches,
            base_offsets=bases,
            checksums=stored_checksums(batches),
            max_timestamps=columns.max_timestamps,
            last_offset=end - 1,
            record_count=record_count,
        )
    )
    entry = writer.end_section(
        base_offset=0,
        last_offset=end - 1,
        record_count=record_count,
        min_timestamp=min(columns.min_timestamps),
        max_timestamp=max(columns.max_timestamps),
    )
    commit = SectionCommit(
        topic_id=partition.topic_id,
        partition=partition.partition,
        position=entry.data_position,
        length=entry.data_length,
        runs=tuple(runs),
    )
    return commit, SealedSection(pieces, batches, columns.offset_counts, numbers, offsets)


def _views(pieces: Sequence[Piece]) -> list[memoryview]:
    """Return the bytes of each batch."""
    views: list[memoryview] = []
    for piece in pieces:
        if len(piece.batches) == 1:
            views.append(piece.data)
            continue
        start = piece.batches[0].position
        views += [
            piece.data[batch.position - start : batch.position - start + batch.size]
            for batch in piece.batches
        ]
    return views


def complete_appends(sealed: SealedFile, results: Sequence[SectionResult]) -> None:
    """Give each append the catalog's results of its batches; `results` has the order of the sections."""
    for section, result in zip(sealed.sections, results, strict=True):
        batch_results = _results(section, result)
        if len(section.pieces) == len(batch_results):  # one batch per piece
            for piece, batch_result in zip(section.pieces, batch_results, strict=True):
                piece.pending.complete_one(piece.first_batch, batch_result)
            continue
        first = 0
        for piece in section.pieces:
            count = len(piece.batches)
            piece.pending.complete(piece.first_batch, batch_results[first : first + count])
            first += count


def _results(section: SealedSection, result: SectionResult) -> list[AppendResult]:
    """Return the result of each batch."""
    start, high = result.log_start_offset, result.high_watermark
    if not section.runs:
        (run,) = result.runs
        base_offsets = [run.base_offset + offset if run.refusal is None else -1 for offset in section.offsets]
        rest = (run.duplicate, run.refusal, run.detail, None, start, high)
        rows = zip(base_offsets, *map(repeat, rest), strict=False)
        # The constructor of a named tuple is a Python function, which takes several times as long.
        return list(map(tuple.__new__, repeat(AppendResult), rows))
    runs = [(run.base_offset, run.duplicate, run.refusal, run.detail) for run in result.runs]
    batch_results = []
    for number, offset in zip(section.runs, section.offsets, strict=True):
        base, duplicate, refusal, detail = runs[number]
        base_offset = base + offset if refusal is None else -1
        batch_results.append(AppendResult(base_offset, duplicate, refusal, detail, None, start, high))
    return batch_results
