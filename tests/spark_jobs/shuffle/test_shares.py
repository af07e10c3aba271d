"""Division of a job's input into shares, and the requests for a cut file."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.jobs.byte_ranges import ByteRange
from catalog.model import Extent, FileKind, JobPartition, PartitionId
from core.errors import CorruptDataError
from object_format.codecs.codec import Codec
from object_format.segment_file import SegmentKind
from object_store.local.store import LocalStore
from spark_jobs.report import CompactionReport
from spark_jobs.shuffle.plan import plan_shuffle
from spark_jobs.shuffle.shares import Share, ShareSizes, make_shares, runs_of
from spark_jobs.task.arrangement import InputPart, PartitionWork
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import BatchToWrite, batch
from tests.spark_jobs.shuffle.shuffle_in_memory import run_in_memory

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.model import JobResult, JobSpec
    from spark_jobs.shuffle.plan import ShufflePlan

SMALL = ShareSizes(share_bytes=4000, min_piece_bytes=1000)


@pytest.fixture
def harness(tmp_path: Path) -> CompactionHarness:
    return CompactionHarness(tmp_path)


def batches(count: int, *, keys: int, value: bytes = b"v" * 60, first: int = 0) -> list[BatchToWrite]:
    """Return batches of ten records each."""
    return [
        batch(*((b"key-%d" % ((first + 10 * number + each) % keys), value) for each in range(10)))
        for number in range(count)
    ]


def run(harness: CompactionHarness, spec: JobSpec, plan: ShufflePlan) -> JobResult:
    return run_in_memory(spec, plan, lambda: LocalStore(harness.directory, harness.ids), harness.ids)


def test_one_section_of_one_file_is_divided_among_shares(harness: CompactionHarness) -> None:
    """The result is exact with two GETs per byte range; the outputs of byte ranges are adjacent sections."""
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: batches(40, keys=130)}, 900, SegmentKind.COMPACTED)
    spec = harness.log.job(table_bytes=1024)
    plan = plan_shuffle(spec, SMALL)

    result = run(harness, spec, plan)

    harness.log.publish(spec, result)
    harness.log.check()
    assert len(plan.shares) > 6
    assert plan.cut_files == {0: list(range(len(plan.shares)))}
    assert result.counts["get_requests"] == 2 * result.counts["byte_ranges"] == 2 * len(plan.shares)
    assert result.counts["index_reads"] == 2 * (len(plan.shares) - 1)
    assert (result.counts["input_files"], result.counts["input_files_cut"]) == (1, 1)
    assert (result.counts["records_in"], result.counts["records_out"]) == (400, 130)
    assert result.counts["keys"] == 130
    assert all(extent.unique_keys for extent in harness.log.extents[partition_id])
    report = CompactionReport(jobs=1)
    report.add(result)
    assert report.get_requests_per_input_file == 2.0
    assert report.gets_in_words() == f"2.0 for each of {len(plan.shares)} byte ranges of 1 cut files"


def test_a_compacted_file_is_divided_among_shares(harness: CompactionHarness) -> None:
    """The job also has small files, which stay whole, and topics with and without deduplication."""
    partition_id, other = PartitionId(harness.topic(), 0), PartitionId(harness.topic("delete"), 3)
    sections = {partition_id: batches(40, keys=170), other: batches(12, keys=5)}
    harness.log.ingest(sections, 900, SegmentKind.COMPACTED)
    harness.log.ingest({partition_id: batches(2, keys=170, first=100)})
    harness.log.ingest({partition_id: batches(2, keys=400, first=300), other: batches(1, keys=5)})
    spec = harness.log.job(table_bytes=1024)
    plan = plan_shuffle(spec, SMALL)

    result = run(harness, spec, plan)

    harness.log.publish(spec, result)
    harness.log.check()
    assert 0 < result.counts["input_files_cut"] < result.counts["input_files"] == 3
    reads = result.counts["byte_ranges"] + result.counts["input_files"] - result.counts["input_files_cut"]
    once = result.counts["byte_ranges_read_once"] + result.counts["input_files_read_once"]
    assert once > 0
    assert result.counts["get_requests"] == 2 * reads - once


def test_a_byte_range_without_the_start_of_a_block_is_empty(harness: CompactionHarness) -> None:
    """One share reads a batch that is larger than several shares."""
    partition_id = PartitionId(harness.topic(), 0)
    large = batch((b"large", b"x" * 9000), (b"a", b"1"))
    harness.log.ingest(
        {partition_id: [batch((b"a", b"0")), large, *batches(3, keys=7)]}, 500, SegmentKind.COMPACTED
    )
    spec = harness.log.job(table_bytes=1024)
    plan = plan_shuffle(spec, SMALL)

    result = run(harness, spec, plan)

    harness.log.publish(spec, result)
    harness.log.check()
    assert len(result.files) < len(plan.shares)


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_byte_range_without_batches_of_an_extent_writes_no_section(
    harness: CompactionHarness, policy: str
) -> None:
    """The log has only the second half of the section's offsets."""
    partition_id = PartitionId(harness.topic(policy), 0)
    harness.log.ingest({partition_id: batches(40, keys=130)}, 900, SegmentKind.COMPACTED)
    (extent,) = harness.log.extents[partition_id]
    harness.log.extents[partition_id] = [extent._replace(base_offset=200, record_count=200)]
    spec = harness.log.job(table_bytes=1024)
    plan = plan_shuffle(spec, SMALL)

    result = run(harness, spec, plan)

    written = sorted((each.base_offset, each.last_offset) for file in result.files for each in file.extents)
    assert 1 < len(written) < len(plan.shares)
    assert (written[0][0], written[-1][1]) == (200, 399)
    assert all(one[1] + 1 == other[0] for one, other in pairwise(written))
    assert result.counts["records_in"] == 200


