"""One compaction job, in one process: two passes over its inputs, of which each only goes forward.

For each partition, in the order of sections in every segment file:

1. Pass 1 (deduplicated partitions only) reads the partition's sections newest first and finds the survivors:
   one Roaring bitmap of offsets.
2. Pass 2 reads the same sections oldest first and writes what survives into the output file of the
   partition's cleanup policy; what is not deduplicated is copied as it stands.

Each pass has a stream of its own in each input, opened when it is first needed and closed after the last
section that it is needed for: two GETs per input file, one where a file has nothing to deduplicate, whatever
the number of partitions. What is held does not depend on the size of files: the key table, a buffer for each
open stream, the parts of two uploads, and the bitmap of one partition.

Nothing here knows Spark or the catalog. Nothing is visible before every partition is done and what was read
agrees with what the catalog counts: the attempt's outputs then become objects, and part of the log only when
the catalog takes the result.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyroaring import BitMap64

from bedrock.errors import CorruptDataError
from catalog.model import JobResult
from object_format.dedupe import KeyTable, SurvivorFinder, Survivors, filter_batches
from object_format.holes import holes_between
from object_format.record_batch import patch_offsets
from object_format.records import decode_batch
from object_store.accounting import RequestKind
from object_store.interface import Purpose
from spark_jobs.arrangement import arrange, last_uses
from spark_jobs.extent_cut import spans_of
from spark_jobs.input_pass import InputPass
from spark_jobs.output_files import OutputFiles, OutputPolicy
from spark_jobs.peak_memory import peak_rss_bytes, reset_peak

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from bedrock.clock import Clock
    from bedrock.ids import Ids
    from catalog.model import Extent, JobSpec
    from object_format.segment_file import SegmentFileWriter
    from object_store.interface import ObjectStore
    from spark_jobs.arrangement import PartitionWork
    from spark_jobs.extent_cut import Piece

_STREAM_BUFFERS = 64 << 20  # bytes that all open streams share
_LARGEST_STREAM_BUFFER = 1 << 20
_SMALLEST_STREAM_BUFFER = 64 << 10
_TABLE_BYTES_PER_RECORD = 24  # room for a table that is at most half full
_SMALLEST_TABLE = 1 << 16


def _go_on() -> None:
    """Never stops the work."""


def _say_nothing(_done: int, _total: int) -> None:
    """Reports to nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHooks:
    """How whoever started a task follows it.

    `check` is called between blocks, and raises to stop the work; `progress` after each partition, with how
    many are done and how many there are.
    """

    check: Callable[[], None] = _go_on
    progress: Callable[[int, int], None] = _say_nothing


def run_compaction(
    spec: JobSpec,
    store: ObjectStore,
    *,
    attempt_id: UUID,
    clock: Clock,
    ids: Ids,
    hooks: TaskHooks | None = None,
) -> JobResult:
    """Does the job and returns what the catalog needs to publish it.

    `store` is this task's own, so that its counts are the job's. Raises InvalidInputError for a job that does
    not fit together, CorruptDataError when an input is not what the catalog says, and the store's errors;
    after any of them, and after whatever `hooks.check` raises, the uploads are aborted.
    """
    reset_peak()
    task = _Task(spec, store, attempt_id, clock, ids, hooks or TaskHooks())
    try:
        return task.run()
    finally:
        task.close()


