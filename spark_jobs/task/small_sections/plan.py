"""Chooses the adjacent partitions of a job that are processed together, and describes them by columns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from object_format.segment_file import SECTION_START_LENGTH
from object_format.segment_file.checksum import file_seed
from spark_jobs.task.extent_cut import are_disjoint
from spark_jobs.task.output_files import OutputPolicy
from spark_jobs.task.partition_writer import rewriting_of
from spark_jobs.task.small_sections.columns import (
    EXTENT_FIELDS,
    FILE_FIELDS,
    NO_CODEC,
    PARTITION_FIELDS,
    SECTION_FIELDS,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import Extent, JobSpec
    from spark_jobs.task.arrangement import InputPart, PartitionWork

Column = npt.NDArray[np.int64]

_MAX_SPAN: Final = 1 << 22
"""Offsets of a partition: up to 64 containers of holes."""


class GroupLimits(NamedTuple):
    """Upper bounds of a group, and of a partition in a group.

    `bytes` are those of all files from the first to the last section. They bound the memory of the kernels.
    """

    bytes: int = 2 << 20
    records: int = 1 << 18
    partition_bytes: int = 512 << 10
    partition_records: int = 1 << 15


class FileRange(NamedTuple):
    """The bytes [start, end) of an input file that a group needs."""

    start: int
    end: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """Adjacent partitions of one output policy, and their columns (`columns`).

    `files` are the ranges by index of the input, and `parts` those of `sections`. `file_rows` have the seeds,
    starts and locations of files in an array of `total_bytes`. `extent_rows` and `bounds` have a row for each
    extent with bytes.
    """

    works: tuple[PartitionWork, ...]
    policy: OutputPolicy
    deduplicate: bool
    files: dict[int, FileRange]
    parts: tuple[InputPart, ...]
    file_rows: Column
    partitions: Column
    topics: bytes
    sections: Column
    extent_rows: Column
    bounds: Column
    aborted: Column
    total_bytes: int
    records: int
    max_records: int


class _Columns:
    """Rows of the partitions of a group that is being chosen."""

    def __init__(self, spec: JobSpec, limits: GroupLimits, max_file_bytes: int) -> None:
        self.spec = spec
        self.limits = limits
        self.max_file_bytes = max_file_bytes
        self.works: list[PartitionWork] = []
        self.files: dict[int, FileRange] = {}
        self.slots: dict[int, int] = {}
        self.parts: list[InputPart] = []
        self.partitions: list[tuple[int, ...]] = []
        self.sections: list[tuple[int, ...]] = []
        self.extents: list[tuple[int, ...]] = []
        self.bounds: list[tuple[int, ...]] = []
        self.aborted: list[tuple[int, ...]] = []
        self.total_bytes = self.records = self.max_records = 0

    def add(self, work: PartitionWork) -> bool:
        """Add a partition; return False, and change nothing, if it does not fit."""
        records = work.records_in
        ranges = self._extended(work.parts)
        if (
            ranges is None
            or records > self.limits.partition_records
            or records + self.records > self.limits.records
        ):
            return False
        grown = sum(
            each.end - (self.files[index].end if index in self.files else each.start)
            for index, each in ranges.items()
        )
        if self.total_bytes + grown > self.limits.bytes:
            return False
        self.files.update(ranges)
        self.total_bytes += grown
        self.records += records
        self.max_records = max(self.max_records, records)
        self._add_rows(work)
        return True

    def _extended(self, parts: Sequence[InputPart]) -> dict[int, FileRange] | None:
        """Return the ranges of the parts' files, up to these parts; None if one of them does not fit."""
        found: dict[int, FileRange] = {}
        size = 0
        for part in parts:
            start, end = part.data
            if start == end:
                continue
            size += end - start
            start -= SECTION_START_LENGTH
            begin, reached = self.files.get(part.input_index, (start, start))
            if start < reached or end - begin > self.max_file_bytes:
                return None
            found[part.input_index] = FileRange(begin, end)
        return found if found and size <= self.limits.partition_bytes else None

    def _add_rows(self, work: PartitionWork) -> None:
        first, first_aborted = len(self.sections), len(self.aborted)
        for part in work.parts:
            extents = [extent for extent in part.extents if extent.length]
            if extents:
                self._add_section(part, extents)
        self.aborted += sorted(work.partition.aborted)
        partition = work.partition
        options = rewriting_of(self.spec, partition, exact=True)
        self.partitions.append(
            (
                first,
                len(self.sections),
                first_aborted,
                len(self.aborted),
                partition.partition,
                partition.base_offset,
                partition.upper_offset,
                partition.reaches_log_start,
                partition.deduplicate or work.unique_keys,
                options.delete_horizon_ms is not None,
                options.delete_horizon_ms or 0,
                options.merge,
                NO_CODEC if options.merged_codec is None else options.merged_codec,
                *options.merge_limits,
            )
        )
        self.works.append(work)

    def _add_section(self, part: InputPart, extents: list[Extent]) -> None:
        slot = self.slots.setdefault(part.input_index, len(self.slots))
        first = len(self.extents)
        for extent in extents:
            shift = extent.offset_shift
            self.bounds.append((extent.base_offset - shift, extent.last_offset - shift, shift))
            self.extents.append(
                (extent.leader_epoch, extent.record_count, extent.min_timestamp, extent.max_timestamp)
            )
        self.sections.append((slot, part.data.start, part.data.end, first, len(self.extents)))
        self.parts.append(part)

    def plan(self, policy: OutputPolicy, *, deduplicate: bool) -> GroupPlan:
        """Return the group, which has at least one partition."""
        file_rows = []
        at = 0
        for index in self.slots:
            file = self.files[index]
            file_rows.append(
                (file_seed(self.spec.inputs[index].file_id), file.start, at, at + file.end - file.start)
            )
            at += file.end - file.start
        return GroupPlan(
            works=tuple(self.works),
            policy=policy,
            deduplicate=deduplicate,
            files={index: self.files[index] for index in self.slots},
            parts=tuple(self.parts),
            file_rows=_rows(file_rows, FILE_FIELDS),
            partitions=_rows(self.partitions, PARTITION_FIELDS),
            topics=b"".join([work.partition.topic_id.bytes for work in self.works]),
            sections=_rows(self.sections, SECTION_FIELDS),
            extent_rows=_rows(self.extents, EXTENT_FIELDS),
            bounds=_rows(self.bounds, 3),
            aborted=_rows(self.aborted, 3),
            total_bytes=at,
            records=self.records,
            max_records=self.max_records,
        )