def test_a_section_without_an_index_is_not_cut(harness: CompactionHarness) -> None:
    """Sections of ingestion files have none: a file is cut between them."""
    topic = harness.topic()
    rejected = [
        BatchToWrite(each.records, Codec.NONE, rejected=number % 3 != 1)
        for number, each in enumerate(batches(30, keys=90))
    ]
    harness.log.ingest({PartitionId(topic, each): rejected for each in range(4)}, block_target=1)
    harness.log.ingest({PartitionId(topic, 9): rejected}, block_target=1)
    spec = harness.log.job(table_bytes=1024)
    plan = plan_shuffle(spec, ShareSizes(share_bytes=1300, min_piece_bytes=1300))

    result = run(harness, spec, plan)

    assert [share.byte_range is None for share in plan.shares] == [False] * 4 + [True]
    assert result.counts.get("index_reads", 0) == 0
    assert result.counts["records_in"] == 500
    harness.log.publish(spec, result)
    harness.log.check()


def test_a_damaged_index_is_detected(harness: CompactionHarness) -> None:
    """Its checksum is verified, and its length and its blocks are compared with the data."""
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: batches(40, keys=130)}, 900, SegmentKind.COMPACTED)
    spec = harness.log.job(table_bytes=1024)
    (job_input,) = spec.inputs
    (extent,) = job_input.extents
    path = harness.directory / job_input.object_name
    intact = path.read_bytes()
    damaged = bytearray(intact)
    damaged[extent.index_position + 20] ^= 1
    path.write_bytes(damaged)
    with pytest.raises(CorruptDataError, match="checksum of a SECTION_INDEX block"):
        run(harness, spec, plan_shuffle(spec, SMALL))
    path.write_bytes(intact)
    shorter = replace(job_input, extents=(extent._replace(length=extent.length - 100),))
    with pytest.raises(CorruptDataError, match="bytes of data, but the catalog has"):
        run(harness, spec := replace(spec, inputs=(shorter,)), plan_shuffle(spec, SMALL))


def test_missing_records_are_detected_when_results_are_merged(harness: CompactionHarness) -> None:
    """No single share knows its number of records; the catalog knows the total."""
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: batches(40, keys=130)}, 900, SegmentKind.COMPACTED)
    spec = harness.log.job(table_bytes=1024)
    plan = plan_shuffle(spec, SMALL)

    with pytest.raises(CorruptDataError, match="but the catalog counts 400"):
        run(harness, spec, replace(plan, shares=plan.shares[:-1]))


SECTIONS = st.lists(st.tuples(st.integers(1, 5000), st.integers(0, 300)), min_size=1, max_size=6)


