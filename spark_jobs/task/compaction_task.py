"""One compaction job, in one process: two passes over its inputs, of which each only goes forward.

For each partition, in the order of sections in every segment file:

1. Pass 1 (deduplicated partitions only) reads the partition's sections newest first and finds the survivors:
   one Roaring bitmap of offsets.
   While it has compressed batches open, it thins them for pass 2, as far as there is room for what is left
   (`object_format.dedupe.early_filter`).
2. Pass 2 reads the same sections oldest first and writes what survives into the output file of the
   partition's cleanup policy; what is not deduplicated is copied as it stands. Sections of which pass 1 has
   all that is left are not read. What expires at different times goes into files of its own (`spells`).

Each pass has a stream of its own in each input, opened when it is first needed, at that section, and closed
after the last section that it is needed for: two ranged GETs per input file, whatever the number of
partitions, and one where a file has nothing to deduplicate, or nothing that is to be read again. What is held
does not depend on the size of files: the key table, a buffer for each open stream, the parts of an upload for
each cleanup policy and spell, the bitmap of one partition, and what is thinned ahead.

Nothing here knows Spark or the catalog. Nothing is visible before every partition is done and what was read
agrees with what the catalog counts: the attempt's outputs then become objects, and part of the log only when
the catalog takes the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from catalog.model import JobResult
from object_format.dedupe import EarlyFilter, KeyTable, SurvivorFinder, Survivors
from object_format.record_batch.decompression import Scratch
from spark_jobs.task.arrangement import arrange, input_uses
from spark_jobs.task.counts import TaskCounts
from spark_jobs.task.input_pass import InputPass, placed
from spark_jobs.task.output_files import OutputFiles, OutputPolicy
from spark_jobs.task.partition_writer import PartitionWriter, rewriting_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from catalog.model import JobSpec
    from core.clock import Clock
    from core.ids import Ids
    from object_format.dedupe.early_filter import FilteredSection
    from object_store.interface import ObjectStore
    from spark_jobs.task.arrangement import PartitionWork

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
        self._attempt_id = attempt_id
        self._hooks = hooks
        self._work = arrange(spec)
        self._counts = TaskCounts(store, clock)
        self._outputs = OutputFiles(store, spec, attempt_id, ids, self._counts)
        self._table = self._make_table()
        surveyed = input_uses(self._work, deduplicated_only=True)
        copied = input_uses(self._work, deduplicated_only=False)
        self._inputs = copied.keys()
        self._counts.add("input_files", len(copied))
        read_size = stream_buffer(len(surveyed) + len(copied))
        self._survey, self._copy = (
            InputPass(spec, store, uses, read_size=read_size, check=self._hooks.check, counts=self._counts)
            for uses in (surveyed, copied)
        )
        self._writer = PartitionWriter(spec, self._copy, self._outputs, self._counts)
        self._early_filter = EarlyFilter(timers=self._counts.codec_timers)
        self._scratch = Scratch(self._counts.codec_timers)

    def run(self) -> JobResult:
        counts = self._counts
        for place, work in enumerate(self._work):
            self._hooks.check()
            survivors = None
            if work.partition.deduplicate and self._table is not None:
                with counts.timed("find_survivors_ms"):
                    survivors = self._find_survivors(work, self._table)
            with counts.timed("write_ms"):
                self._write(work, survivors)
            counts.add("partitions", 1)
            self._survey.close_after(place)
            self._copy.close_after(place)
            self._hooks.progress(place + 1, len(self._work))
        with counts.timed("complete_ms"):
            files = self._outputs.complete()
        read_once = self._inputs - (self._survey.opened & self._copy.opened)
        counts.add("input_files_read_once", len(read_once))
        counts.at_least("largest_buffer_bytes", self._early_filter.peak_bytes)
        counts.add("compacted_files", len(files))
        counts.add("compacted_bytes", sum(file.size for file in files))
        return JobResult(
            job_id=self._spec.job_id, attempt_id=self._attempt_id, files=files, counts=counts.finish()
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
        table_bytes = table_bytes_for(max(records), self._spec.table_bytes)
        self._counts.at_least("table_bytes", table_bytes)
        return KeyTable(table_bytes)

    def _find_survivors(self, work: PartitionWork, table: KeyTable) -> Survivors:
        self._early_filter.begin_partition(rewriting_of(self._spec, work.partition, exact=True))
        finder = SurvivorFinder(
            table,
            self._spec.hash_seed,
            reaches_log_start=work.partition.reaches_log_start,
            now_ms=self._spec.now_ms,
            expected_records=work.records_in,
            early_filter=self._early_filter,
            scratch=self._scratch,
        )

        for part in reversed(work.parts):
            if not part.has_bytes:
                continue
            finder.begin_section(unique_keys=all(extent.unique_keys for extent in part.extents))
            for piece, extent, place in self._survey.pieces(work, part):
                with self._counts.timed("kernels_ms"), placed(place):
                    finder.feed(
                        piece.batches,
                        offset_shift=extent.offset_shift,
                        leader_epoch=extent.leader_epoch,
                        origin=place,
                    )
            with self._counts.timed("kernels_ms"):
                finder.end_section()
        with self._counts.timed("kernels_ms"):
            survivors = finder.finish()
        for name in ("keys", "keys_outside_table", "tombstones_dropped", "records_invalid"):
            self._counts.add(name, getattr(survivors, name))
        self._counts.at_least("largest_buffer_bytes", survivors.max_buffer_bytes)
        self._counts.at_least("largest_buffer_bytes", self._survey.largest_buffer)
        return survivors

    def _write(self, work: PartitionWork, survivors: Survivors | None) -> None:
        policy = OutputPolicy.of(work.partition.cleanup_policy)
        ahead = self._ahead_of(work) if survivors else {}
        sections = work.by_spell()
        begin = 0
        for series, each in enumerate(sections):
            here = survivors
            if survivors is not None and len(sections) > 1:
                here = survivors.between(each.partition.base_offset, each.partition.upper_offset - 1)
            self._writer.write(
                each,
                here,
                file_number=self._outputs.next_number(policy, series),
                series=series,
                ahead={place - begin: done for place, done in ahead.items() if place >= begin},
            )
            begin += len(each.parts)

    def _ahead_of(self, work: PartitionWork) -> dict[int, FilteredSection]:
        """What pass 1 has left of parts, by their place."""
        fed = [place for place, part in enumerate(work.parts) if part.has_bytes]
        return dict(zip(reversed(fed), self._early_filter.sections, strict=True))


def table_bytes_for(records: int, most: int) -> int:
    """The size of a key table for so many records of one partition, within the job's bound."""
    return min(most, max(_SMALLEST_TABLE, _TABLE_BYTES_PER_RECORD * records))


def stream_buffer(streams: int) -> int:
    """The buffer of each of so many streams, in bytes."""
    share = _STREAM_BUFFERS // max(streams, 1)
    return max(_SMALLEST_STREAM_BUFFER, min(_LARGEST_STREAM_BUFFER, share))
