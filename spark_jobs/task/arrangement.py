"""The order in which a job's extents are read, so that every input file is read only forward."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple

from catalog.grouping import partition_groups
from catalog.jobs.byte_ranges import ByteRange, byte_range_of
from catalog.jobs.validation import input_problem
from catalog.model import PartitionId
from core.cycle_collector import collector_paused
from core.errors import InvalidInputError
from object_format.kernels.runtime.identity import KERNEL_DIGEST
from object_format.segment_file import check_format
from spark_jobs.task.retention_windows import windows_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from catalog.model import Extent, FileFormat, JobPartition, JobSpec


class InputPart(NamedTuple):
    """The extents of one partition in one input file, in offset order.

    `input_index` is the file's index in the job's inputs. `data` are the bytes of the extents. With a
    `byte_range`, the part has only the blocks that start in that range. Parts of different retention
    `window`s go into different output sections. The section also covers the `controls_after`, the offsets of
    control batches that the job removes after the part.

    It is a tuple, because a task over wide files creates tens of thousands of them.
    """

    input_index: int
    extents: tuple[Extent, ...]
    data: ByteRange
    byte_range: ByteRange | None = None
    window: int = 0
    controls_after: int = 0

    @classmethod
    def of(cls, input_index: int, extents: tuple[Extent, ...]) -> InputPart:
        """Return the whole part of a file that has these extents."""
        return cls(input_index, extents, byte_range_of(extents))

    @property
    def upper_offset(self) -> int:
        """The offset after the part and the control batches after it."""
        return self.extents[-1].last_offset + 1 + self.controls_after

    @property
    def has_bytes(self) -> bool:
        """Return True if the part has bytes to read."""
        return self.data.end > self.data.start

    @property
    def section_index(self) -> ByteRange | None:
        """Location of the section's index, or None. Only a section with an index is read in parts."""
        located = {(extent.index_position, extent.index_length) for extent in self.extents if extent.length}
        position, length = located.pop() if len(located) == 1 else (0, 0)
        return ByteRange(position, position + length) if length else None

    @property
    def read_start(self) -> int:
        """Byte from which blocks of the part start: the start of its data or of its byte range."""
        return self.data.start if self.byte_range is None else max(self.data.start, self.byte_range.start)

    @property
    def read_end(self) -> int:
        """Byte before which blocks of the part start."""
        return self.data.end if self.byte_range is None else min(self.data.end, self.byte_range.end)

    @property
    def cut_before(self) -> bool:
        """Return True if the section's data starts before the byte range."""
        return self.byte_range is not None and self.has_bytes and self.data.start < self.byte_range.start

    @property
    def cut_behind(self) -> bool:
        """Return True if the section's data continues after the byte range."""
        return self.byte_range is not None and self.has_bytes and self.byte_range.end < self.data.end

    def offset_of(self, stored: int | None) -> int:
        """Return the first offset of a block whose first batch has the stored offset `stored`.

        A batch that no extent covers has no offset. For such a block, return the base offset of the next
        extent, or the end of the part. None stands for the position after the last block.
        """
        for extent in self.extents:
            if stored is not None and extent.length and stored <= extent.last_offset - extent.offset_shift:
                return max(stored + extent.offset_shift, extent.base_offset)
        return self.upper_offset


@dataclass(frozen=True)
class PartitionWork:
    """One partition of a job and its parts, oldest first."""

    partition: JobPartition
    parts: tuple[InputPart, ...]

    @cached_property
    def records_in(self) -> int:
        """Number of records according to the catalog."""
        return sum(extent.record_count for part in self.parts for extent in part.extents)

    @property
    def unique_keys(self) -> bool:
        """Return True if no key can occur twice: at most one part has bytes, and it has each key once."""
        parts = [part for part in self.parts if part.has_bytes]
        return len(parts) <= 1 and all(extent.unique_keys for part in parts for extent in part.extents)

    @property
    def name(self) -> str:
        """Topic and partition, for messages."""
        return f"{self.partition.topic_name}-{self.partition.partition}"

    @property
    def partition_id(self) -> PartitionId:
        """Identifier of the partition's section in each file."""
        return PartitionId(self.partition.topic_id, self.partition.partition)

    def narrowed(self, parts: Sequence[InputPart]) -> PartitionWork:
        """Return the same partition with only these consecutive parts."""
        partition = replace(
            self.partition,
            base_offset=parts[0].extents[0].base_offset,
            upper_offset=parts[-1].upper_offset,
        )
        return PartitionWork(partition, tuple(parts))

    def by_window(self) -> list[PartitionWork]:
        """Split the parts by retention window; each result becomes one output section."""
        if self.parts[0].window == self.parts[-1].window:
            return [self]
        groups = groupby(self.parts, key=lambda part: part.window)
        return [self.narrowed(tuple(parts)) for _, parts in groups]