@given(
    sections=SECTIONS,
    files=st.integers(1, 4),
    piece_bytes=st.sampled_from([50, 700, 3000]),
    has_index=st.booleans(),
)
def test_each_byte_of_data_is_in_exactly_one_share(
    sections: list[tuple[int, int]], files: int, piece_bytes: int, *, has_index: bool
) -> None:
    """The sections of a cut file are in consecutive byte ranges. Only a section with an index is cut."""
    works = works_of(sections, files, has_index=has_index)
    shares = make_shares(
        works, ShareSizes(share_bytes=piece_bytes, min_shares=3, min_piece_bytes=piece_bytes)
    )

    whole = [index for share in shares if share.byte_range is None for index in share.inputs]
    assert len(whole) == len(set(whole))
    for index in range(files):
        byte_ranges = [share.byte_range for share in shares if share.byte_range and share.inputs == (index,)]
        if index in whole:
            assert not byte_ranges
            continue
        assert byte_ranges[0].start == 0
        assert [each.start for each in byte_ranges[1:]] == [each.end for each in byte_ranges[:-1]]
        assert byte_ranges[-1].end == max(part.data.end for work in works for part in work.parts)
    if not has_index:
        starts = {part.data.start for work in works for part in work.parts}
        assert {share.byte_range.start for share in shares if share.byte_range} <= {0} | starts
    seen: dict[tuple[int, int], list[ByteRange | None]] = {}
    for share in shares:
        for run in runs_of(works, share):
            parts = run.work.parts
            assert all(part.byte_range is None for part in parts) or len(parts) == 1
            for part in parts:
                seen.setdefault((run.partition_index, part.input_index), []).append(part.byte_range)
    assert seen.keys() == {
        (number, part.input_index) for number, work in enumerate(works) for part in work.parts
    }
    for each in seen.values():  # one whole part, or byte ranges in file order
        assert each == [None] or each == sorted(
            each, key=lambda byte_range: byte_range.start if byte_range else -1
        )


def works_of(sections: list[tuple[int, int]], files: int, *, has_index: bool = True) -> list[PartitionWork]:
    """Return the partitions of files that all have these sections, given as (length, gap before it)."""
    topic = UUID(int=1)
    works = []
    for partition in range(len(sections)):
        position = sum(length + gap for length, gap in sections[:partition]) + sections[partition][1]
        extents = [
            Extent(
                topic_id=topic,
                partition=partition,
                base_offset=10 * index,
                last_offset=10 * index + 9,
                record_count=10,
                min_timestamp=0,
                max_timestamp=0,
                file_id=UUID(int=100 + index),
                object_name=f"{index}.seg",
                file_kind=FileKind.INGESTION,
                position=position,
                length=sections[partition][0],
                index_position=0,
                index_length=int(has_index),
                offset_shift=10 * index,
                leader_epoch=0,
                unique_keys=False,
                committed_ms=index,
            )
            for index in range(files)
        ]
        job_partition = JobPartition(
            topic_id=topic,
            partition=partition,
            topic_name="topic",
            cleanup_policy="compact",
            compression_type="producer",
            deduplicate=True,
            reaches_log_start=True,
            base_offset=0,
            upper_offset=10 * files,
            delete_retention_ms=1,
        )
        parts = tuple(InputPart.of(index, (extent,)) for index, extent in enumerate(extents))
        works.append(PartitionWork(job_partition, parts))
    return works


def test_cuts_are_at_nearby_borders_of_sections() -> None:
    shares = make_shares(
        works_of([(1000, 20), (1050, 20), (950, 20)], 1),
        ShareSizes(share_bytes=1000, min_shares=1, min_piece_bytes=1),
    )

    assert shares == (
        Share((0,), ByteRange(0, 1040)),
        Share((0,), ByteRange(1040, 2110)),
        Share((0,), ByteRange(2110, 3060)),
    )


def test_files_slightly_larger_than_a_share_are_not_cut() -> None:
    shares = make_shares(works_of([(1400, 20)], 2), ShareSizes(share_bytes=1000, min_shares=1))

    assert [share.byte_range for share in shares] == [None] * len(shares)
    assert [index for share in shares for index in share.inputs] == [0, 1]
