"""Pass 2 of one partition: what survives, or everything, goes into an output file as one section."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyroaring import BitMap64

from bedrock.errors import CorruptDataError
from object_format.codecs import Codec
from object_format.dedupe import filter_batches
from object_format.holes import holes_between
from object_format.record_batch import patch_offsets
from object_format.records import decode_batch
from spark_jobs.extent_cut import spans_of
from spark_jobs.output_files import OutputPolicy

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.model import Extent, JobSpec
    from object_format.dedupe import Survivors
    from object_format.segment_file import SegmentFileWriter
    from spark_jobs.arrangement import PartitionWork
    from spark_jobs.extent_cut import Piece
    from spark_jobs.input_pass import InputPass
    from spark_jobs.output_files import OutputFiles
    from spark_jobs.task_counts import TaskCounts


class PartitionWriter:
    """Writes the partitions of a job, or stretches of them, from `inputs` into `outputs`."""

    def __init__(self, spec: JobSpec, inputs: InputPass, outputs: OutputFiles, counts: TaskCounts) -> None:
        self._spec = spec
        self._inputs = inputs
        self._outputs = outputs
        self._counts = counts

    def write(self, work: PartitionWork, survivors: Survivors | None, *, file_number: int = 0) -> None:
        """Read the work's parts, oldest first; without `survivors` everything stays as it stands.

        `file_number` tells apart files of one cleanup policy. Raises CorruptDataError when pass 1 has seen
        other records than are there.
        """
        writer = self._outputs.writer(OutputPolicy.of(work.partition.cleanup_policy), file_number)
        if survivors is None:
            self._copy(work, writer)
        else:
            self._filter(work, survivors, writer)
        self._counts.at_least("largest_buffer_bytes", self._inputs.largest_buffer)

    def _filter(self, work: PartitionWork, survivors: Survivors, writer: SegmentFileWriter) -> None:
        section = _Section()
        delete_horizon_ms = self._delete_horizon_ms(work, survivors)
        codec = _codec_of(work.partition.compression_type)

        def take(piece: Piece, extent: Extent) -> None:
            filtered = filter_batches(
                piece.batches,
                survivors,
                offset_shift=extent.offset_shift,
                leader_epoch=extent.leader_epoch,
                delete_horizon_ms=delete_horizon_ms,
                merged_codec=codec,
            )
            for batches in filtered.buffers:
                writer.append(batches)
            section.add(filtered.record_count, filtered.min_timestamp, filtered.max_timestamp)
            self._counts.add("merged_bytes_saved", filtered.merged_bytes_saved)

        self._read_all(work, writer, take)
        if section.record_count != len(survivors.offsets):
            raise CorruptDataError(
                f"partition {work.name}: pass 1 found {len(survivors.offsets)} survivors,"
                f" pass 2 {section.record_count}",
                remedy="an input changed between the passes, which no object of ours does: check the store",
            )
        self._end_section(work, writer, section, survivors.offsets, unique_keys=survivors.exact)

    def _delete_horizon_ms(self, work: PartitionWork, survivors: Survivors) -> int | None:
        """From when on tombstones that become clean by this job may go; None when none does.

        A tombstone is clean once no older record of its key is left. While one may be, outside the job's
        range or because the key table was full, a reader may still meet it, and must have
        delete.retention.ms from the moment it goes to learn of the delete.
        """
        if work.partition.reaches_log_start and survivors.exact:
            return self._spec.now_ms + work.partition.delete_retention_ms
        return None

    def _copy(self, work: PartitionWork, writer: SegmentFileWriter) -> None:
        section = _Section()
        offsets = BitMap64()

        def take(piece: Piece, extent: Extent) -> None:
            _add_offsets(offsets, piece, extent)
            patch_offsets(piece.batches, extent.offset_shift, extent.leader_epoch)
            writer.append(piece.batches)
            section.add(piece.record_count, extent.min_timestamp, extent.max_timestamp)

        self._read_all(work, writer, take)
        if section.record_count != len(offsets):
            raise CorruptDataError(
                f"partition {work.name}: {section.record_count} records at {len(offsets)} offsets"
            )
        self._end_section(work, writer, section, offsets, unique_keys=work.unique_keys)

    def _read_all(
        self, work: PartitionWork, writer: SegmentFileWriter, take: Callable[[Piece, Extent], None]
    ) -> None:
        writer.begin_section(work.partition.topic_id, work.partition.partition)
        for part in work.parts:
            self._inputs.read(work, part, take)

    def _end_section(
        self,
        work: PartitionWork,
        writer: SegmentFileWriter,
        section: _Section,
        offsets: BitMap64,
        *,
        unique_keys: bool,
    ) -> None:
        base, last = work.partition.base_offset, work.partition.upper_offset - 1
        writer.end_section(
            base_offset=base,
            last_offset=last,
            record_count=section.record_count,
            min_timestamp=section.min_timestamp,
            max_timestamp=section.max_timestamp,
            unique_keys=unique_keys,
            holes=holes_between(offsets, base, last),
        )
        self._counts.add("records_in", work.records_in)
        self._counts.add("records_out", section.record_count)
        self._counts.add("records_dropped", work.records_in - section.record_count)


class _Section:
    """The numbers of an output section while it is written."""

    def __init__(self) -> None:
        self.record_count = 0
        self.min_timestamp = -1
        self.max_timestamp = -1

    def add(self, record_count: int, min_timestamp: int | None, max_timestamp: int | None) -> None:
        """Take in records, if there are any."""
        if record_count == 0 or min_timestamp is None or max_timestamp is None:
            return
        if self.record_count == 0:
            self.min_timestamp, self.max_timestamp = min_timestamp, max_timestamp
        else:
            self.min_timestamp = min(self.min_timestamp, min_timestamp)
            self.max_timestamp = max(self.max_timestamp, max_timestamp)
        self.record_count += record_count


def _codec_of(compression_type: str) -> Codec | None:
    """The topic's own codec, for batches that are merged; None where the producer's stays."""
    if compression_type == "producer":
        return None
    return Codec.NONE if compression_type == "uncompressed" else Codec[compression_type.upper()]


def _add_offsets(offsets: BitMap64, piece: Piece, extent: Extent) -> None:
    """Add those of the piece's records; batches with gaps, left by an earlier filter, are opened."""
    spans = spans_of(piece, extent.offset_shift)
    for first, last in spans.full.tolist():
        offsets.add_range(first, last + 1)
    for position in spans.gapped_positions.tolist():
        columns = decode_batch(piece.batches, position, offset_shift=extent.offset_shift)
        offsets |= BitMap64(columns.offsets.tolist())
