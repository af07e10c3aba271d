"""One job in one process, checked against the reference log."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.model import PartitionId
from core.errors import CorruptDataError, CorruptFileError, InvalidInputError
from object_format.codecs.codec import Codec
from object_format.segment_file import ForwardReader
from object_store.accounting import Purpose, RequestKind
from object_store.binding import identify
from object_store.errors import StoreUnavailableError
from object_store.local.store import LocalStore
from object_store.names import CompactedName, parse
from spark_jobs.errors import JobCancelledError
from spark_jobs.task.compaction_task import TaskHooks, run_compaction, table_bytes_for
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import DELETE_RETENTION_MS, BatchToWrite, batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


@pytest.fixture
def harness(tmp_path: Path) -> CompactionHarness:
    return CompactionHarness(tmp_path)


@pytest.fixture(scope="module")
def new_harness(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], CompactionHarness]:
    """Return a function that makes a harness for each example of a property test."""
    return lambda: CompactionHarness(tmp_path_factory.mktemp("harness"))


def test_the_newest_record_of_each_key_is_kept(harness: CompactionHarness) -> None:
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch((b"a", b"1"), (b"b", b"2")), batch((b"a", b"3"))]})
    harness.log.ingest({partition_id: [batch((b"c", b"4"), (b"b", b"5"))]})

    result = harness.compact()

    assert [(each.offset, each.value) for each in harness.log.read(partition_id)] == [
        (2, b"3"),
        (3, b"4"),
        (4, b"5"),
    ]
    (output,) = result.files[0].extents
    assert (output.base_offset, output.last_offset, output.record_count) == (0, 4, 3)
    assert output.unique_keys
    assert result.counts["records_in"] == 5
    assert result.counts["records_out"] == 3
    assert result.counts["records_dropped"] == 2
    assert result.counts["keys"] == 3
    assert result.counts["keys_outside_table"] == 0


def test_outputs_are_separated_by_cleanup_policy(harness: CompactionHarness) -> None:
    """A topic with `compact,delete` shares files with `compact`; other topics are copied byte for byte."""
    compact, delete, both = harness.topic("compact"), harness.topic("delete"), harness.topic("delete,compact")
    sections = {
        PartitionId(topic, partition): [batch((b"a", b"1"), (b"a", b"2"))]
        for topic in (compact, delete, both)
        for partition in (0, 1)
    }
    harness.log.ingest(sections)
    harness.log.ingest(sections)

    result = harness.compact()

    topics = {frozenset(extent.topic_id for extent in file.extents) for file in result.files}
    assert topics == {frozenset({compact, both}), frozenset({delete})}
    assert all(isinstance(parse(file.object_name), CompactedName) for file in result.files)
    assert {len(harness.log.read(PartitionId(delete, partition))) for partition in (0, 1)} == {4}
    assert {len(harness.log.read(PartitionId(both, partition))) for partition in (0, 1)} == {1}
    assert result.counts["compacted_files"] == 2


def test_a_full_output_file_ends_before_the_next_partition(harness: CompactionHarness) -> None:
    """Each output covers a range of (topic, partition)."""
    topic = harness.topic("delete")
    keys = [PartitionId(topic, partition) for partition in range(5)]
    harness.log.ingest({key: [batch((b"a", b"x" * 100))] for key in keys})
    spec = harness.log.job({key: harness.log.extents[key] for key in keys})
    length = spec.inputs[0].extents[0].length

    spec = replace(spec, output_bytes=2 * length)
    result = harness.run(spec)
    harness.log.publish(spec, result)
    harness.log.check()

    partitions_by_file = [[extent.partition for extent in file.extents] for file in result.files]
    assert partitions_by_file == [[0, 1], [2, 3], [4]]
    assert result.counts["compacted_files"] == 3


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_the_timestamps_of_a_section_are_the_lowest_and_the_highest(
    harness: CompactionHarness, policy: str
) -> None:
    partition_id = PartitionId(harness.topic(policy), 0)
    for number, timestamps in enumerate([(30, 40), (10, 50), (20, 20)]):
        records = tuple((each, b"%d-%d" % (number, each), b"x", ()) for each in timestamps)
        harness.log.ingest({partition_id: [BatchToWrite(records)]})

    harness.compact()

    (extent,) = harness.log.extents[partition_id]
    assert (extent.min_timestamp, extent.max_timestamp) == (10, 50)


def test_holes_are_the_complement_of_the_survivors(harness: CompactionHarness) -> None:
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))]})

    (file,) = harness.compact().files

    stream = harness.log.store.open_stream(file.object_name, purpose=Purpose.FSCK)
    reader = ForwardReader(stream, name=file.object_name, size=file.size)
    assert reader.next_section() is not None
    list(reader.blocks())
    assert reader.holes is not None
    assert list(reader.holes) == [0]
    assert reader.next_section() is None
    stream.close()


def test_a_rejected_batch_is_in_the_file_but_not_in_the_log(harness: CompactionHarness) -> None:
    """Its section has two extents with different offset shifts; neither covers the batch."""
    pairs = [
        batch((b"a", b"1")),
        batch((b"a", b"rejected"), (b"b", b"rejected"), rejected=True),
        batch((b"b", b"2")),
    ]
    partition_id, other_id = PartitionId(harness.topic(), 0), PartitionId(harness.topic("delete"), 0)
    harness.log.ingest({partition_id: pairs, other_id: pairs})
    assert [extent.offset_shift for extent in harness.log.extents[partition_id]] == [0, -2]

    harness.compact()

    assert [each.value for each in harness.log.read(partition_id)] == [b"1", b"2"]
    assert [each.value for each in harness.log.read(other_id)] == [b"1", b"2"]


def test_a_job_may_read_a_part_of_its_files(harness: CompactionHarness) -> None:
    """Sections without an extent of the job are skipped and stay unchanged."""
    topic = harness.topic()
    first, second, third = (PartitionId(topic, partition) for partition in range(3))
    for _ in range(3):
        harness.log.ingest({each: [batch((b"a", b"1"), (b"a", b"2"))] for each in (first, second, third)})

    result = harness.compact({second: harness.log.extents[second][:2]})

    assert [len(harness.log.read(each)) for each in (first, second, third)] == [6, 3, 6]
    assert result.counts["records_in"] == 4
    assert result.counts["input_files"] == 2


def test_compacting_twice_changes_nothing(harness: CompactionHarness) -> None:
    partition_id, other_id = PartitionId(harness.topic(), 0), PartitionId(harness.topic("delete"), 0)
    for index in range(3):
        pairs = [(bytes([key % 5]), bytes([index])) for key in range(20)]
        harness.log.ingest({partition_id: [batch(*pairs, codec=Codec.LZ4)], other_id: [batch(*pairs)]})
    harness.compact()
    before = harness.log.read(partition_id), harness.log.read(other_id)

    again = harness.compact()

    assert (harness.log.read(partition_id), harness.log.read(other_id)) == before
    assert again.counts["records_dropped"] == 0
    assert all(extent.unique_keys for extent in harness.log.extents[partition_id])


def test_a_compacted_file_is_compacted_with_newer_records(harness: CompactionHarness) -> None:
    """Holes of an earlier compaction stay holes."""
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"))]})
    harness.compact()
    harness.log.ingest({partition_id: [batch((b"b", b"5"), (b"d", b"6"))]})

    harness.compact()

    assert [(each.offset, each.value) for each in harness.log.read(partition_id)] == [
        (2, b"3"),
        (3, b"4"),
        (4, b"5"),
        (5, b"6"),
    ]


def test_a_topic_that_is_no_longer_compacted_keeps_its_holes(harness: CompactionHarness) -> None:
    topic = harness.topic()
    partition_id = PartitionId(topic, 0)
    harness.log.ingest({partition_id: [batch((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))]})
    harness.compact()
    harness.log.policies[topic] = "delete"
    harness.log.ingest({partition_id: [batch((b"b", b"4"))]})

    result = harness.compact()

    assert [each.offset for each in harness.log.read(partition_id)] == [1, 2, 3]
    assert not result.files[0].extents[0].unique_keys  # key b has two records


def test_an_extent_without_records_is_written_and_read(harness: CompactionHarness) -> None:
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch((b"a", None))]})
    harness.compact()
    harness.clock.advance(DELETE_RETENTION_MS)
    harness.compact()
    (extent,) = harness.log.extents[partition_id]
    assert (extent.base_offset, extent.last_offset, extent.length) == (0, 0, 0)

    harness.log.ingest({partition_id: [batch((b"a", b"1"))]})
    result = harness.compact()

    assert [each.offset for each in harness.log.read(partition_id)] == [1]
    assert result.counts["input_files"] == 1  # the empty extent is not opened


def test_control_batches_are_kept(harness: CompactionHarness) -> None:
    partition_id = PartitionId(harness.topic(), 0)
    marker = BatchToWrite(((7, b"\0\0\0\1", b"\0\0\0\0\0\0", ()),), control=True)
    harness.log.ingest({partition_id: [batch((b"a", b"1")), marker, batch((b"a", b"2")), marker]})

    result = harness.compact()

    assert result.counts["records_out"] == 3
    assert [each.offset for each in harness.log.read(partition_id)] == [2]


@pytest.mark.parametrize("partitions", [1, 10, 1000])
@pytest.mark.parametrize("files", [1, 3])
def test_each_input_file_costs_two_gets(harness: CompactionHarness, partitions: int, files: int) -> None:
    topics = harness.topic("compact"), harness.topic("delete")
    for _ in range(files):
        harness.log.ingest(
            {
                PartitionId(topics[index % 2], index // 2): [batch((b"a", b"1"), (b"a", b"2"))]
                for index in range(partitions)
            }
        )

    result = harness.compact()

    assert result.counts["input_files"] == files
    assert result.counts["get_requests"] == 2 * files
    assert result.counts["resumes"] == 0
    assert result.counts["partitions"] == partitions


def test_a_file_without_deduplicated_topics_costs_one_get(harness: CompactionHarness) -> None:
    harness.log.ingest({PartitionId(harness.topic("delete"), 0): [batch((b"a", b"1"))]})

    assert harness.compact().counts["get_requests"] == 1


def test_counts_match_the_counts_of_the_store(tmp_path: Path) -> None:
    harness = CompactionHarness(tmp_path)
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch((b"a", b"1" * 1000), (b"a", b"2" * 1000))]})
    store = LocalStore(tmp_path, harness.ids)
    spec = harness.log.job()

    result = run_compaction(
        spec, store, attempt_id=harness.ids.new_uuid(), clock=harness.clock, ids=harness.ids
    )

    counts = store.counts.snapshot()
    assert counts.of(RequestKind.GET).requests == result.counts["get_requests"] == 2
    assert counts.of(RequestKind.GET).bytes_in == result.counts["bytes_in"]
    assert counts.of(RequestKind.PUT).bytes_out == result.counts["bytes_out"] == result.files[0].size
    assert result.counts["peak_rss_bytes"] > 0
    store.close()


def test_a_full_table_keeps_records_that_it_cannot_prove_obsolete(harness: CompactionHarness) -> None:
    """The newest record of every key is kept; the report counts keys that may keep older ones."""
    partition_id = PartitionId(harness.topic(), 0)
    keys = [index.to_bytes(4, "big") for index in range(20_000)]
    for index in range(2):
        harness.log.ingest(
            {partition_id: [batch(*((key, bytes([index])) for key in keys))]}, block_target=1 << 16
        )
    spec = harness.log.job(table_bytes=1 << 16)

    result = harness.run(spec)

    assert result.counts["keys_outside_table"] > 0
    assert 20_000 <= result.counts["records_out"] < 40_000
    assert not result.files[0].extents[0].unique_keys
    harness.log.extents[partition_id] = [
        harness.log.extent_of(
            result.files[0].extents[0], result.files[0].file_id, result.files[0].object_name
        )
    ]
    found = {each.key: each.value for each in harness.log.read(partition_id)}
    assert found == dict.fromkeys(keys, b"\1")


@pytest.mark.parametrize("position", [105, 200, 268, 470])
def test_a_damaged_input_leaves_no_output(harness: CompactionHarness, position: int) -> None:
    """The damage may be in any byte of the job's data."""
    partition_id, other_id = PartitionId(harness.topic("delete"), 0), PartitionId(harness.topic(), 0)
    for _ in range(2):
        harness.log.ingest(
            {each: [batch((b"a", b"1" * 100), (b"b", b"2"))] for each in (partition_id, other_id)}
        )
    spec = harness.log.job()
    path = harness.directory / spec.inputs[1].object_name
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    before = harness.objects()

    with pytest.raises(CorruptDataError, match=spec.inputs[1].object_name):
        harness.run(spec)

    assert harness.objects() == before


