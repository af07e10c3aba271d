"""The shuffle plan without Spark, checked against the reference log, and the choice between plans."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.model import FileFormat, PartitionId
from core.errors import CorruptDataError, InvalidInputError
from object_format.dedupe import MAX_RETAINED_RECORDS, key_capacity
from object_format.kernels.runtime.identity import KERNEL_DIGEST
from object_store.local.store import LocalStore
from spark_jobs.shuffle.plan import PlanChoice, choose_plan, keys_expected, plan_shuffle
from spark_jobs.shuffle.shares import Share, ShareSizes, runs_of
from spark_jobs.task.arrangement import arrange
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import DELETE_RETENTION_MS, BatchToWrite, batch
from tests.spark_jobs.shuffle.shuffle_in_memory import run_in_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from catalog.model import Extent, JobResult, JobSpec
    from spark_jobs.shuffle.plan import ShufflePlan

TINY_TABLE = 384
"""Bytes of 28 slots, so that a few keys give many buckets."""


def run(harness: CompactionHarness, spec: JobSpec, plan: ShufflePlan | None = None) -> JobResult:
    return run_in_memory(
        spec, plan or plan_shuffle(spec), lambda: LocalStore(harness.directory, harness.ids), harness.ids
    )


def compact(
    harness: CompactionHarness,
    extents: Mapping[PartitionId, Sequence[Extent]] | None = None,
    *,
    table_bytes: int = TINY_TABLE,
    sizes: ShareSizes | None = None,
) -> JobResult:
    """Run a job through the stages, publish it, and check the log."""
    spec = harness.log.job(extents, table_bytes=table_bytes)
    result = run(harness, spec, plan_shuffle(spec, sizes))
    harness.log.publish(spec, result)
    harness.log.check()
    return result


def numbered(count: int, *, modulo: int, value: bytes | None = b"v", first: int = 0) -> BatchToWrite:
    return batch(*((b"key-%d" % ((first + index) % modulo), value) for index in range(count)))


@pytest.fixture
def harness(tmp_path: Path) -> CompactionHarness:
    return CompactionHarness(tmp_path)


@pytest.fixture(scope="module")
def new_harness(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], CompactionHarness]:
    """Return a function that makes a harness for each example of a property test."""
    return lambda: CompactionHarness(tmp_path_factory.mktemp("harness"))


def test_one_partition_is_divided_among_tasks_and_buckets(harness: CompactionHarness) -> None:
    """Each task writes a part of the partition, no key occurs twice, and each file is read twice."""
    partition_id = PartitionId(harness.topic(), 0)
    for index in range(20):
        harness.log.ingest({partition_id: [numbered(100, modulo=300, first=70 * index)]})
    plan = plan_shuffle(harness.log.job(table_bytes=TINY_TABLE))

    result = compact(harness)

    assert len(plan.shares) == 8
    assert result.counts["records_in"] == 2000
    assert result.counts["records_out"] == result.counts["keys"] == 300
    assert result.counts["keys_outside_table"] == 0
    assert result.counts["input_files"] == 20
    assert result.counts["get_requests"] == 40
    assert len(result.files) == 8
    assert all(extent.unique_keys for file in result.files for extent in file.extents)


def test_a_small_table_gives_many_buckets(harness: CompactionHarness) -> None:
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [numbered(1000, modulo=1000)]})

    plan = plan_shuffle(harness.log.job(table_bytes=TINY_TABLE))

    (bits,) = plan.bits
    assert bits is not None
    assert keys_expected(1000, bits) <= key_capacity(TINY_TABLE)
    assert plan.buckets == 1 << bits == plan.bucket_ends[-1]


def test_different_file_orders_of_partitions_give_more_output_files(harness: CompactionHarness) -> None:
    """A share with non-adjacent parts of a partition writes one section for each run of parts."""
    topic = harness.topic()
    first, second = PartitionId(topic, 0), PartitionId(topic, 1)
    for value in (b"1", b"2", b"3"):
        harness.log.ingest({first: [batch((b"a", value), (value, value))]})
        harness.log.ingest({second: [batch((b"b", value), (value, value))]})
    spec = harness.log.job(table_bytes=TINY_TABLE)
    plan = replace(plan_shuffle(spec), shares=(Share((0, 2, 3)), Share((1, 4, 5))))

    result = run(harness, spec, plan)

    harness.log.publish(spec, result)
    harness.log.check()
    runs = [runs_of(arrange(spec), share) for share in plan.shares]
    assert max(each.number for share in runs for each in share) == 1
    assert len(result.files) == sum(1 + max(each.number for each in share) for share in runs)


def test_topics_without_deduplication_are_copied(harness: CompactionHarness) -> None:
    compacted, deleted = PartitionId(harness.topic(), 0), PartitionId(harness.topic("delete"), 3)
    for index in range(4):
        harness.log.ingest(
            {compacted: [numbered(9, modulo=5)], deleted: [numbered(3, modulo=1, first=index)]}
        )
    harness.log.ingest({deleted: [numbered(3, modulo=1)]})

    result = compact(harness)

    assert len(harness.log.read(compacted)) == 5
    assert len(harness.log.read(deleted)) == 15
    assert result.counts["input_files_read_once"] == 1
    assert result.counts["get_requests"] == 2 * 4 + 1


def test_tombstones_are_dropped_after_their_delete_horizon(harness: CompactionHarness) -> None:
    partition_id = PartitionId(harness.topic(), 0)
    for index in range(3):
        harness.log.ingest(
            {partition_id: [numbered(40, modulo=40, value=None if index == 1 else b"%d" % index)]}
        )
        harness.log.ingest({partition_id: [numbered(20, modulo=60, value=None, first=40)]})
    compact(harness)
    harness.clock.advance(DELETE_RETENTION_MS / 1000 + 1)

    result = compact(harness)

    assert result.counts["tombstones_dropped"] == 20
    assert len(harness.log.read(partition_id)) == 40


def test_compacting_twice_changes_nothing(harness: CompactionHarness) -> None:
    partition_id = PartitionId(harness.topic(), 0)
    for index in range(9):
        harness.log.ingest({partition_id: [numbered(30, modulo=100, first=13 * index)]})
    compact(harness)
    before = harness.log.read(partition_id)

    result = compact(harness)

    assert harness.log.read(partition_id) == before
    assert result.counts["records_dropped"] == 0


def test_a_corrupt_input_raises_an_error(harness: CompactionHarness) -> None:
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [numbered(5, modulo=5)]})
    extent = harness.log.extents[partition_id][0]
    path = harness.directory / extent.object_name
    path.write_bytes(path.read_bytes()[:200])
    spec = harness.log.job()

    with pytest.raises(CorruptDataError, match=extent.object_name):
        run(harness, spec)


KEYS = st.sampled_from([b"%d" % index for index in range(40)])
VALUES = st.one_of(st.none(), st.binary(max_size=6))
BATCHES = st.builds(
    lambda pairs, kind: batch(*pairs, rejected=kind == "rejected", control=kind == "control"),
    st.lists(st.tuples(KEYS, VALUES), min_size=1, max_size=30),
    st.sampled_from(["plain", "plain", "plain", "rejected", "control"]),
)
FILES = st.lists(
    st.dictionaries(st.integers(0, 3), st.lists(BATCHES, min_size=1, max_size=2), min_size=1),
    min_size=1,
    max_size=4,
)


PIECES = st.sampled_from([None, 50, 150, 700])
"""Bytes of the pieces that files are cut into; None for whole files."""


@given(
    rounds=st.lists(st.tuples(FILES, st.booleans(), PIECES, st.integers(0, 20_000)), min_size=1, max_size=2),
    block_target=st.sampled_from([1, 200, 4096]),
)
def test_shuffled_compaction_equals_the_reference_model(
    new_harness: Callable[[], CompactionHarness],
    rounds: list[tuple[list[dict[int, list[BatchToWrite]]], bool, int | None, int]],
    block_target: int,
) -> None:
    """Rounds of ingestion and compaction, by the shuffle plan or by one task, over mixed policies.

    Files stay whole or are cut between blocks or inside one. A block has one batch or many.
    """
    harness = new_harness()
    topics = [harness.topic("compact"), harness.topic("delete"), harness.topic("compact,delete")]
    partitions = [*(PartitionId(topic, 0) for topic in topics), PartitionId(topics[0], 1)]
    for files, shuffled, piece_bytes, later_ms in rounds:
        for file in files:
            sections = {partitions[number]: batches for number, batches in file.items()}
            harness.log.ingest(sections, block_target=block_target)
        extents = {partition_id: each for partition_id, each in harness.log.extents.items() if each}
        if not extents:
            continue
        if shuffled:
            sizes = piece_bytes and ShareSizes(share_bytes=piece_bytes, min_piece_bytes=piece_bytes)
            result = compact(harness, extents, sizes=sizes or None)
            assert result.counts.get("keys_outside_table", 0) == 0
        else:
            harness.compact(extents)
        harness.clock.advance(later_ms / 1000)


def job_of(harness: CompactionHarness, records: int, *, modulo: int, is_compacted: bool) -> JobSpec:
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [numbered(records, modulo=modulo)]})
    if is_compacted:
        harness.compact()
        harness.log.ingest({partition_id: [numbered(records, modulo=modulo)]})
    return harness.log.job(table_bytes=1024)


@pytest.mark.parametrize(
    ("records", "modulo", "is_compacted", "is_shuffled"),
    [
        (60, 60, False, False),  # the table holds 71 keys
        (200, 10, False, True),  # without an earlier job, every record may have a new key
        (200, 10, True, False),  # the last job has counted the keys
        (200, 150, True, True),
    ],
)
def test_auto_chooses_the_plan_by_an_estimate(
    harness: CompactionHarness, records: int, modulo: int, *, is_compacted: bool, is_shuffled: bool
) -> None:
    spec = job_of(harness, records, modulo=modulo, is_compacted=is_compacted)

    assert (choose_plan(spec, PlanChoice.AUTO) is not None) is is_shuffled
    assert choose_plan(spec, PlanChoice.TASK) is None
    assert choose_plan(spec, PlanChoice.SHUFFLE) is not None


@pytest.mark.parametrize(
    ("records", "unique", "is_shuffled"),
    [
        (MAX_RETAINED_RECORDS, False, False),
        (MAX_RETAINED_RECORDS + 1, False, True),  # one task cannot retain so many records
        (MAX_RETAINED_RECORDS + 1, True, False),  # one task need not retain them
    ],
)
def test_a_section_with_too_many_records_for_a_task_is_shuffled(
    harness: CompactionHarness, records: int, *, unique: bool, is_shuffled: bool
) -> None:
    """The number of keys does not matter, even if they fit the table."""
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [numbered(5, modulo=5)]})
    (extent,) = harness.log.extents[partition_id]
    harness.log.extents[partition_id] = [
        extent._replace(
            record_count=records,
            last_offset=records - 1,
            unique_keys=unique,
            format=FileFormat(kernel_digest=KERNEL_DIGEST),
        )
    ]

    plan = choose_plan(harness.log.job(table_bytes=128 << 20), PlanChoice.AUTO)

    assert (plan is not None) is is_shuffled


def test_a_job_that_must_be_exact_is_shuffled(harness: CompactionHarness) -> None:
    """The estimate does not matter, but an explicit choice of one task does."""
    spec = replace(job_of(harness, 5, modulo=5, is_compacted=False), exact=True)
    assert choose_plan(spec, PlanChoice.AUTO) is not None
    assert choose_plan(spec, PlanChoice.TASK) is None


def test_the_extents_of_a_job_that_fits_a_task_are_not_arranged(harness: CompactionHarness) -> None:
    """The task arranges them, and finds that they do not cover the job."""
    spec = job_of(harness, 60, modulo=60, is_compacted=False)  # as many as a table holds for certain
    (partition,) = spec.partitions
    wrong = replace(spec, partitions=(replace(partition, base_offset=partition.base_offset + 1),))

    assert choose_plan(wrong, PlanChoice.AUTO) is None
    with pytest.raises(InvalidInputError, match="do not cover"):
        choose_plan(wrong, PlanChoice.SHUFFLE)
    with pytest.raises(InvalidInputError, match="do not cover"):
        harness.run(wrong)


def test_choosing_a_plan_allocates_no_table(harness: CompactionHarness) -> None:
    """The size of the table exceeds the memory of any machine."""
    spec = job_of(harness, 5, modulo=5, is_compacted=False)
    assert choose_plan(replace(spec, table_bytes=1 << 60), PlanChoice.AUTO) is None
    assert choose_plan(replace(spec, table_bytes=1 << 60), PlanChoice.SHUFFLE) is not None


def test_a_low_estimate_leaves_duplicates_until_the_next_job(harness: CompactionHarness) -> None:
    """The one-task job keeps and counts the records that it cannot judge; the next job is shuffled."""
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [numbered(300, modulo=10)]})
    harness.compact()
    for index in range(4):
        harness.log.ingest({partition_id: [numbered(300, modulo=300, value=b"%d" % index, first=1000)]})
    spec = harness.log.job(table_bytes=1024)
    assert choose_plan(spec, PlanChoice.AUTO) is None

    result = harness.run(spec)

    assert result.counts["keys_outside_table"] > 0
    publish_unchecked(harness, result)
    newest = {record.key: record.value for record in harness.log.expected(partition_id)}
    found = harness.log.read(partition_id)
    assert {record.key: record.value for record in found} == newest
    assert len(found) > len(newest)
    following = harness.log.job(table_bytes=1024)
    plan = choose_plan(following, PlanChoice.AUTO)
    assert plan is not None
    exact_result = run(harness, following, plan)
    assert exact_result.counts["records_out"] == exact_result.counts["keys"] == len(newest)


def publish_unchecked(harness: CompactionHarness, result: JobResult) -> None:
    """Replace all extents of a partition by the output of a job, without the reference model."""
    (file,) = result.files
    (output,) = file.extents
    partition_id = PartitionId(output.topic_id, output.partition)
    harness.log.extents[partition_id] = [harness.log.extent_of(output, file.file_id, file.object_name)]
    harness.log.sizes[file.file_id] = file.size


def test_a_small_table_keeps_records_that_it_cannot_judge(harness: CompactionHarness) -> None:
    """The one-task job keeps every newest record and counts the others; the next job is shuffled."""
    partition_id = PartitionId(harness.topic(), 0)
    for index in range(4):
        harness.log.ingest({partition_id: [numbered(300, modulo=300, value=b"%d" % index)]})
    spec = harness.log.job(table_bytes=1024)

    result = harness.run(spec)

    assert result.counts["keys_outside_table"] > 0
    (output,) = result.files[0].extents
    assert not output.unique_keys
    kept_count = output.record_count
    assert 300 < kept_count < 1200
    expected = {record.key: record for record in harness.log.read(partition_id)}
    publish_unchecked(harness, result)
    found = harness.log.read(partition_id)
    assert {record.key: record for record in found} == expected
    following = harness.log.job(table_bytes=1024)
    plan = choose_plan(following, PlanChoice.AUTO)
    assert plan is not None
    assert run(harness, following, plan).counts["records_out"] == 300