@collector_paused()
def arrange(spec: JobSpec) -> list[PartitionWork]:
    """Return the job's partitions in the order of sections in files, each with its parts in offset order.

    Partitions without offsets are left out. The cost is one pass over the extents and sorting them. Keys of
    an extent are unique only if these kernels wrote its file: others may have compared keys differently.

    Raise UnsupportedFormatError if this version cannot read an input. Raise InvalidInputError unless the
    extents and control batches of every partition cover [base_offset, upper_offset) without gap or overlap,
    and no input's part overlaps another's.
    """
    partitions = {(each.topic_id.int, each.partition): each for each in spec.partitions}
    parts: dict[tuple[int, int], list[InputPart]] = {key: [] for key in partitions}
    for index, job_input in enumerate(spec.inputs):
        for extents in partition_groups(_verified(job_input.extents)):
            if len(extents) > 1:  # wide files have one extent of each partition
                extents.sort(key=_base_offset)
            first = extents[0]
            found = parts.get((first.topic_id.int, first.partition))
            if found is None:
                raise InvalidInputError(
                    f"job {spec.job_id}: {job_input.object_name} has an extent of"
                    f" {first.topic_id}/{first.partition}, which is not a partition of the job"
                )
            found.append(InputPart.of(index, tuple(extents)))
    work = []
    for key in sorted(partitions):
        partition = partitions[key]
        ordered = tuple(sorted(parts[key], key=lambda part: part.extents[0].base_offset))
        _check_cover(spec, partition, [extent for part in ordered for extent in part.extents])
        if ordered:
            ordered = _with_controls(partition, ordered)
            work.append(PartitionWork(partition, _with_windows(partition, ordered, spec.now_ms)))
    return work


def _with_controls(partition: JobPartition, parts: tuple[InputPart, ...]) -> tuple[InputPart, ...]:
    """Add the control batches between and after the parts, which cover the range together with these."""
    if not partition.controls:
        return parts
    ends = [*(part.extents[0].base_offset for part in parts[1:]), partition.upper_offset]
    return tuple(
        part._replace(controls_after=end - part.upper_offset) for part, end in zip(parts, ends, strict=True)
    )


def _verified(extents: Iterable[Extent]) -> Iterator[Extent]:
    """Yield the extents of a file that this version can read, without `unique_keys` of other kernels."""
    known: FileFormat | None = None
    for extent in extents:
        if extent.format is not known:  # the extents of a file share one
            known = extent.format
            check_format(extent.object_name, known.version, known.required_features)
        foreign = extent.unique_keys and known.kernel_digest != KERNEL_DIGEST
        yield extent._replace(unique_keys=False) if foreign else extent


def _with_windows(
    partition: JobPartition, parts: tuple[InputPart, ...], now_ms: int
) -> tuple[InputPart, ...]:
    if not partition.deduplicate or partition.expires_after_ms is None:
        return parts
    newest_ms = [max(extent.max_timestamp for extent in part.extents) for part in parts]
    windows = windows_of(newest_ms, partition.expires_after_ms, now_ms)
    return tuple(part._replace(window=window) for part, window in zip(parts, windows, strict=True))


class InputUse(NamedTuple):
    """How long a pass needs an input file.

    `last_position` is the index of the last partition that reads the file, `last_part` its part there, and
    `end` the byte after the last data that is read.
    """

    last_position: int
    last_part: InputPart
    end: int


def input_uses(work: Sequence[PartitionWork], *, deduplicated_only: bool) -> dict[int, InputUse]:
    """Return how long each input is needed, by input index; inputs that nothing reads are left out."""
    last: dict[int, tuple[int, InputPart]] = {}
    ends: dict[int, int] = {}
    for position, each in enumerate(work):
        if deduplicated_only and not each.partition.deduplicate:
            continue
        for part in each.parts:
            start, end = part.data
            if start < end:
                index = part.input_index
                last[index] = position, part
                if end > ends.get(index, 0):
                    ends[index] = end
    return {index: InputUse(position, part, ends[index]) for index, (position, part) in last.items()}


def _base_offset(extent: Extent) -> int:
    return extent.base_offset


def _check_cover(spec: JobSpec, partition: JobPartition, extents: Sequence[Extent]) -> None:
    if problem := input_problem(partition, extents):
        raise InvalidInputError(
            f"job {spec.job_id}: partition {partition.topic_name}-{partition.partition}: the extents do not"
            f" cover [{partition.base_offset}, {partition.upper_offset}): {problem}"
        )