def plan_group(
    spec: JobSpec,
    works: Sequence[PartitionWork],
    first: int,
    *,
    max_file_bytes: int,
    key_capacity: int,
    limits: GroupLimits,
) -> GroupPlan | None:
    """Return a group of the partitions from index `first` on; None if that one is not small.

    A group needs at most `max_file_bytes` of each file, which is the size of a stream's buffer. Partitions
    that are deduplicated have at most `key_capacity` records.
    """
    columns = _Columns(spec, limits, max_file_bytes)
    policy, deduplicate = kind = _kind(works[first])
    for position in range(first, len(works)):
        work = works[position]
        if (
            not _is_plain(work)
            or _kind(work) != kind
            or (work.partition.deduplicate and work.records_in > key_capacity)
            or not columns.add(work)
        ):
            break
    return columns.plan(policy, deduplicate=deduplicate) if columns.works else None


def _kind(work: PartitionWork) -> tuple[OutputPolicy, bool]:
    return OutputPolicy.of(work.partition.cleanup_policy), work.partition.deduplicate


def _is_plain(work: PartitionWork) -> bool:
    """Return True if the partition is one section of the output, and all extents are sound."""
    parts = work.parts
    return (
        parts[0].window == parts[-1].window
        and work.partition.upper_offset - work.partition.base_offset <= _MAX_SPAN
        and all(are_disjoint(part.extents) for part in parts)
    )


def _rows(rows: Sequence[tuple[int, ...]], fields: int) -> Column:
    return np.array(rows, np.int64).reshape(len(rows), fields)
