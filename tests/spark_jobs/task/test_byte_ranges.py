"""What a job reads of the files that its extents lie in: one span of each, nothing before or behind it."""

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
from tests.spark_jobs.bench import Bench
from tests.spark_jobs.model_log import batch
from tests.spark_jobs.shuffle.shuffle_in_memory import run_in_memory
from tests.spark_jobs.shuffle.test_shares import batches, works_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path
    from uuid import UUID

    from catalog.model import Extent, JobSpec

PARTITIONS = 40


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def shared_files(bench: Bench, count: int = 3, policy: str = "compact", codec: Codec = Codec.NONE) -> UUID:
    """Files that each hold all partitions of a topic."""
    topic = bench.topic(policy)
    for number in range(count):
        value = bytes([number]) * 300
        bench.log.ingest(
            {
                PartitionId(topic, each): [batch((b"a", value), (b"b", value), codec=codec)]
                for each in range(PARTITIONS)
            }
        )
    return topic


def job_of(bench: Bench, topic: UUID, partitions: Iterable[int]) -> JobSpec:
    keys = [PartitionId(topic, each) for each in partitions]
    return bench.log.job({key: bench.log.extents[key] for key in keys})


def read_by_a_stream(spec: JobSpec) -> int:
    """Bytes of the spans, with the header of the section in which each begins."""
    return sum(byte_range_of(each.extents).length + SECTION_START_LENGTH for each in spec.inputs)


def test_cleaning_one_partition_of_many_reads_its_sections_alone(bench: Bench) -> None:
    """By two GETs of each file, whatever else is in it."""
    topic = shared_files(bench)
    spec = job_of(bench, topic, [17])

    result = bench.run(spec)

    bench.log.publish(spec, result)
    bench.log.check()
    assert result.counts["get_requests"] == 2 * len(spec.inputs) == 6
    assert result.counts["bytes_in"] == 2 * read_by_a_stream(spec)
    held = sum(extent.length for each in spec.inputs for extent in each.extents)
    assert result.counts["bytes_in"] == 2 * (held + 3 * SECTION_START_LENGTH)
    assert result.counts["bytes_in"] < 2 * sum(each.size for each in spec.inputs) / (PARTITIONS - 5)


def test_what_lies_between_two_sections_is_read_and_costs_no_request(bench: Bench) -> None:
    topic = shared_files(bench)
    spec = job_of(bench, topic, [11, 14, 30])

    result = bench.run(spec)

    bench.log.publish(spec, result)
    bench.log.check()
    assert result.counts["get_requests"] == 6
    assert result.counts["bytes_in"] == 2 * read_by_a_stream(spec)


def test_the_first_pass_reads_what_is_deduplicated_alone(bench: Bench) -> None:
    """And the second all: topics lie side by side in every file."""
    compact, delete = bench.topic(), bench.topic("delete")
    keys = [PartitionId(topic, each) for topic in (compact, delete) for each in range(8)]
    for _ in range(2):
        bench.log.ingest({key: [batch((b"a", b"x" * 200))] for key in keys})
    spec = bench.log.job()

    result = bench.run(spec)

    surveyed = [
        replace(each, extents=tuple(extent for extent in each.extents if extent.topic_id == compact))
        for each in spec.inputs
    ]
    assert result.counts["get_requests"] == 4
    assert result.counts["bytes_in"] == read_by_a_stream(spec) + read_by_a_stream(
        replace(spec, inputs=tuple(surveyed))
    )


def test_the_second_pass_begins_where_it_has_something_to_read(bench: Bench) -> None:
    """Sections that the first pass has filtered ahead, in front of it, are not read again."""
    topic = bench.topic()
    first, last = PartitionId(topic, 0), PartitionId(topic, 9)
    squeezed = batch((b"a", b"1" * 500), (b"a", b"2" * 500), codec=Codec.ZSTD)
    plain = batch((b"a", b"1" * 500), (b"a", b"2" * 500))
    bench.log.ingest({first: [squeezed], last: [plain]})
    spec = bench.log.job()
    (job_input,) = spec.inputs
    behind = replace(job_input, extents=job_input.extents[1:])

    result = bench.run(spec)

    bench.log.publish(spec, result)
    bench.log.check()
    assert result.counts["get_requests"] == 2
    assert result.counts["bytes_in"] == read_by_a_stream(spec) + read_by_a_stream(
        replace(spec, inputs=(behind,))
    )


