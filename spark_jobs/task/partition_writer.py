"""Pass 2 of one partition: write its survivors, or all records, into an output file as one section."""

from __future__ import annotations

from itertools import chain, repeat, zip_longest
from typing import TYPE_CHECKING, Final

from core.errors import CorruptDataError
from object_format.codecs.codec import Codec
from object_format.dedupe import RewriteOptions, delete_horizon, rewrite_batches
from object_format.dedupe.early_filter import FilteredSection
from object_format.holes import holes_between
from object_format.record_batch.decompression import Scratch
from object_format.record_batch.headers import patch_offsets
from object_format.record_batch.record_offsets import RecordOffsets
from object_format.segment_file.layout import NO_TIMESTAMP
from spark_jobs.task.output_files import OutputPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from catalog.model import Extent, JobPartition, JobSpec
    from object_format.dedupe import FilteredBatches, Survivors
    from object_format.dedupe.early_filter import FilteredPiece
    from object_format.offset_set import OffsetSet
    from object_format.segment_file import SegmentFileWriter
    from spark_jobs.task.arrangement import PartitionWork
    from spark_jobs.task.counts import TaskCounts
    from spark_jobs.task.extent_cut import Piece
    from spark_jobs.task.input_pass import InputPass
    from spark_jobs.task.output_files import OutputFiles


_NOTHING: Final = FilteredSection()


class PartitionWriter:
    """Writes partitions of a job, or byte ranges of them, from `inputs` into `outputs`."""

    def __init__(self, spec: JobSpec, inputs: InputPass, outputs: OutputFiles, counts: TaskCounts) -> None:
        self._spec = spec
        self._inputs = inputs
        self._outputs = outputs
        self._counts = counts
        self._scratch = Scratch(counts.codec_timers)

    def write(
        self,
        work: PartitionWork,
        survivors: Survivors | None,
        *,
        series: int,
        ahead: Mapping[int, FilteredSection] | None = None,
    ) -> int:
        """Read the work's parts, oldest first, write the survivors, and return the number of records read.

        Without `survivors` every record is kept. `series` selects a file of the cleanup policy. `ahead` has
        the batches that pass 1 has already filtered, by index of the part. Nothing is written if no block of
        the work starts in its byte range.

        Raise CorruptDataError if pass 1 has seen other records than pass 2.
        """
        base_offset = self._inputs.first_offset(work)
        records_in = 0
        if base_offset is not None:
            section = _Section(work, base_offset, self._outputs, series)
            if survivors is None:
                self._copy(work, section)
            else:
                self._filter(work, survivors, section, ahead or {})
            records_in = section.records_in
        self._counts.at_least("largest_buffer_bytes", self._inputs.largest_buffer)
        return records_in

    def _filter(
        self,
        work: PartitionWork,
        survivors: Survivors,
        section: _Section,
        ahead: Mapping[int, FilteredSection],
    ) -> None:
        rewriting = rewriting_of(self._spec, work.partition, exact=survivors.exact)

        def add(filtered: FilteredBatches, records_in: int) -> None:
            section.records_in += records_in
            for batches in filtered.buffers:
                section.append(batches)
            section.add(filtered.record_count, filtered.min_timestamp, filtered.max_timestamp)
            self._counts.add("merged_bytes_saved", filtered.merged_bytes_saved)
            self._counts.at_least("largest_buffer_bytes", filtered.buffer_bytes)

        to_read = [
            part for index, part in enumerate(work.parts) if not ahead.get(index, _NOTHING).is_complete
        ]
        following = chain(to_read[1:], repeat(None))
        for index, part in enumerate(work.parts):
            done = ahead.get(index, _NOTHING)
            if done.is_complete:
                for each in done.pieces:
                    assert each is not None
                    add(each.filtered, each.records_in)
                continue
            pieces = iter(done.pieces)

            def take(piece: Piece, extent: Extent, pieces: Iterator[FilteredPiece | None] = pieces) -> None:
                here = next(pieces, None)
                if here is not None:
                    add(here.filtered, here.records_in)
                    return
                with self._counts.timed("kernels_ms"):
                    filtered = rewrite_batches(
                        piece.batches,
                        survivors,
                        rewriting,
                        offset_shift=extent.offset_shift,
                        leader_epoch=extent.leader_epoch,
                        scratch=self._scratch,
                    )
                add(filtered, piece.record_count)

            self._inputs.prefetch(part)
            self._inputs.prefetch(next(following))
            self._inputs.read(work, part, take)
        if section.record_count != len(survivors.offsets):
            raise CorruptDataError(
                f"partition {work.name}: pass 1 found {len(survivors.offsets)} survivors,"
                f" pass 2 {section.record_count}",
                remedy="an input changed between the passes, but objects never change: check the store",
            )
        self._end_section(work, section, survivors.offsets, unique_keys=survivors.exact)

    def _copy(self, work: PartitionWork, section: _Section) -> None:
        found = RecordOffsets(self._scratch)

        def take(piece: Piece, extent: Extent) -> None:
            with self._counts.timed("kernels_ms"):
                found.add(piece.batches, offset_shift=extent.offset_shift)
            patch_offsets(piece.batches, extent.offset_shift, extent.leader_epoch)
            section.records_in += piece.record_count
            section.append(piece.batches)
            section.add(piece.record_count, extent.min_timestamp, extent.max_timestamp)

        for part, following in zip_longest(work.parts, work.parts[1:]):
            self._inputs.prefetch(part)
            self._inputs.prefetch(following)
            self._inputs.read(work, part, take)
        self._counts.at_least("largest_buffer_bytes", found.max_opened_bytes)
        offsets = found.take()
        if section.record_count != len(offsets):
            raise CorruptDataError(
                f"partition {work.name}: {section.record_count} records at {len(offsets)} offsets"
            )
        self._end_section(work, section, offsets, unique_keys=work.unique_keys)

    def _end_section(
        self, work: PartitionWork, section: _Section, offsets: OffsetSet, *, unique_keys: bool
    ) -> None:
        end_offset = self._inputs.end_offset(work)
        if end_offset > section.base_offset:
            section.end(end_offset - 1, offsets, unique_keys=unique_keys)
        self._counts.add("records_in", section.records_in)
        self._counts.add("records_out", section.record_count)
        self._counts.add("records_dropped", section.records_in - section.record_count)


