"""Both passes over groups of small partitions, with a few kernel calls for each group.

A file that agents write has hundreds or thousands of sections of a few records. Entering each of them in
Python takes far longer than processing its records. So the sections of adjacent partitions are processed
together: each pass copies the bytes of the group from the buffers of its streams into one array, and kernels
process all sections of the array.

The kernels change nothing that others see. They stop before the first partition that has a fault, does not
fit their memory, or uses a codec that kernels lack. The runner writes the partitions before it, and leaves
that one to the task, which reads its bytes again from the same buffers. So every error is raised by one code,
with its file and position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from core.cycle_collector import collector_paused
from object_format.buffers import readable
from object_format.codecs.native import SCRATCH_BYTES, native_codec_table
from object_format.dedupe.fingerprints import seed_words
from object_format.kernels.batches.layout import BATCH_OVERHEAD, BATCH_ROW
from object_format.kernels.dedupe.filter import MAX_GROWTH, TOTALS
from object_format.kernels.dedupe.fingerprints import WORDS
from object_format.kernels.dedupe.key_table import (
    COUNT_INVALID,
    COUNT_KEYS,
    COUNT_TOMBSTONES_DROPPED,
    COUNTS,
)
from object_format.segment_file import SECTION_START_LENGTH, SectionEntry
from object_format.segment_file.checksum import file_seed
from object_format.segment_file.layout import BLOCK_TARGET
from spark_jobs.task.small_sections.columns import (
    FILE_START,
    OUT_DATA,
    OUT_DATA_LENGTH,
    OUT_END,
    OUT_FIELDS,
    OUT_HOLES,
    OUT_HOLES_LENGTH,
    OUT_INDEX,
    OUT_INDEX_LENGTH,
    OUT_NEWEST,
    OUT_OLDEST,
    OUT_RECORDS,
    OUT_SAVED,
    OUT_START,
    PIECE_COMPRESSED,
    PIECE_FIELDS,
    PIECE_SECTION,
    SECTION_EXTENTS_END,
    SECTIONS_END,
    UNIQUE_KEYS,
    Group,
    Survivors,
)
from spark_jobs.task.small_sections.plan import GroupLimits, plan_group
from spark_jobs.task.small_sections.read import read_partitions
from spark_jobs.task.small_sections.survivors import (
    MIN_HOME_SLOTS,
    TABLE_RECORD_SLOTS,
    find_in_partitions,
)
from spark_jobs.task.small_sections.write import BLOCK_FIELDS, Output, write_partitions

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import JobSpec
    from object_format.segment_file import SegmentFileWriter
    from spark_jobs.task.arrangement import InputPart, PartitionWork
    from spark_jobs.task.counts import TaskCounts
    from spark_jobs.task.input_pass import InputPass
    from spark_jobs.task.output_files import OutputFiles
    from spark_jobs.task.small_sections.plan import Column, GroupPlan

_OPENED_BYTES: Final = 16 << 20
"""Memory for the decompressed records of a group."""

_SECTION_OVERHEAD: Final = 1 << 10
"""Bytes of the output for each partition, besides its batches."""

_MAX_CONTAINERS: Final = 65
_CONTAINER_BYTES: Final = 8192
_MAX_BLOCKS: Final = 64
_MAX_SKIPPED: Final = 64
_INT64_MAX: Final = np.iinfo(np.int64).max
_SERIES: Final = 0  # that of partitions with one retention window
_NO_CODECS: Final = np.zeros(1, np.int64)
_NO_SURVIVORS: Final = Survivors(*[np.empty(0, np.int64)] * 4)

DEFAULT_LIMITS: Final = GroupLimits()


@dataclass(slots=True)
class _Found:
    """Survivors of the partitions of a group, and the counts of each (`COUNTS`)."""

    survivors: Survivors
    totals: Column


class SmallSections:
    """Processes the partitions of `works` in groups, where they are small."""

    def __init__(
        self,
        spec: JobSpec,
        works: Sequence[PartitionWork],
        passes: tuple[InputPass, InputPass],
        outputs: OutputFiles,
        counts: TaskCounts,
        *,
        read_size: int,
        key_capacity: int,
        limits: GroupLimits = DEFAULT_LIMITS,
    ) -> None:
        """`read_size` is the size of a stream's buffer, and `key_capacity` that of the task's key table."""
        self._spec = spec
        self._works = works
        self._pass1, self._pass2 = passes
        self._outputs = outputs
        self._counts = counts
        self._read_size = read_size
        self._key_capacity = key_capacity
        self._limits = limits
        self._failures = self._skipped = 0

    @collector_paused()
    def run(self, first: int) -> int:
        """Process partitions from index `first` on; return their number.

        It is 0 if the task must process that partition itself. After a group that stops early, more and more
        partitions are left to the task before the next attempt, so that a job without suitable partitions
        loses little time.
        """
        if len(self._works) == 1:  # the task opens its inputs in turn
            return 0
        if self._skipped:
            self._skipped -= 1
            return 0
        plan = plan_group(
            self._spec,
            self._works,
            first,
            max_file_bytes=self._read_size,
            key_capacity=self._key_capacity,
            limits=self._limits,
        )
        if plan is None:
            return 0
        run = _GroupRun(self._spec, plan, self._outputs, self._counts)
        done, is_stopped = run.run(self._pass1, self._pass2)
        self._failures = self._failures + 1 if is_stopped else 0
        if is_stopped:
            self._skipped = min(1 << (self._failures - 1), _MAX_SKIPPED) - (done == 0)
        for position in range(first, first + done):
            self._pass1.close_after(position)
            self._pass2.close_after(position)
        return done


class _GroupRun:
    """One group: pass 1, pass 2, and the output."""

    def __init__(self, spec: JobSpec, plan: GroupPlan, outputs: OutputFiles, counts: TaskCounts) -> None:
        self._spec = spec
        self._plan = plan
        self._outputs = outputs
        self._counts = counts
        self._data = np.empty(plan.total_bytes, np.uint8)
        self._group = self._make_group()

    def run(self, pass1: InputPass, pass2: InputPass) -> tuple[int, bool]:
        """Return the number of partitions that were written, and whether the next one stopped the kernels."""
        plan, count = self._plan, len(self._plan.works)
        found = None
        again: Sequence[int] = range(len(plan.parts))
        if plan.deduplicate:
            with self._counts.timed("find_survivors_ms"):
                count = self._read(pass1, again, count)
                count, found = self._find(count)
        with self._counts.timed("write_ms"):
            if plan.deduplicate:
                again = self._incomplete_sections(count)
            count = self._read(pass2, again, count)
            written, is_full = self._write(count, found) if count else (0, False)
        self._count(written, found)
        if plan.deduplicate:
            self._consume(pass1, range(len(plan.parts)), written)
        self._consume(pass2, again, written)
        return written, written < len(plan.works) and not is_full

    def _read(self, source: InputPass, sections: Sequence[int], count: int) -> int:
        """Read these sections of the first `count` partitions; return for how many this was possible."""
        if not sections or not count:
            return count
        if not self._gather(source, sections):
            return 0
        with self._counts.timed("kernels_ms"):
            return int(read_partitions(self._group, count, self._plan.deduplicate))

    def _make_group(self) -> Group:
        plan = self._plan
        max_batches = plan.total_bytes // BATCH_OVERHEAD
        codec_table = native_codec_table()
        opens = plan.deduplicate and codec_table is not None
        opened = np.empty(_OPENED_BYTES if opens else 0, np.uint8)
        return Group(
            data=readable(self._data.data),
            files=plan.file_rows,
            partitions=plan.partitions,
            topics=readable(plan.topics),
            sections=plan.sections,
            extents=plan.extent_rows,
            bounds=plan.bounds,
            aborted=plan.aborted,
            pieces=np.empty((max_batches, PIECE_FIELDS), np.int64),
            rows=np.empty(max_batches, BATCH_ROW),
            piece_ends=np.zeros(len(plan.works), np.int64),
            cut=np.empty((max_batches, 5), np.int64),
            found=np.zeros(len(plan.bounds), np.int64),
            dropped=np.zeros(len(plan.bounds), np.int64),
            opened=opened,
            records=readable(opened.data),
            indexes=np.arange(max_batches),
            codec_table=codec_table if codec_table is not None else _NO_CODECS,
        )

    def _gather(self, source: InputPass, sections: Sequence[int]) -> bool:
        """Copy the bytes of each file, from the first of these sections on, from the streams' buffers.

        Return False if a stream does not have the bytes.
        """
        plan = self._plan
        firsts: dict[int, InputPart] = {}
        for section in sections:
            firsts.setdefault(plan.parts[section].input_index, plan.parts[section])
        for part in firsts.values():
            source.prefetch(part)
        places = dict(zip(plan.files, plan.file_rows[:, FILE_START].tolist(), strict=True))
        for index, part in firsts.items():
            start, end = part.data.start - SECTION_START_LENGTH, plan.files[index].end
            found = source.peek(part, start, end)
            if found is None:
                return False
            at = places[index] + start - plan.files[index].start
            self._data[at : at + end - start] = found
        self._counts.at_least("largest_buffer_bytes", source.largest_buffer)
        return True

    def _find(self, count: int) -> tuple[int, _Found]:
        """Find the survivors of up to `count` partitions; return for how many this was possible."""
        plan = self._plan
        with self._counts.timed("kernels_ms"):
            survivors = Survivors(
                np.empty(plan.records, np.int64),
                np.empty(count, np.int64),
                np.empty(plan.records, np.int64),
                np.empty(count, np.int64),
            )
            totals = np.zeros((count, COUNTS), np.int64)
            table_slots = TABLE_RECORD_SLOTS * plan.max_records + MIN_HOME_SLOTS
            count = find_in_partitions(
                self._group,
                count,
                *seed_words(self._spec.hash_seed),
                self._spec.now_ms,
                np.empty(table_slots * WORDS, np.uint32),
                np.empty(plan.max_records * WORDS, np.uint32),
                np.empty(plan.max_records, np.int64),
                np.empty(plan.max_records, np.uint8),
                np.empty(plan.max_records, np.uint8),
                survivors,
                totals,
            )
        return count, _Found(survivors, totals)

    def _incomplete_sections(self, count: int) -> Sequence[int]:
        """Return the sections of the first `count` partitions that pass 2 must read.

        As in `EarlyFilter`, compressed batches that pass 1 has decompressed are not read again.
        """
        if not count:
            return ()
        group = self._group
        sections = int(group.partitions[count - 1, SECTIONS_END])
        pieces = group.pieces[: group.piece_ends[count - 1]]
        is_complete = np.bincount(pieces[:, PIECE_SECTION], minlength=sections) > 0
        is_complete[pieces[pieces[:, PIECE_COMPRESSED] == 0, PIECE_SECTION]] = False
        found: list[int] = np.flatnonzero(~is_complete).tolist()
        return found

    def _write(self, count: int, found: _Found | None) -> tuple[int, bool]:
        """Write up to `count` partitions; return their number, and whether the output file is then full."""
        plan, limit = self._plan, self._spec.output_bytes
        self._outputs.complete_full_file(plan.policy, _SERIES)
        writer = self._outputs.writer(plan.policy, _SERIES)
        output = self._make_output(writer)
        survivors = _NO_SURVIVORS if found is None else found.survivors
        with self._counts.timed("kernels_ms"):
            written = write_partitions(
                self._group,
                count,
                survivors,
                plan.deduplicate,
                output,
                _INT64_MAX if limit is None else limit - writer.data_bytes,
            )
        if not written:
            return 0, False
        rows = output.sections[:written]
        entries = [
            _entry_of(work, unique_keys=bool(unique), row=row)
            for work, unique, row in zip(
                plan.works, plan.partitions[:, UNIQUE_KEYS].tolist(), rows.tolist(), strict=False
            )
        ]
        writer.append_sections(output.out[: rows[-1, OUT_END] - output.position].data, entries)
        self._counts.add("merged_bytes_saved", int(rows[:, OUT_SAVED].sum()))
        self._counts.add("records_out", int(rows[:, OUT_RECORDS].sum()))
        is_limited = limit is not None and writer.data_bytes >= limit
        return written, is_limited

    def _make_output(self, writer: SegmentFileWriter) -> Output:
        plan, limits = self._plan, DEFAULT_LIMITS
        out_bytes = 2 * plan.total_bytes + MAX_GROWTH * plan.records + _SECTION_OVERHEAD * len(plan.works)
        piece_bytes = min(plan.total_bytes, limits.partition_bytes) + MAX_GROWTH * plan.max_records
        work_bytes = max(_OPENED_BYTES // 4 if plan.deduplicate else 0, piece_bytes + _SECTION_OVERHEAD)
        return Output(
            out=np.empty(out_bytes, np.uint8),
            seed=file_seed(writer.file_id),
            position=writer.position,
            block_target=BLOCK_TARGET,
            scratch_bytes=SCRATCH_BYTES,
            sections=np.empty((len(plan.works), OUT_FIELDS), np.int64),
            work=np.empty(work_bytes, np.uint8),
            compressed=np.empty(work_bytes if plan.deduplicate else 0, np.uint8),
            rewritten=np.empty((plan.total_bytes // BATCH_OVERHEAD, 4), np.int64),
            totals=np.zeros(TOTALS, np.int64),
            block=np.zeros(BLOCK_FIELDS, np.int64),
            index=np.empty((_MAX_BLOCKS, 3), np.int64),
            containers=np.empty((_MAX_CONTAINERS, 4), np.int64),
            holes=np.empty(_MAX_CONTAINERS * _CONTAINER_BYTES, np.uint8),
            kept=np.empty(plan.max_records, np.int64),
        )

    def _count(self, written: int, found: _Found | None) -> None:
        counts = self._counts
        counts.add("partitions", written)
        if not written:
            return
        group = self._group
        sections = int(group.partitions[written - 1, SECTIONS_END])
        extents = int(group.sections[sections - 1, SECTION_EXTENTS_END])
        records_in = int(group.found[:extents].sum())
        counts.add("records_in", records_in)
        counts.add("records_dropped", 0)
        counts.add_aborted(int(group.dropped[:extents].sum()))
        if found is not None:
            kept = int(found.survivors.offset_ends[written - 1])
            totals = found.totals[:written].sum(axis=0)
            counts.add("records_dropped", records_in - kept)
            counts.add("keys", int(totals[COUNT_KEYS]))
            counts.add("keys_outside_table", 0)
            counts.add("tombstones_dropped", int(totals[COUNT_TOMBSTONES_DROPPED]))
            counts.add("records_invalid", int(totals[COUNT_INVALID]))

    def _consume(self, source: InputPass, sections: Sequence[int], written: int) -> None:
        """Advance the streams to the last of these sections that belongs to a written partition."""
        if not written:
            return
        plan = self._plan
        end = plan.partitions[written - 1, SECTIONS_END]
        last = {plan.parts[section].input_index: plan.parts[section] for section in sections if section < end}
        for part in last.values():
            source.skip_to(part, part.data.end)


def _entry_of(work: PartitionWork, *, unique_keys: bool, row: list[int]) -> SectionEntry:
    partition = work.partition
    return SectionEntry(
        topic_id=partition.topic_id,
        partition=partition.partition,
        position=row[OUT_START],
        length=row[OUT_END] - row[OUT_START],
        data_position=row[OUT_DATA],
        data_length=row[OUT_DATA_LENGTH],
        index_position=row[OUT_INDEX],
        index_length=row[OUT_INDEX_LENGTH],
        holes_position=row[OUT_HOLES],
        holes_length=row[OUT_HOLES_LENGTH],
        base_offset=partition.base_offset,
        last_offset=partition.upper_offset - 1,
        record_count=row[OUT_RECORDS],
        min_timestamp=row[OUT_OLDEST],
        max_timestamp=row[OUT_NEWEST],
        unique_keys=unique_keys,
    )