@pytest.mark.parametrize("count", [1, 3])
def test_an_extent_must_have_as_many_records_as_the_catalog_says(
    harness: CompactionHarness, count: int
) -> None:
    harness.log.ingest({PartitionId(harness.topic(), 0): [batch((b"a", b"1"), (b"b", b"2"))]})
    spec = harness.log.job()
    (job_input,) = spec.inputs
    wrong = job_input.extents[0]._replace(record_count=count)
    before = harness.objects()

    with pytest.raises(CorruptDataError, match=f"has 2 records .* but the catalog counts {count}"):
        harness.run(replace(spec, inputs=(replace(job_input, extents=(wrong,)),)))

    assert harness.objects() == before


def test_a_missing_section_is_corrupt(harness: CompactionHarness) -> None:
    topic = harness.topic()
    harness.log.ingest({PartitionId(topic, 1): [batch((b"a", b"1"))]})
    spec = harness.log.job()
    (job_input,) = spec.inputs
    elsewhere = job_input.extents[0]._replace(partition=2)

    with pytest.raises(CorruptDataError, match=r"/2, byte 68: section .*/1 begins here"):
        harness.run(
            replace(
                spec,
                inputs=(replace(job_input, extents=(elsewhere,)),),
                partitions=(replace(spec.partitions[0], partition=2),),
            )
        )


