"""One compaction job in one process: two passes over its inputs, each only forward.

For each partition, in the order of sections in segment files:

1. Pass 1 (deduplicated partitions only) reads the partition's sections, newest first, and finds the
   survivors: one Roaring bitmap of offsets. While it has compressed batches open, it already filters them for
   pass 2, as far as memory allows (`object_format.dedupe.early_filter`).
2. Pass 2 reads the same sections, oldest first, and writes the survivors into the output file of the
   partition's cleanup policy. Sections that are not deduplicated are copied. Sections that pass 1 has
   filtered completely are not read again. Records of different retention windows go into different files.

Small partitions go through both passes in groups (`spark_jobs.task.small_sections`), with the same results.

Each pass has one stream per input. It opens a stream at the first section that it needs, and closes it after
the last one. A thread reads ahead: the next bytes of each stream, and the start of the next input. So each
input file costs two ranged GETs, however many partitions it has, or one GET if one pass suffices. Memory does
not depend on the size of files: it holds the key table, two buffers for each open stream, upload parts for
each cleanup policy and window, the bitmap of one partition, and the batches that pass 1 has filtered early.

This module knows neither Spark nor the catalog. Outputs become visible only after every partition is done and
the records read agree with the catalog's counts. They become part of the log only when the catalog publishes
the result.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING

from catalog.model import JobResult
from object_format.dedupe import EarlyFilter, KeyTable, SurvivorFinder, Survivors
from object_format.record_batch.decompression import Scratch
from spark_jobs.task.arrangement import arrange, input_uses
from spark_jobs.task.counts import TaskCounts
from spark_jobs.task.input_pass import InputPass
from spark_jobs.task.output_files import OutputFiles, OutputPolicy
from spark_jobs.task.partition_writer import PartitionWriter, rewriting_of
from spark_jobs.task.small_sections.runner import DEFAULT_LIMITS, SmallSections

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor
    from uuid import UUID

    from catalog.model import JobSpec
    from core.clock import Clock
    from core.ids import Ids
    from object_format.dedupe.early_filter import FilteredSection
    from object_store.interface import ObjectStore
    from spark_jobs.task.arrangement import PartitionWork
    from spark_jobs.task.small_sections.plan import GroupLimits

_STREAM_BUFFERS = 64 << 20  # bytes, shared by all open streams
_MAX_STREAM_BUFFER = 1 << 20
_MIN_STREAM_BUFFER = 64 << 10
_STREAMS_OF_ONE_PARTITION = 2
_TABLE_BYTES_PER_RECORD = 24  # so that the table is at most half full
_MIN_TABLE_BYTES = 1 << 16


def _go_on() -> None:
    """Never stop the work."""


def _say_nothing(_done: int, _total: int) -> None:
    """Report nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskHooks:
    """Callbacks for the caller that started a task.

    The task calls `check` between blocks; it may raise to stop the work. The task calls `progress` after each
    partition with the number done and the total.
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
    reader: Executor | None = None,
    limits: GroupLimits = DEFAULT_LIMITS,
) -> JobResult:
    """Run the job and return the result that the catalog publishes.

    `reader` reads ahead, one range at a time; by default it is a thread of the task. `limits` are those of
    groups of small partitions.

    `store` belongs to this task alone, so that its request counts are the job's. Raise InvalidInputError for
    an inconsistent job, CorruptFileError if an input disagrees with the catalog, and the store's errors.
    After any error, also one raised by `hooks.check`, the uploads are aborted.
    """
    with ExitStack() as opened:
        if reader is None:
            reader = opened.enter_context(ThreadPoolExecutor(1, thread_name_prefix="read-ahead"))
        task = _Task(spec, store, attempt_id, clock, ids, hooks or TaskHooks(), reader, limits)
        opened.callback(task.close)
        return task.run()


class _Task:
    def __init__(
        self,
        spec: JobSpec,
        store: ObjectStore,
        attempt_id: UUID,
        clock: Clock,
        ids: Ids,
        hooks: TaskHooks,
        reader: Executor,
        limits: GroupLimits,
    ) -> None:
        self._spec = spec
        self._attempt_id = attempt_id
        self._hooks = hooks
        self._work = arrange(spec)
        self._counts = TaskCounts(store, clock)
        self._outputs = OutputFiles(store, spec, attempt_id, ids, self._counts)
        self._table = self._make_table()
        pass1_uses = input_uses(self._work, deduplicated_only=True)
        pass2_uses = input_uses(self._work, deduplicated_only=False)
        self._inputs = pass2_uses.keys()
        self._counts.add("input_files", len(pass2_uses))
        # Of a single partition, one input is open at a time; only the next one is requested early.
        streams = _STREAMS_OF_ONE_PARTITION if len(self._work) == 1 else len(pass1_uses) + len(pass2_uses)
        buffer_size, reads_ahead = stream_buffers(streams)
        self._pass1, self._pass2 = (
            InputPass(
                spec,
                store,
                uses,
                read_size=buffer_size,
                check=self._hooks.check,
                counts=self._counts,
                thread=reader if reads_ahead else None,
            )
            for uses in (pass1_uses, pass2_uses)
        )
        self._small_sections = SmallSections(
            spec,
            self._work,
            (self._pass1, self._pass2),
            self._outputs,
            self._counts,
            read_size=buffer_size,
            key_capacity=self._table.capacity if self._table is not None else 0,
            limits=limits,
        )
        self._writer = PartitionWriter(spec, self._pass2, self._outputs, self._counts)
        self._early_filter = EarlyFilter(timers=self._counts.codec_timers)
        self._scratch = Scratch(self._counts.codec_timers)

    def run(self) -> JobResult:
        counts = self._counts
        position = 0
        while position < len(self._work):
            self._hooks.check()
            done = self._small_sections.run(position)
            if not done:
                self._run_partition(position)
                done = 1
            for each in range(position, position + done):
                self._hooks.progress(each + 1, len(self._work))
            position += done
        with counts.timed("complete_ms"):
            files = self._outputs.complete()
        read_once = self._inputs - (self._pass1.opened & self._pass2.opened)
        counts.add("input_files_read_once", len(read_once))
        counts.at_least("largest_buffer_bytes", self._early_filter.peak_bytes)
        counts.add("compacted_files", len(files))
        counts.add("compacted_bytes", sum(file.size for file in files))
        return JobResult(
            job_id=self._spec.job_id, attempt_id=self._attempt_id, files=files, counts=counts.finish()
        )

    def _run_partition(self, position: int) -> None:
        work, counts = self._work[position], self._counts
        survivors = None
        if work.partition.deduplicate and self._table is not None:
            with counts.timed("find_survivors_ms"):
                survivors = self._find_survivors(work, self._table)
        with counts.timed("write_ms"):
            self._write(work, survivors)
        counts.add("partitions", 1)
        counts.add_aborted((self._pass2 if survivors is None else self._pass1).aborted_records)
        self._pass1.aborted_records = self._pass2.aborted_records = 0
        self._pass1.close_after(position)
        self._pass2.close_after(position)

    def close(self) -> None:
        """Close all streams and abort incomplete uploads."""
        with ExitStack() as last:
            last.callback(self._pass2.close)
            last.callback(self._pass1.close)
            self._outputs.abort()

    def _make_table(self) -> KeyTable | None:
        """Return one key table for all partitions, sized for the largest; None if none is needed."""
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

        parts = [part for part in reversed(work.parts) if part.has_bytes]
        for part, following in zip_longest(parts, parts[1:]):
            self._pass1.prefetch(part)
            self._pass1.prefetch(following)
            finder.begin_section(unique_keys=all(extent.unique_keys for extent in part.extents))
            for piece, extent, location in self._pass1.pieces(work, part):
                with self._counts.timed("kernels_ms"), self._pass1.located(location):
                    finder.feed(
                        piece.batches,
                        offset_shift=extent.offset_shift,
                        leader_epoch=extent.leader_epoch,
                        origin=location,
                    )
            with self._counts.timed("kernels_ms"), self._pass1.located():
                finder.end_section()
        with self._counts.timed("kernels_ms"), self._pass1.located():
            survivors = finder.finish()
        for name in ("keys", "keys_outside_table", "tombstones_dropped", "records_invalid"):
            self._counts.add(name, getattr(survivors, name))
        self._counts.at_least("largest_buffer_bytes", survivors.max_buffer_bytes)
        self._counts.at_least("largest_buffer_bytes", self._pass1.largest_buffer)
        return survivors

    def _write(self, work: PartitionWork, survivors: Survivors | None) -> None:
        policy = OutputPolicy.of(work.partition.cleanup_policy)
        ahead = self._ahead_of(work) if survivors else {}
        sections = work.by_window()
        begin = 0
        for series, each in enumerate(sections):
            here = survivors
            if survivors is not None and len(sections) > 1:
                here = survivors.between(each.partition.base_offset, each.partition.upper_offset - 1)
            self._outputs.complete_full_file(policy, series)
            self._writer.write(
                each,
                here,
                series=series,
                ahead={index - begin: done for index, done in ahead.items() if index >= begin},
            )
            begin += len(each.parts)

    def _ahead_of(self, work: PartitionWork) -> dict[int, FilteredSection]:
        """Return the batches that pass 1 has already filtered, by index of the part."""
        read = [index for index, part in enumerate(work.parts) if part.has_bytes]
        return dict(zip(reversed(read), self._early_filter.sections, strict=True))


def table_bytes_for(records: int, limit: int) -> int:
    """Return the size of a key table for that many records of one partition, at most `limit`."""
    return min(limit, max(_MIN_TABLE_BYTES, _TABLE_BYTES_PER_RECORD * records))


def stream_buffers(streams: int) -> tuple[int, bool]:
    """Return the buffer size for each of that many streams, and whether there is memory to read ahead.

    A stream that reads ahead has two buffers.
    """
    reads_ahead = 2 * streams * _MIN_STREAM_BUFFER <= _STREAM_BUFFERS
    return stream_buffer(2 * streams if reads_ahead else streams), reads_ahead


def stream_buffer(streams: int) -> int:
    """Return the buffer size in bytes for each of that many streams."""
    share = _STREAM_BUFFERS // max(streams, 1)
    return max(_MIN_STREAM_BUFFER, min(_MAX_STREAM_BUFFER, share))
