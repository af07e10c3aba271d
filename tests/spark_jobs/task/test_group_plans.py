"""Groups of small partitions end at their limits, and before a partition that is not small."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple

import pytest

from catalog.model import AbortedTransaction, PartitionId
from object_format.codecs.codec import Codec
from object_format.segment_file import SECTION_START_LENGTH
from object_format.segment_file.checksum import file_seed
from spark_jobs.task.arrangement import InputPart, PartitionWork, arrange
from spark_jobs.task.output_files import OutputPolicy
from spark_jobs.task.partition_writer import rewriting_of
from spark_jobs.task.small_sections.columns import (
    ABORTED,
    ABORTED_END,
    BASE_OFFSET,
    HAS_HORIZON,
    HORIZON,
    MAX_MERGED,
    MAX_MERGED_COMPRESSED,
    MERGED_CODEC,
    MERGES,
    NO_CODEC,
    NUMBER,
    PARTITION_FIELDS,
    REACHES_LOG_START,
    SECTIONS,
    SECTIONS_END,
    UNIQUE_KEYS,
    UPPER_OFFSET,
)
from spark_jobs.task.small_sections.plan import FileRange, GroupLimits, GroupPlan, plan_group
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import DELETE_RETENTION_MS, batch
from tests.spark_jobs.shuffle.test_shares import works_of

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


class Sizes(NamedTuple):
    """Data and records of a partition whose section is adjacent to the one before it."""

    data: int
    records: int = 1


def group_of(harness: CompactionHarness, sizes: list[Sizes]) -> int:
    """Return how many partitions of a file, with these sections, are in the first group by default."""
    spec = equal_sections(harness)
    works = []
    for work, each in zip(
        works_of([(each.data, SECTION_START_LENGTH) for each in sizes], 1), sizes, strict=True
    ):
        (part,) = work.parts
        (extent,) = part.extents
        part = part._replace(extents=(extent._replace(record_count=each.records),))
        works.append(replace(work, parts=(part,)))
    return size(group(spec, works, max_file_bytes=1 << 30, key_capacity=1 << 30))


MAX_BYTES = 512 << 10
MAX_RECORDS = 32_768


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([Sizes(MAX_BYTES)], 1),
        ([Sizes(MAX_BYTES + 1)], 0),
        ([Sizes(100, MAX_RECORDS)], 1),
        ([Sizes(100, MAX_RECORDS + 1)], 0),
        ([Sizes(MAX_BYTES - SECTION_START_LENGTH)] * 5, 4),
        ([Sizes(MAX_BYTES - SECTION_START_LENGTH)] * 3 + [Sizes(MAX_BYTES - SECTION_START_LENGTH + 1)], 3),
        ([Sizes(100, MAX_RECORDS)] * 9, 8),
        ([Sizes(100, MAX_RECORDS)] * 7 + [Sizes(100, MAX_RECORDS - 1), Sizes(100), Sizes(100)], 9),
    ],
)
def test_the_default_limits_are_those_of_the_documentation(
    harness: CompactionHarness, sizes: list[Sizes], expected: int
) -> None:
    """A group has up to 2 MiB of stored sections and 262,144 records (docs/explanation/compaction.md)."""
    assert group_of(harness, sizes) == expected


def test_columns_describe_the_partitions_of_a_group(harness: CompactionHarness) -> None:
    """Sections of several extents, extents without bytes, and partitions that differ in all settings."""
    topic = harness.topic()
    keys = [PartitionId(topic, index) for index in range(PARTITIONS)]
    for number in range(FILES + 1):
        pairs = [batch((b"%d" % number, bytes(10 * index))) for index in range(4)]
        pairs[1] = replace(pairs[1], rejected=number > 0)
        harness.log.ingest({key: pairs[: 2 + key.partition % 3] for key in keys[number % 2 :]})
    first, *others = harness.log.extents[keys[1]]
    harness.log.extents[keys[1]] = [first._replace(length=0, record_count=0), *others]
    spec = harness.log.job()
    options = [
        {"compression_type": "producer", "reaches_log_start": True, "delete_retention_ms": 0},
        {"compression_type": "lz4", "aborted": (AbortedTransaction(5, 3, 4), AbortedTransaction(2, 0, 1))},
        {"compression_type": "uncompressed", "reaches_log_start": False, "max_message_bytes": 500},
        {"deduplicate": False},
        {"aborted": (AbortedTransaction(1, 0, 0),), "delete_retention_ms": 77},
    ]
    spec = replace(
        spec,
        now_ms=0,
        partitions=tuple(
            replace(each, **changes)  # type: ignore[arg-type]  # of several types
            for each, changes in zip(spec.partitions, options, strict=True)
        ),
    )
    codecs = [NO_CODEC, Codec.LZ4, Codec.NONE, NO_CODEC, NO_CODEC]
    horizons = [0, DELETE_RETENTION_MS, None, DELETE_RETENTION_MS, 77]

    for begin, end in ((0, 3), (3, 4), (4, 5)):
        plan = group(spec, first=begin)

        assert plan is not None
        works = arrange(spec)[begin:end]
        assert list(plan.works) == works
        check_columns(spec, plan)
        rows = plan.partitions
        assert rows[:, MERGED_CODEC].tolist() == codecs[begin:end]
        assert rows[:, HAS_HORIZON].tolist() == [each is not None for each in horizons[begin:end]]
        assert rows[:, HORIZON].tolist() == [each or 0 for each in horizons[begin:end]]
        assert rows[:, UNIQUE_KEYS].tolist() == [each.partition.deduplicate for each in works]


def check_columns(spec: JobSpec, plan: GroupPlan) -> None:
    """Compare the columns of a group with the partitions, parts and extents that they describe."""
    works = plan.works
    parts = [[part for part in work.parts if part.has_bytes] for work in works]
    sections = [part for each in parts for part in each]
    assert plan.parts == tuple(sections)
    extents = [[each for each in part.extents if each.length] for part in sections]
    slots = list(dict.fromkeys(part.input_index for part in sections))
    lengths = [plan.files[index].end - plan.files[index].start for index in slots]
    ends = list(accumulate(lengths))
    for index in slots:
        data = [part.data for part in sections if part.input_index == index]
        assert plan.files[index] == FileRange(data[0].start - SECTION_START_LENGTH, data[-1].end)
    assert plan.file_rows.tolist() == [
        [file_seed(spec.inputs[index].file_id), plan.files[index].start, end - length, end]
        for index, length, end in zip(slots, lengths, ends, strict=True)
    ]
    assert plan.total_bytes == ends[-1]
    extent_ends = list(accumulate(map(len, extents)))
    assert plan.sections.tolist() == [
        [slots.index(part.input_index), part.data.start, part.data.end, end - len(each), end]
        for part, each, end in zip(sections, extents, extent_ends, strict=True)
    ]
    flat = [extent for each in extents for extent in each]
    assert plan.bounds.tolist() == [
        [each.base_offset - each.offset_shift, each.last_offset - each.offset_shift, each.offset_shift]
        for each in flat
    ]
    assert plan.extent_rows.tolist() == [
        [each.leader_epoch, each.record_count, each.min_timestamp, each.max_timestamp] for each in flat
    ]
    aborted = [sorted(work.partition.aborted) for work in works]
    assert plan.aborted.tolist() == [list(each) for of_one in aborted for each in of_one]
    assert plan.topics == b"".join(work.partition.topic_id.bytes for work in works)
    assert plan.partitions.shape == (len(works), PARTITION_FIELDS)
    section_ends = list(accumulate(map(len, parts)))
    aborted_ends = list(accumulate(map(len, aborted)))
    for number, (work, row) in enumerate(zip(works, plan.partitions.tolist(), strict=True)):
        partition = work.partition
        merges = rewriting_of(spec, partition, exact=True)
        assert (row[SECTIONS], row[SECTIONS_END]) == (
            section_ends[number] - len(parts[number]),
            section_ends[number],
        )
        assert (row[ABORTED], row[ABORTED_END]) == (
            aborted_ends[number] - len(aborted[number]),
            aborted_ends[number],
        )
        assert (row[NUMBER], row[REACHES_LOG_START]) == (partition.partition, partition.reaches_log_start)
        assert (row[BASE_OFFSET], row[UPPER_OFFSET]) == (partition.base_offset, partition.upper_offset)
        assert (row[MERGES], row[MAX_MERGED], row[MAX_MERGED_COMPRESSED]) == (
            spec.merge_batches,
            *merges.merge_limits,
        )
    assert plan.records == sum(work.records_in for work in works)
    assert plan.max_records == max(work.records_in for work in works)