def test_a_file_with_another_id_is_rejected(harness: CompactionHarness) -> None:
    harness.log.ingest({PartitionId(harness.topic(), 0): [batch((b"a", b"1"))]})
    spec = harness.log.job()

    with pytest.raises(CorruptDataError, match=r"checksum of a DATA block does not match"):
        harness.run(replace(spec, inputs=(replace(spec.inputs[0], file_id=harness.ids.new_uuid()),)))


def test_a_missing_input_is_corrupt_only_in_a_store_that_has_its_marker(harness: CompactionHarness) -> None:
    """Without the marker, the worker probably sees another store."""
    harness.log.ingest({PartitionId(harness.topic(), 0): [batch((b"a", b"1"))]})
    spec = harness.log.job()
    (harness.directory / spec.inputs[0].object_name).unlink()

    with pytest.raises(StoreUnavailableError, match="has no marker"):
        harness.run(spec)
    identify(harness.log.store, harness.ids, make=True)
    with pytest.raises(CorruptFileError) as proof:
        harness.run(spec)
    assert proof.value.file_id == spec.inputs[0].file_id


@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_cancelled_job_leaves_no_object(harness: CompactionHarness, at: int) -> None:
    topic = harness.topic()
    for _ in range(3):
        harness.log.ingest({PartitionId(topic, index): [batch((b"a", b"1"))] for index in range(3)})
    before = harness.objects()
    checks = iter(range(100))

    def check() -> None:
        if next(checks) == at:
            raise JobCancelledError("enough")

    with pytest.raises(JobCancelledError):
        harness.run(harness.log.job(), TaskHooks(check=check))

    assert harness.objects() == before


