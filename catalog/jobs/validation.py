"""Checks of job specifications and job results that need no other data of the catalog."""

from __future__ import annotations

from heapq import merge
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from catalog.errors import JobOutputError
from catalog.grouping import InPartition, by_partition
from catalog.model import PartitionId
from core.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from catalog.model import Extent, JobPartition, JobResult, JobSpec, OutputExtent


class _OffsetRange(Protocol):
    """Contiguous offsets."""

    @property
    def base_offset(self) -> int: ...
    @property
    def last_offset(self) -> int: ...


class _PartitionRange(_OffsetRange, InPartition, Protocol):
    """Common attributes of input extents and output extents."""


_Range = TypeVar("_Range", bound=_PartitionRange)


def inputs_by_partition(spec: JobSpec) -> dict[PartitionId, list[Extent]]:
    """Return a job's extents by partition, in offset order."""
    return _by_partition(extent for file in spec.inputs for extent in file.extents)


def outputs_by_partition(result: JobResult) -> dict[PartitionId, list[OutputExtent]]:
    """Return a result's extents by partition, in offset order."""
    return _by_partition(extent for file in result.files for extent in file.extents)


def _by_partition(extents: Iterable[_Range]) -> dict[PartitionId, list[_Range]]:
    grouped = by_partition(extents)
    for group in grouped.values():
        group.sort(key=_base_offset)
    return grouped


def _base_offset(extent: _OffsetRange) -> int:
    return extent.base_offset


def check_spec(spec: JobSpec) -> None:
    """Raise InvalidInputError unless each partition's extents cover its range without gap or overlap."""
    if not spec.inputs:
        raise InvalidInputError(f"job {spec.job_id} has no inputs")
    if len(spec.hash_seed) != 16:
        raise InvalidInputError(f"job {spec.job_id} has a hash seed of {len(spec.hash_seed)} bytes, not 16")
    inputs = inputs_by_partition(spec)
    partitions = [PartitionId(each.topic_id, each.partition) for each in spec.partitions]
    if sorted(partitions) != sorted(inputs):
        raise InvalidInputError(f"job {spec.job_id} names other partitions than its inputs have")
    for partition in spec.partitions:
        key = PartitionId(partition.topic_id, partition.partition)
        problem = input_problem(partition, inputs[key])
        if problem:
            raise InvalidInputError(
                f"job {spec.job_id}, topic {partition.topic_name}, partition {partition.partition}: "
                f"its inputs do not cover [{partition.base_offset}, {partition.upper_offset}): {problem}"
            )


class _Offsets(NamedTuple):
    """Offsets of adjacent control batches, which no file has."""

    base_offset: int
    last_offset: int


def input_problem(partition: JobPartition, extents: Sequence[Extent]) -> str:
    """Describe why a job's extents and control batches do not cover its range of a partition; else return "".

    Extents that are not in offset order are a problem, too. The range begins with an extent.
    """
    if extents and extents[0].base_offset != partition.base_offset:
        return f"they begin at {extents[0].base_offset}"
    if not partition.controls:
        return coverage_problem(extents, partition.base_offset, partition.upper_offset)
    ranges = [_Offsets(extent.base_offset, extent.last_offset) for extent in extents]
    controls = [_Offsets(*run) for run in partition.controls]
    covered = list(merge(ranges, controls))  # Sorting would hide extents that are not in offset order.
    return coverage_problem(covered, partition.base_offset, partition.upper_offset)


def coverage_problem(extents: Sequence[_OffsetRange], base_offset: int, upper_offset: int) -> str:
    """Describe why `extents`, in offset order, do not cover [base_offset, upper_offset); else return ""."""
    if not extents:
        return "" if base_offset == upper_offset else "there are no extents"
    if extents[0].base_offset != base_offset:
        return f"they begin at {extents[0].base_offset}"
    for before, after in pairwise(extents):
        if after.base_offset != before.last_offset + 1:
            return f"one ends at {before.last_offset}, the next begins at {after.base_offset}"
    if extents[-1].last_offset + 1 != upper_offset:
        return f"they end at {extents[-1].last_offset}"
    return ""


def check_result(spec: JobSpec, result: JobResult) -> None:
    """Raise JobOutputError unless the outputs cover exactly the job's range of each partition."""
    if result.job_id != spec.job_id:
        raise JobOutputError(f"the result of job {result.job_id} is not one of job {spec.job_id}")
    outputs = outputs_by_partition(result)
    inputs = inputs_by_partition(spec)
    partitions = {PartitionId(each.topic_id, each.partition) for each in spec.partitions}
    if foreign := sorted(outputs.keys() - partitions):
        raise JobOutputError(
            f"job {spec.job_id}: its result has topic {foreign[0].topic_id}, partition "
            f"{foreign[0].partition}, which is not part of the job"
        )
    for partition in spec.partitions:
        key = PartitionId(partition.topic_id, partition.partition)
        where = f"job {spec.job_id}, topic {partition.topic_name}, partition {partition.partition}"
        written = outputs.get(key, [])
        problem = coverage_problem(written, partition.base_offset, partition.upper_offset)
        if problem:
            raise JobOutputError(
                f"{where}: its outputs do not cover "
                f"[{partition.base_offset}, {partition.upper_offset}): {problem}"
            )
        _check_counts(written, inputs[key], where)


def _check_counts(outputs: Iterable[OutputExtent], inputs: Iterable[Extent], where: str) -> None:
    written = 0
    for extent in outputs:
        if not 0 <= extent.record_count <= extent.last_offset - extent.base_offset + 1:
            raise JobOutputError(
                f"{where}: {extent.record_count} records in [{extent.base_offset}, {extent.last_offset}]"
            )
        written += extent.record_count
    read = sum(extent.record_count for extent in inputs)
    if written > read:
        raise JobOutputError(f"{where}: {written} records were written, but only {read} were read")