class _Task:
    def __init__(
        self, spec: JobSpec, store: ObjectStore, attempt_id: UUID, clock: Clock, ids: Ids, hooks: TaskHooks
    ) -> None:
        self._spec = spec
        self._store = store
        self._attempt_id = attempt_id
        self._clock = clock
        self._hooks = hooks
        self._work = arrange(spec)
        self._outputs = OutputFiles(store, spec, attempt_id, ids)
        self._before = store.counts.snapshot()
        self._counts: defaultdict[str, int] = defaultdict(int)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._table = self._make_table()
        surveyed = last_uses(self._work, deduplicated_only=True)
        copied = last_uses(self._work, deduplicated_only=False)
        self._counts["input_files"] = len(copied)
        self._counts["input_files_read_once"] = len(copied.keys() - surveyed.keys())
        read_size = _stream_buffer(len(surveyed) + len(copied))
        check = self._hooks.check
        self._survey = InputPass(spec, store, surveyed, read_size=read_size, check=check)
        self._copy = InputPass(spec, store, copied, read_size=read_size, check=check)

    def run(self) -> JobResult:
        for place, work in enumerate(self._work):
            self._hooks.check()
            self._run_partition(work)
            self._note_buffers()
            self._survey.close_after(place)
            self._copy.close_after(place)
            self._hooks.progress(place + 1, len(self._work))
        with self._timed("complete_ms"):
            files = self._outputs.complete()
        self._count_requests()
        self._counts.update({name: round(1000 * each) for name, each in self._seconds.items()})
        self._counts["compacted_files"] = len(files)
        self._counts["compacted_bytes"] = sum(file.size for file in files)
        self._counts["peak_rss_bytes"] = peak_rss_bytes()
        return JobResult(
            job_id=self._spec.job_id,
            attempt_id=self._attempt_id,
            files=files,
            counts=dict(self._counts),
        )

    def close(self) -> None:
        """Let go of everything; what is not complete is dropped."""
        try:
            self._outputs.abort()
        finally:
            self._survey.close()
            self._copy.close()

    def _make_table(self) -> KeyTable | None:
        """One table for all partitions, as large as the largest can need and the job allows."""
        records = [work.records_in for work in self._work if work.partition.deduplicate]
        if not records:
            return None
        wanted = max(_SMALLEST_TABLE, _TABLE_BYTES_PER_RECORD * max(records))
        table_bytes = min(self._spec.table_bytes, wanted)
        self._counts["table_bytes"] = table_bytes
        return KeyTable(table_bytes)

    def _run_partition(self, work: PartitionWork) -> None:
        survivors = None
        if work.partition.deduplicate and self._table is not None:
            with self._timed("find_survivors_ms"):
                survivors = self._find_survivors(work, self._table)
        writer = self._outputs.writer(OutputPolicy.of(work.partition.cleanup_policy))
        with self._timed("write_ms"):
            if survivors is None:
                self._copy_partition(work, writer)
            else:
                self._filter_partition(work, survivors, writer)
        self._counts["partitions"] += 1

    def _find_survivors(self, work: PartitionWork, table: KeyTable) -> Survivors:
        finder = SurvivorFinder(
            table,
            self._spec.hash_seed,
            reaches_log_start=work.partition.reaches_log_start,
            now_ms=self._spec.now_ms,
            expected_records=work.records_in,
        )
        for part in reversed(work.parts):
            if not part.has_bytes:
                continue
            finder.begin_section(unique_keys=all(extent.unique_keys for extent in part.extents))
            self._survey.read(
                work, part, lambda piece, extent: finder.feed(piece.batches, offset_shift=extent.offset_shift)
            )
            finder.end_section()
        survivors = finder.finish()
        for name in ("keys", "keys_outside_table", "tombstones_dropped", "records_invalid"):
            self._counts[name] += getattr(survivors, name)
        self._note_buffer(survivors.max_buffer_bytes)
        return survivors

    def _filter_partition(self, work: PartitionWork, survivors: Survivors, writer: SegmentFileWriter) -> None:
        section = _Section()
        delete_horizon_ms = self._spec.now_ms + work.partition.delete_retention_ms

        def take(piece: Piece, extent: Extent) -> None:
            filtered = filter_batches(
                piece.batches,
                survivors,
                offset_shift=extent.offset_shift,
                leader_epoch=extent.leader_epoch,
                delete_horizon_ms=delete_horizon_ms,
            )
            for batches in filtered.buffers:
                writer.append(batches)
            section.add(filtered.record_count, filtered.min_timestamp, filtered.max_timestamp)

        self._write_section(work, writer, take)
        if section.record_count != len(survivors.offsets):
            raise CorruptDataError(
                f"partition {work.name}: pass 1 found {len(survivors.offsets)} survivors,"
                f" pass 2 {section.record_count}",
                remedy="an input changed between the passes, which no object of ours does: check the store",
            )
        self._end_section(work, writer, section, survivors.offsets, unique_keys=survivors.exact)

    def _copy_partition(self, work: PartitionWork, writer: SegmentFileWriter) -> None:
        section = _Section()
        offsets = BitMap64()

        def take(piece: Piece, extent: Extent) -> None:
            _add_offsets(offsets, piece, extent)
            patch_offsets(piece.batches, extent.offset_shift, extent.leader_epoch)
            writer.append(piece.batches)
            section.add(piece.record_count, extent.min_timestamp, extent.max_timestamp)

        self._write_section(work, writer, take)
        if section.record_count != len(offsets):
            raise CorruptDataError(
                f"partition {work.name}: {section.record_count} records at {len(offsets)} offsets"
            )
        self._end_section(work, writer, section, offsets, unique_keys=work.unique_keys)

    def _write_section(
        self, work: PartitionWork, writer: SegmentFileWriter, take: Callable[[Piece, Extent], None]
    ) -> None:
        writer.begin_section(work.partition.topic_id, work.partition.partition)
        for part in work.parts:
            self._copy.read(work, part, take)

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
        self._counts["records_in"] += work.records_in
        self._counts["records_out"] += section.record_count
        self._counts["records_dropped"] += work.records_in - section.record_count

    def _count_requests(self) -> None:
        did = self._store.counts.snapshot() - self._before
        gets = did.of(RequestKind.GET, Purpose.COMPACTION)
        everything = did.of(purpose=Purpose.COMPACTION)
        self._counts["get_requests"] = gets.requests - gets.resumes
        self._counts["resumes"] = gets.resumes
        self._counts["retries"] = everything.retries
        self._counts["bytes_in"] = everything.bytes_in
        self._counts["bytes_out"] = everything.bytes_out

    def _note_buffers(self) -> None:
        self._note_buffer(self._survey.largest_buffer)
        self._note_buffer(self._copy.largest_buffer)

    def _note_buffer(self, size: int) -> None:
        self._counts["largest_buffer_bytes"] = max(self._counts["largest_buffer_bytes"], size)

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        begin = self._clock.monotonic()
        yield
        self._seconds[name] += self._clock.monotonic() - begin


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


def _add_offsets(offsets: BitMap64, piece: Piece, extent: Extent) -> None:
    """Add those of the piece's records; batches with gaps, left by an earlier filter, are opened."""
    spans = spans_of(piece, extent.offset_shift)
    for first, last in spans.full.tolist():
        offsets.add_range(first, last + 1)
    for position in spans.gapped_positions.tolist():
        columns = decode_batch(piece.batches, position, offset_shift=extent.offset_shift)
        offsets |= BitMap64(columns.offsets.tolist())


def _stream_buffer(streams: int) -> int:
    share = _STREAM_BUFFERS // max(streams, 1)
    return max(_SMALLEST_STREAM_BUFFER, min(_LARGEST_STREAM_BUFFER, share))