@pytest.mark.parametrize("policy", ["compact", "delete"])
def test_a_job_that_fails_leaves_no_unfinished_file(harness: CompactionHarness, policy: str) -> None:
    """The output of the first partition is larger than what an upload buffers."""
    topic = harness.topic(policy)
    large = batch((b"a", bytes(2 << 20)))
    harness.log.ingest({PartitionId(topic, 0): [large], PartitionId(topic, 1): [batch((b"a", b"1"))]})
    spec = harness.log.job()
    (job_input,) = spec.inputs
    first, second = job_input.extents
    inputs = (replace(job_input, extents=(first, second._replace(record_count=2))),)

    with pytest.raises(CorruptFileError):
        harness.run(replace(spec, inputs=inputs))

    assert list((harness.directory / ".unfinished").iterdir()) == []


def test_progress_counts_partitions(harness: CompactionHarness) -> None:
    topic = harness.topic()
    harness.log.ingest({PartitionId(topic, index): [batch((b"a", b"1"))] for index in range(3)})
    reported: list[tuple[int, int]] = []

    harness.run(harness.log.job(), TaskHooks(progress=lambda done, total: reported.append((done, total))))

    assert reported == [(1, 3), (2, 3), (3, 3)]


def test_a_job_with_a_gap_is_rejected(harness: CompactionHarness) -> None:
    partition_id = PartitionId(harness.topic(), 0)
    for _ in range(3):
        harness.log.ingest({partition_id: [batch((b"a", b"1"))]})
    first, _, third = harness.log.extents[partition_id]

    with pytest.raises(InvalidInputError, match="one ends at 0, the next begins at 2"):
        harness.run(harness.log.job({partition_id: [first, third]}))


