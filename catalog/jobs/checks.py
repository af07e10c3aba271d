"""What a job's specification and its result must satisfy in themselves, whatever the catalog holds."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from catalog.errors import JobOutputError
from catalog.model import PartitionId
from core.errors import InvalidInputError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from catalog.model import Extent, JobResult, JobSpec, OutputExtent


def inputs_by_partition(spec: JobSpec) -> dict[PartitionId, list[Extent]]:
    """A job's extents by partition, in offset order."""
    grouped: dict[PartitionId, list[Extent]] = {}
    for file in spec.inputs:
        for extent in file.extents:
            grouped.setdefault(PartitionId(extent.topic_id, extent.partition), []).append(extent)
    for extents in grouped.values():
        extents.sort(key=lambda extent: extent.base_offset)
    return grouped


def outputs_by_partition(result: JobResult) -> dict[PartitionId, list[OutputExtent]]:
    """A result's extents by partition, in offset order."""
    grouped: dict[PartitionId, list[OutputExtent]] = {}
    for file in result.files:
        for extent in file.extents:
            grouped.setdefault(PartitionId(extent.topic_id, extent.partition), []).append(extent)
    for extents in grouped.values():
        extents.sort(key=lambda extent: extent.base_offset)
    return grouped


def check_spec(spec: JobSpec) -> None:
    """Raise InvalidInputError unless each partition's extents cover its range, without gap or overlap."""
    if not spec.inputs:
        raise InvalidInputError(f"job {spec.job_id} has no inputs")
    if len(spec.hash_seed) != 16:
        raise InvalidInputError(f"job {spec.job_id} has a hash seed of {len(spec.hash_seed)} bytes, not 16")
    grouped = inputs_by_partition(spec)
    named = [PartitionId(each.topic_id, each.partition) for each in spec.partitions]
    if sorted(named) != sorted(grouped):
        raise InvalidInputError(f"job {spec.job_id} names other partitions than its inputs have")
    for partition in spec.partitions:
        key = PartitionId(partition.topic_id, partition.partition)
        problem = uncovered(grouped[key], partition.base_offset, partition.upper_offset)
        if problem:
            raise InvalidInputError(
                f"job {spec.job_id}, topic {partition.topic_name}, partition {partition.partition}: "
                f"its inputs do not cover [{partition.base_offset}, {partition.upper_offset}): {problem}"
            )


def uncovered(extents: Sequence[Extent | OutputExtent], base_offset: int, upper_offset: int) -> str:
    """What is wrong with `extents`, by offset, as a cover of [base_offset, upper_offset); else empty."""
    if not extents:
        return "" if base_offset == upper_offset else "there is none"
    if extents[0].base_offset != base_offset:
        return f"they begin at {extents[0].base_offset}"
    for before, after in pairwise(extents):
        if after.base_offset != before.last_offset + 1:
            return f"one ends at {before.last_offset}, the next begins at {after.base_offset}"
    if extents[-1].last_offset + 1 != upper_offset:
        return f"they end at {extents[-1].last_offset}"
    return ""


def check_result(spec: JobSpec, result: JobResult) -> None:
    """Raise JobOutputError unless the outputs cover, per partition, exactly what the job took."""
    outputs = outputs_by_partition(result)
    inputs = inputs_by_partition(spec)
    named = {PartitionId(each.topic_id, each.partition) for each in spec.partitions}
    if foreign := sorted(outputs.keys() - named):
        raise JobOutputError(
            f"job {spec.job_id}: its result has topic {foreign[0].topic_id}, partition "
            f"{foreign[0].partition}, which is not part of the job"
        )
    for partition in spec.partitions:
        key = PartitionId(partition.topic_id, partition.partition)
        place = f"job {spec.job_id}, topic {partition.topic_name}, partition {partition.partition}"
        written = outputs.get(key, [])
        problem = uncovered(written, partition.base_offset, partition.upper_offset)
        if problem:
            raise JobOutputError(
                f"{place}: its outputs do not cover "
                f"[{partition.base_offset}, {partition.upper_offset}): {problem}"
            )
        _check_counts(written, inputs[key], place)


def _check_counts(outputs: Iterable[OutputExtent], inputs: Iterable[Extent], place: str) -> None:
    written = 0
    for extent in outputs:
        if not 0 <= extent.record_count <= extent.last_offset - extent.base_offset + 1:
            raise JobOutputError(
                f"{place}: {extent.record_count} records in [{extent.base_offset}, {extent.last_offset}]"
            )
        written += extent.record_count
    taken = sum(extent.record_count for extent in inputs)
    if written > taken:
        raise JobOutputError(f"{place}: {written} records came out of {taken}")
