"""Groups of small partitions end at their limits, and before a partition that is not small."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from catalog.model import PartitionId
from object_format.segment_file import SECTION_START_LENGTH
from spark_jobs.task.arrangement import InputPart, PartitionWork, arrange
from spark_jobs.task.output_files import OutputPolicy
from spark_jobs.task.small_sections.plan import FileRange, GroupLimits, GroupPlan, plan_group
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.model import JobSpec

FILES = 2
PARTITIONS = 5
RECORDS = 3
"""Of each section."""


@pytest.fixture
def harness(tmp_path: Path) -> CompactionHarness:
    return CompactionHarness(tmp_path)


def equal_sections(harness: CompactionHarness, policy: str = "compact") -> JobSpec:
    topic = harness.topic(policy)
    for _ in range(FILES):
        pairs = [(b"%d" % key, b"value") for key in range(RECORDS)]
        harness.log.ingest({PartitionId(topic, index): [batch(*pairs)] for index in range(PARTITIONS)})
    return harness.log.job()


def group(
    spec: JobSpec,
    works: list[PartitionWork] | None = None,
    first: int = 0,
    *,
    max_file_bytes: int = 1 << 20,
    key_capacity: int = 1000,
    limits: GroupLimits | None = None,
) -> GroupPlan | None:
    return plan_group(
        spec,
        arrange(spec) if works is None else works,
        first,
        max_file_bytes=max_file_bytes,
        key_capacity=key_capacity,
        limits=GroupLimits() if limits is None else limits,
    )


def size(plan: GroupPlan | None) -> int:
    return 0 if plan is None else len(plan.works)


def test_a_group_ends_exactly_at_its_limits(harness: CompactionHarness) -> None:
    spec = equal_sections(harness)
    works = arrange(spec)
    for count in (1, 2, 4):
        start = works[0].parts[0].data.start - SECTION_START_LENGTH
        end = works[count - 1].parts[0].data.end  # the files are alike
        records = count * FILES * RECORDS

        plan = group(spec, limits=GroupLimits(bytes=FILES * (end - start)))
        assert plan is not None
        assert (size(plan), plan.total_bytes) == (count, FILES * (end - start))
        assert (plan.records, plan.max_records) == (records, FILES * RECORDS)
        assert plan.files == dict.fromkeys(range(FILES), FileRange(start, end))
        assert size(group(spec, limits=GroupLimits(bytes=FILES * (end - start) - 1))) == count - 1
        assert size(group(spec, max_file_bytes=end - start)) == count
        assert size(group(spec, max_file_bytes=end - start - 1)) == count - 1
        assert size(group(spec, limits=GroupLimits(records=records))) == count
        assert size(group(spec, limits=GroupLimits(records=records - 1))) == count - 1


def test_a_partition_above_a_limit_is_in_no_group(harness: CompactionHarness) -> None:
    spec = equal_sections(harness)
    part = arrange(spec)[0].parts[0]
    data_bytes = FILES * (part.data.end - part.data.start)

    assert size(group(spec, limits=GroupLimits(partition_bytes=data_bytes))) == PARTITIONS
    assert group(spec, limits=GroupLimits(partition_bytes=data_bytes - 1)) is None
    assert size(group(spec, limits=GroupLimits(partition_records=FILES * RECORDS))) == PARTITIONS
    assert group(spec, limits=GroupLimits(partition_records=FILES * RECORDS - 1)) is None
    assert size(group(spec, key_capacity=FILES * RECORDS)) == PARTITIONS
    assert group(spec, key_capacity=FILES * RECORDS - 1) is None


def test_only_partitions_that_are_deduplicated_need_a_key_table(harness: CompactionHarness) -> None:
    assert size(group(equal_sections(harness, "delete"), key_capacity=0)) == PARTITIONS


def test_a_group_begins_at_any_partition(harness: CompactionHarness) -> None:
    spec = equal_sections(harness)
    works = arrange(spec)

    plan = group(spec, first=2)

    assert plan is not None
    assert list(plan.works) == works[2:]
    assert plan.files[0].start == works[2].parts[0].data.start - SECTION_START_LENGTH


def test_a_group_has_partitions_of_one_kind(harness: CompactionHarness) -> None:
    equal_sections(harness)
    spec = equal_sections(harness, "delete")

    first, second = group(spec), group(spec, first=PARTITIONS)

    assert first is not None
    assert second is not None
    assert (size(first), first.policy, first.deduplicate) == (PARTITIONS, OutputPolicy.COMPACT, True)
    assert (size(second), second.policy, second.deduplicate) == (PARTITIONS, OutputPolicy.DELETE, False)


def test_a_partition_of_several_output_sections_is_in_no_group(harness: CompactionHarness) -> None:
    spec = equal_sections(harness)
    works = arrange(spec)
    first, last = works[2].parts
    works[2] = replace(works[2], parts=(first, last._replace(window=1)))

    assert size(group(spec, works)) == 2


def test_the_offsets_of_a_partition_fit_64_containers_of_holes(harness: CompactionHarness) -> None:
    spec = equal_sections(harness)
    works = arrange(spec)
    for span, expected in ((64 << 16, PARTITIONS), ((64 << 16) + 1, 2)):
        wide = replace(works[2].partition, base_offset=7, upper_offset=7 + span)
        assert size(group(spec, [*works[:2], replace(works[2], partition=wide), *works[3:]])) == expected


def test_extents_that_claim_the_same_batches_are_in_no_group(harness: CompactionHarness) -> None:
    """A rejected batch is between the two extents of its section, which have different shifts."""
    topic = harness.topic()
    batches = [batch((b"a", b"1")), batch((b"a", b"2"), rejected=True), batch((b"b", b"3"))]
    harness.log.ingest({PartitionId(topic, index): batches for index in range(3)})
    spec = harness.log.job()
    works = arrange(spec)
    (part,) = works[1].parts
    first, second = part.extents
    assert (first.last_offset, second.base_offset, second.offset_shift) == (0, 1, -1)
    assert size(group(spec, works)) == 3
    for shift, expected in ((0, 3), (1, 1)):
        extents = (first, second._replace(offset_shift=shift))
        works[1] = replace(works[1], parts=(InputPart.of(part.input_index, extents),))
        assert size(group(spec, works)) == expected