@pytest.mark.parametrize(
    ("records", "expected"), [(0, 1 << 16), (2730, 1 << 16), (2731, 24 * 2731), (1 << 20, 1 << 20)]
)
def test_a_key_table_is_at_most_half_full_within_its_limits(records: int, expected: int) -> None:
    """A fingerprint takes 12 bytes."""
    assert table_bytes_for(records, 1 << 20) == expected


KEYS = st.one_of(st.none(), st.integers(0, 6).map(lambda key: b"key-%d" % key))
VALUES = st.one_of(st.none(), st.binary(max_size=12))
HEADERS = st.lists(
    st.tuples(st.text("ab", max_size=2), st.one_of(st.none(), st.binary(max_size=3))), max_size=2
)
RECORDS = st.tuples(st.integers(0, 10**13), KEYS, VALUES, HEADERS.map(tuple))
BATCHES = st.builds(
    BatchToWrite,
    records=st.lists(RECORDS, min_size=1, max_size=6).map(tuple),
    codec=st.sampled_from(Codec),
    rejected=st.integers(0, 5).map(lambda draw: draw == 0),
)
FILES = st.dictionaries(st.integers(0, 3), st.lists(BATCHES, min_size=1, max_size=5), min_size=1)


@given(
    st.lists(st.one_of(FILES, st.tuples(st.integers(0, 6), st.integers(0, 6)), st.just("wait")), max_size=8)
)
def test_compaction_equals_the_reference_model(
    new_harness: Callable[[], CompactionHarness],
    steps: Sequence[dict[int, list[BatchToWrite]] | tuple[int, int] | str],
) -> None:
    """Random files, jobs over random runs of extents, and pauses, in any order."""
    harness = new_harness()
    topics = harness.topic("compact"), harness.topic("delete")
    for step in steps:
        if isinstance(step, dict):
            harness.log.ingest(
                {PartitionId(topics[key % 2], key // 2): batches for key, batches in step.items()},
                block_target=200,
            )
        elif isinstance(step, tuple):
            harness.clock.advance(1)
            compact_some(harness, *step)
        else:
            harness.clock.advance(DELETE_RETENTION_MS / 1000)
    compact_some(harness, 0, 6)
    compact_some(harness, 0, 6)


def compact_some(harness: CompactionHarness, skip: int, take: int) -> None:
    """Compact up to `take` extents of each partition, after the first `skip`."""
    chosen = {
        partition_id: extents[skip : skip + take + 1]
        for partition_id, extents in harness.log.extents.items()
        if len(extents) > skip
    }
    if chosen:
        harness.compact(chosen)