class _Section:
    """An output section and its statistics while it is written."""

    def __init__(self, work: PartitionWork, base_offset: int, outputs: OutputFiles, series: int) -> None:
        self.base_offset = base_offset
        self.records_in = 0
        self.record_count = 0
        self.min_timestamp = NO_TIMESTAMP
        self.max_timestamp = NO_TIMESTAMP
        self._partition = work.partition
        self._outputs = outputs
        self._series = series
        self._writer: SegmentFileWriter | None = None

    def append(self, batches: bytes | memoryview) -> None:
        """Write batches; the caller may reuse the buffer on return."""
        self._open().append(batches)

    def end(self, last_offset: int, offsets: OffsetSet, *, unique_keys: bool) -> None:
        """Write the end of the section; `offsets` are the offsets that have a record."""
        self._open().end_section(
            base_offset=self.base_offset,
            last_offset=last_offset,
            record_count=self.record_count,
            min_timestamp=self.min_timestamp,
            max_timestamp=self.max_timestamp,
            unique_keys=unique_keys,
            holes=holes_between(offsets, self.base_offset, last_offset),
        )

    def _open(self) -> SegmentFileWriter:
        if self._writer is None:
            policy = OutputPolicy.of(self._partition.cleanup_policy)
            self._writer = self._outputs.writer(policy, self._series)
            self._writer.begin_section(self._partition.topic_id, self._partition.partition)
        return self._writer

    def add(self, record_count: int, min_timestamp: int | None, max_timestamp: int | None) -> None:
        """Count records; without any, the timestamps are None."""
        if min_timestamp is None or max_timestamp is None:
            return
        if self.record_count:
            min_timestamp = min(self.min_timestamp, min_timestamp)
            max_timestamp = max(self.max_timestamp, max_timestamp)
        self.min_timestamp, self.max_timestamp = min_timestamp, max_timestamp
        self.record_count += record_count


def rewriting_of(spec: JobSpec, partition: JobPartition, *, exact: bool) -> RewriteOptions:
    """Return how the survivors of a partition are written; `exact` says whether each key occurs once.

    A tombstone that becomes clean by this job gets a delete horizon, after which it may be dropped. A
    tombstone is clean when no older record of its key is left. If an older record may be left, outside the
    job's range or because the key table was full, a reader may still meet it. Then the tombstone must stay
    for delete.retention.ms after that record is gone.
    """
    clean = partition.reaches_log_start and exact
    return RewriteOptions(
        delete_horizon_ms=delete_horizon(spec.now_ms, partition.delete_retention_ms) if clean else None,
        merge=spec.merge_batches,
        merged_codec=_codec_of(partition.compression_type),
        max_batch_bytes=partition.max_message_bytes,
    )


def _codec_of(compression_type: str) -> Codec | None:
    """Return the topic's codec for merged batches; None to keep the producer's."""
    if compression_type == "producer":
        return None
    return Codec.NONE if compression_type == "uncompressed" else Codec[compression_type.upper()]
