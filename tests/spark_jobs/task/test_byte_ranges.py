"""Byte ranges that a job reads of its input files: one per file, from its first extent to its last."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from catalog.jobs.byte_ranges import byte_range_of
from catalog.model import PartitionId
from core.errors import CorruptDataError
from object_format.codecs.codec import Codec
from object_format.segment_file import SECTION_START_LENGTH
from object_store.local.store import LocalStore
from spark_jobs.shuffle.plan import plan_shuffle
from spark_jobs.shuffle.shares import ShareSizes, make_shares
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import batch
from tests.spark_jobs.shuffle.shuffle_in_memory import run_in_memory
from tests.spark_jobs.shuffle.test_shares import batches, works_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from uuid import UUID

    from catalog.model import Extent, JobSpec

PARTITIONS = 40


@pytest.fixture
def harness(tmp_path: Path) -> CompactionHarness:
    return CompactionHarness(tmp_path)


def shared_files(
    harness: CompactionHarness, count: int = 3, policy: str = "compact", codec: Codec = Codec.NONE
) -> UUID:
    """Write files that each have all partitions of a topic; return the topic."""
    topic = harness.topic(policy)
    for number in range(count):
        value = bytes([number]) * 300
        harness.log.ingest(
            {
                PartitionId(topic, each): [batch((b"a", value), (b"b", value), codec=codec)]
                for each in range(PARTITIONS)
            }
        )
    return topic


def job_of(harness: CompactionHarness, topic: UUID, partitions: Iterable[int]) -> JobSpec:
    keys = [PartitionId(topic, each) for each in partitions]
    return harness.log.job({key: harness.log.extents[key] for key in keys})


def bytes_per_stream(spec: JobSpec) -> int:
    """Return the bytes of all ranges, each with the header of the section where it starts."""
    return sum(byte_range_of(each.extents).length + SECTION_START_LENGTH for each in spec.inputs)


def test_a_job_over_one_partition_reads_only_its_sections(harness: CompactionHarness) -> None:
    """It sends two GETs per file, even if the file has many partitions."""
    topic = shared_files(harness)
    spec = job_of(harness, topic, [17])

    result = harness.run(spec)

    harness.log.publish(spec, result)
    harness.log.check()
    assert result.counts["get_requests"] == 2 * len(spec.inputs) == 6
    assert result.counts["bytes_in"] == 2 * bytes_per_stream(spec)
    data_ranges = sum(extent.length for each in spec.inputs for extent in each.extents)
    assert result.counts["bytes_in"] == 2 * (data_ranges + 3 * SECTION_START_LENGTH)
    assert result.counts["bytes_in"] < 2 * sum(each.size for each in spec.inputs) / (PARTITIONS - 5)


def test_bytes_between_two_sections_are_read_without_another_request(harness: CompactionHarness) -> None:
    topic = shared_files(harness)
    spec = job_of(harness, topic, [11, 14, 30])

    result = harness.run(spec)

    harness.log.publish(spec, result)
    harness.log.check()
    assert result.counts["get_requests"] == 6
    assert result.counts["bytes_in"] == 2 * bytes_per_stream(spec)


def test_pass_1_reads_only_deduplicated_sections(harness: CompactionHarness) -> None:
    """Pass 2 reads all sections: topics of both kinds are adjacent in every file."""
    compact, delete = harness.topic(), harness.topic("delete")
    keys = [PartitionId(topic, each) for topic in (compact, delete) for each in range(8)]
    for _ in range(2):
        harness.log.ingest({key: [batch((b"a", b"x" * 200))] for key in keys})
    spec = harness.log.job()

    result = harness.run(spec)

    deduplicated = [
        replace(each, extents=tuple(extent for extent in each.extents if extent.topic_id == compact))
        for each in spec.inputs
    ]
    assert result.counts["get_requests"] == 4
    assert result.counts["bytes_in"] == bytes_per_stream(spec) + bytes_per_stream(
        replace(spec, inputs=tuple(deduplicated))
    )


def test_pass_2_skips_leading_sections_that_pass_1_has_filtered(harness: CompactionHarness) -> None:
    """The filtered section is before the byte range that pass 2 reads."""
    topic = harness.topic()
    first, last = PartitionId(topic, 0), PartitionId(topic, 9)
    compressed = batch((b"a", b"1" * 500), (b"a", b"2" * 500), codec=Codec.ZSTD)
    uncompressed = batch((b"a", b"1" * 500), (b"a", b"2" * 500))
    harness.log.ingest({first: [compressed], last: [uncompressed]})
    spec = harness.log.job()
    (job_input,) = spec.inputs
    last_section = replace(job_input, extents=job_input.extents[1:])

    result = harness.run(spec)

    harness.log.publish(spec, result)
    harness.log.check()
    assert result.counts["get_requests"] == 2
    assert result.counts["bytes_in"] == bytes_per_stream(spec) + bytes_per_stream(
        replace(spec, inputs=(last_section,))
    )


def test_a_byte_range_of_a_cut_file_is_read_from_its_first_section(harness: CompactionHarness) -> None:
    """No share reads the bytes before, between or after the job's sections."""
    topic = harness.topic()
    expected = [PartitionId(topic, each) for each in (4, 15)]
    sections = {PartitionId(topic, each): batches(10, keys=35) for each in range(20)}
    harness.log.ingest(sections, block_target=900)
    spec = harness.log.job({key: harness.log.extents[key] for key in expected}, table_bytes=1024)
    plan = plan_shuffle(spec, ShareSizes(share_bytes=1 << 20, min_shares=2, min_piece_bytes=1000))

    result = run_in_memory(spec, plan, lambda: LocalStore(harness.directory, harness.ids), harness.ids)

    harness.log.publish(spec, result)
    harness.log.check()
    assert plan.cut_files == {0: [0, 1]}
    data_ranges = sum(extent.length for extent in spec.inputs[0].extents)
    assert result.counts["get_requests"] == 4
    assert result.counts["bytes_in"] == 2 * (data_ranges + 2 * SECTION_START_LENGTH)