def test_a_stretch_of_a_file_is_read_from_its_first_section(bench: Bench) -> None:
    """Also where the file is cut: what lies before, between and behind is nobody's."""
    topic = bench.topic()
    wanted = [PartitionId(topic, each) for each in (4, 15)]
    sections = {PartitionId(topic, each): batches(10, keys=35) for each in range(20)}
    bench.log.ingest(sections, block_target=900)
    spec = bench.log.job({key: bench.log.extents[key] for key in wanted}, table_bytes=1024)
    plan = plan_shuffle(spec, ShareSizes(share_bytes=1 << 20, min_shares=2, min_piece_bytes=1000))

    result = run_in_memory(spec, plan, lambda: LocalStore(bench.directory, bench.ids), bench.ids)

    bench.log.publish(spec, result)
    bench.log.check()
    assert plan.cut_files == {0: [0, 1]}
    held = sum(extent.length for extent in spec.inputs[0].extents)
    assert result.counts["get_requests"] == 4
    assert result.counts["bytes_in"] == 2 * (held + 2 * SECTION_START_LENGTH)


def test_shares_of_whole_files_are_even_by_what_is_read_of_them() -> None:
    """One file whose two sections lie far apart is as much work as many with the same data."""
    wide = works_of([(100, 0), (100, 9800)], 1)
    near = works_of([(100, 0), (100, 0)], 6)
    works = [
        replace(
            work,
            parts=(
                *work.parts,
                *(replace(part, input_index=part.input_index + 1) for part in others.parts),
            ),
        )
        for work, others in zip(wide, near, strict=True)
    ]

    shares = make_shares(works, ShareSizes(share_bytes=700, min_shares=1))

    assert [share.inputs for share in shares] == [(0,), (1, 2, 3, 4, 5, 6)]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_no_damage_gets_through(bench: Bench, codec: Codec) -> None:
    """Every byte of the data that a job takes is checked; the rest of a file cannot change what it does."""
    topic = shared_files(bench, count=1, codec=codec)
    spec = job_of(bench, topic, [1, 3])
    (job_input,) = spec.inputs
    path = bench.directory / job_input.object_name
    sound = path.read_bytes()
    held = [range(each.position, each.position + each.length) for each in job_input.extents]
    wanted = bench.run(spec).counts["records_out"]
    for position in range(0, held[-1].stop + 500, 23):
        damaged = bytearray(sound)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        if any(position in each for each in held):
            with pytest.raises(CorruptDataError, match=job_input.object_name):
                bench.run(spec)
        else:
            assert bench.run(spec).counts["records_out"] == wanted


def test_an_extent_in_the_wrong_place_is_noticed(bench: Bench) -> None:
    """Sound data that is another partition's, or that does not come in the order of the file."""
    topic = shared_files(bench, count=1)
    spec = job_of(bench, topic, [3, 5])
    (job_input,) = spec.inputs
    first, second = job_input.extents
    (other,) = bench.log.extents[PartitionId(topic, 8)]

    def run(*places: Extent) -> None:
        extents = tuple(
            replace(extent, position=place.position, length=place.length)
            for extent, place in zip((first, second), places, strict=True)
        )
        bench.run(replace(spec, inputs=(replace(job_input, extents=extents),)))

    with pytest.raises(CorruptDataError, match=f"section {topic}/8 begins here"):
        run(first, other)
    with pytest.raises(CorruptDataError, match=f"section {topic}/5 begins here"):
        run(second, first)
    with pytest.raises(CorruptDataError, match="the data is of another one"):
        run(first, first)
    with pytest.raises(CorruptDataError, match="DATA block"):
        run(first, replace(second, length=second.length - 1))
    with pytest.raises(CorruptDataError, match="bytes, but was to be read"):
        run(first, replace(second, length=1 << 20))


def test_data_in_the_middle_of_a_section_is_read_without_its_beginning(bench: Bench) -> None:
    """An extent may begin at any block; what stands before that is not looked at."""
    here = PartitionId(bench.topic(), 0)
    pairs = [batch((b"a", bytes([each]) * 100)) for each in range(4)]
    pairs[1] = replace(pairs[1], refused=True)
    bench.log.ingest({here: pairs}, block_target=1)
    older, newer = bench.log.extents[here]
    block = older.length // 4
    shortened = replace(newer, position=newer.position + 2 * block, length=2 * block)
    bench.log.extents[here][1] = shortened
    spec = bench.log.job({here: [shortened]})

    result = bench.run(spec)

    assert (result.counts["records_in"], result.counts["records_out"]) == (2, 1)
    assert result.counts["bytes_in"] == 2 * (2 * block + SECTION_START_LENGTH)