def test_shares_are_balanced_by_the_bytes_that_are_read() -> None:
    """A file with two distant sections is as much work as many files with the same data."""
    wide = works_of([(100, 0), (100, 9800)], 1)
    near = works_of([(100, 0), (100, 0)], 6)
    works = [
        replace(
            work,
            parts=(
                *work.parts,
                *(part._replace(input_index=part.input_index + 1) for part in others.parts),
            ),
        )
        for work, others in zip(wide, near, strict=True)
    ]

    shares = make_shares(works, ShareSizes(share_bytes=700, min_shares=1))

    assert [share.inputs for share in shares] == [(0,), (1, 2, 3, 4, 5, 6)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_damage_to_any_byte_of_the_data_is_detected(harness: CompactionHarness, codec: Codec) -> None:
    """Damage to the rest of the file does not change the result."""
    topic = shared_files(harness, count=1, codec=codec)
    spec = job_of(harness, topic, [1, 3])
    (job_input,) = spec.inputs
    path = harness.directory / job_input.object_name
    intact = path.read_bytes()
    data_ranges = [range(each.position, each.position + each.length) for each in job_input.extents]
    expected = harness.run(spec).counts["records_out"]
    for position in range(0, data_ranges[-1].stop + 500, 23):
        damaged = bytearray(intact)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        if any(position in each for each in data_ranges):
            with pytest.raises(CorruptDataError, match=job_input.object_name):
                harness.run(spec)
        else:
            assert harness.run(spec).counts["records_out"] == expected


def test_an_extent_at_a_wrong_position_is_detected(harness: CompactionHarness) -> None:
    """The bytes there are intact, but of another partition, or not in file order."""
    topic = shared_files(harness, count=1)
    spec = job_of(harness, topic, [3, 5])
    (job_input,) = spec.inputs
    first, second = job_input.extents
    (other,) = harness.log.extents[PartitionId(topic, 8)]

    def run(*sources: Extent) -> None:
        extents = tuple(
            extent._replace(position=source.position, length=source.length)
            for extent, source in zip((first, second), sources, strict=True)
        )
        harness.run(replace(spec, inputs=(replace(job_input, extents=extents),)))

    with pytest.raises(CorruptDataError, match=f"section {topic}/8 begins here"):
        run(first, other)
    with pytest.raises(CorruptDataError, match=f"section {topic}/5 begins here"):
        run(second, first)
    with pytest.raises(CorruptDataError, match="the data is of another one"):
        run(first, first)
    with pytest.raises(CorruptDataError, match="DATA block"):
        run(first, second._replace(length=second.length - 1))
    with pytest.raises(CorruptDataError, match="bytes, but the range starts at"):
        run(first, second._replace(length=1 << 20))


def test_an_extent_inside_a_section_is_read_without_the_bytes_before_it(harness: CompactionHarness) -> None:
    """An extent may start at any block."""
    partition_id = PartitionId(harness.topic(), 0)
    pairs = [batch((b"a", bytes([each]) * 100)) for each in range(4)]
    pairs[1] = replace(pairs[1], rejected=True)
    harness.log.ingest({partition_id: pairs}, block_target=1)
    older, newer = harness.log.extents[partition_id]
    block = older.length // 4
    shortened = newer._replace(position=newer.position + 2 * block, length=2 * block)
    harness.log.extents[partition_id][1] = shortened
    spec = harness.log.job({partition_id: [shortened]})

    result = harness.run(spec)

    assert (result.counts["records_in"], result.counts["records_out"]) == (2, 1)
    assert result.counts["bytes_in"] == 2 * (2 * block + SECTION_START_LENGTH)
