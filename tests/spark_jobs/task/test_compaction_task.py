"""One job in one process, against dictionaries."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.model import PartitionId
from core.errors import CorruptDataError, InvalidInputError
from object_format.codecs.codec import Codec
from object_format.segment_file import ForwardReader
from object_store.accounting import Purpose, RequestKind
from object_store.errors import ObjectNotFoundError
from object_store.local.store import LocalStore
from object_store.names import CompactedName, parse
from spark_jobs.errors import JobCancelledError
from spark_jobs.task.compaction_task import TaskHooks, run_compaction
from tests.spark_jobs.bench import Bench
from tests.spark_jobs.model_log import DELETE_RETENTION_MS, BatchToWrite, batch

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


@pytest.fixture(scope="module")
def new_bench(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], Bench]:
    """Makes benches for examples of one property test."""
    return lambda: Bench(tmp_path_factory.mktemp("bench"))


def test_the_newest_record_of_each_key_stays(bench: Bench) -> None:
    here = PartitionId(bench.topic(), 0)
    bench.log.ingest({here: [batch((b"a", b"1"), (b"b", b"2")), batch((b"a", b"3"))]})
    bench.log.ingest({here: [batch((b"c", b"4"), (b"b", b"5"))]})

    result = bench.compact()

    assert [(each.offset, each.value) for each in bench.log.read(here)] == [
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


def test_outputs_come_apart_by_cleanup_policy(bench: Bench) -> None:
    """And `compact,delete` goes with `compact`; what is not deduplicated is there to the byte."""
    compact, delete, both = bench.topic("compact"), bench.topic("delete"), bench.topic("delete,compact")
    sections = {
        PartitionId(topic, partition): [batch((b"a", b"1"), (b"a", b"2"))]
        for topic in (compact, delete, both)
        for partition in (0, 1)
    }
    bench.log.ingest(sections)
    bench.log.ingest(sections)

    result = bench.compact()

    topics = {frozenset(extent.topic_id for extent in file.extents) for file in result.files}
    assert topics == {frozenset({compact, both}), frozenset({delete})}
    assert all(isinstance(parse(file.object_name), CompactedName) for file in result.files)
    assert {len(bench.log.read(PartitionId(delete, partition))) for partition in (0, 1)} == {4}
    assert {len(bench.log.read(PartitionId(both, partition))) for partition in (0, 1)} == {1}
    assert result.counts["compacted_files"] == 2


def test_a_file_that_is_large_enough_is_ended_before_the_next_partition(bench: Bench) -> None:
    """Each output then covers a range of (topic, partition), and the sizes are those of the data."""
    topic = bench.topic("delete")
    keys = [PartitionId(topic, partition) for partition in range(5)]
    bench.log.ingest({key: [batch((b"a", b"x" * 100))] for key in keys})
    spec = bench.log.job({key: bench.log.extents[key] for key in keys})
    length = spec.inputs[0].extents[0].length

    spec = replace(spec, output_bytes=2 * length)
    result = bench.run(spec)
    bench.log.publish(spec, result)
    bench.log.check()

    held = [[extent.partition for extent in file.extents] for file in result.files]
    assert held == [[0, 1], [2, 3], [4]]
    assert result.counts["compacted_files"] == 3


def test_holes_are_the_complement_of_the_survivors(bench: Bench) -> None:
    here = PartitionId(bench.topic(), 0)
    bench.log.ingest({here: [batch((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))]})

    (file,) = bench.compact().files

    stream = bench.log.store.open_stream(file.object_name, purpose=Purpose.FSCK)
    reader = ForwardReader(stream, name=file.object_name, size=file.size)
    assert reader.next_section() is not None
    list(reader.blocks())
    assert reader.holes is not None
    assert list(reader.holes) == [0]
    assert reader.next_section() is None
    stream.close()


def test_a_refused_duplicate_is_in_the_file_but_not_in_the_log(bench: Bench) -> None:
    """Its section has two extents with different shifts; both topics' extents leave it out."""
    pairs = [
        batch((b"a", b"1")),
        batch((b"a", b"refused"), (b"b", b"refused"), refused=True),
        batch((b"b", b"2")),
    ]
    here, there = PartitionId(bench.topic(), 0), PartitionId(bench.topic("delete"), 0)
    bench.log.ingest({here: pairs, there: pairs})
    assert [extent.offset_shift for extent in bench.log.extents[here]] == [0, -2]

    bench.compact()

    assert [each.value for each in bench.log.read(here)] == [b"1", b"2"]
    assert [each.value for each in bench.log.read(there)] == [b"1", b"2"]


def test_a_job_may_take_a_part_of_its_files(bench: Bench) -> None:
    """Sections without an extent of the job are passed over, and stay as they are."""
    topic = bench.topic()
    first, second, third = (PartitionId(topic, partition) for partition in range(3))
    for _ in range(3):
        bench.log.ingest({each: [batch((b"a", b"1"), (b"a", b"2"))] for each in (first, second, third)})

    result = bench.compact({second: bench.log.extents[second][:2]})

    assert [len(bench.log.read(each)) for each in (first, second, third)] == [6, 3, 6]
    assert result.counts["records_in"] == 4
    assert result.counts["input_files"] == 2


def test_compacting_twice_changes_nothing(bench: Bench) -> None:
    here, there = PartitionId(bench.topic(), 0), PartitionId(bench.topic("delete"), 0)
    for index in range(3):
        pairs = [(bytes([key % 5]), bytes([index])) for key in range(20)]
        bench.log.ingest({here: [batch(*pairs, codec=Codec.LZ4)], there: [batch(*pairs)]})
    bench.compact()
    before = bench.log.read(here), bench.log.read(there)

    again = bench.compact()

    assert (bench.log.read(here), bench.log.read(there)) == before
    assert again.counts["records_dropped"] == 0
    assert all(extent.unique_keys for extent in bench.log.extents[here])


def test_an_older_compacted_file_meets_newer_records(bench: Bench) -> None:
    """Holes of an earlier compaction stay holes."""
    here = PartitionId(bench.topic(), 0)
    bench.log.ingest({here: [batch((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"))]})
    bench.compact()
    bench.log.ingest({here: [batch((b"b", b"5"), (b"d", b"6"))]})

    bench.compact()

    assert [(each.offset, each.value) for each in bench.log.read(here)] == [
        (2, b"3"),
        (3, b"4"),
        (4, b"5"),
        (5, b"6"),
    ]


def test_a_topic_that_is_no_longer_compacted_keeps_its_holes(bench: Bench) -> None:
    topic = bench.topic()
    here = PartitionId(topic, 0)
    bench.log.ingest({here: [batch((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))]})
    bench.compact()
    bench.log.policies[topic] = "delete"
    bench.log.ingest({here: [batch((b"b", b"4"))]})

    result = bench.compact()

    assert [each.offset for each in bench.log.read(here)] == [1, 2, 3]
    assert not result.files[0].extents[0].unique_keys  # two of b


def test_a_stretch_without_records_is_written_and_read_again(bench: Bench) -> None:
    here = PartitionId(bench.topic(), 0)
    bench.log.ingest({here: [batch((b"a", None))]})
    bench.compact()
    bench.clock.advance(DELETE_RETENTION_MS)
    bench.compact()
    (extent,) = bench.log.extents[here]
    assert (extent.base_offset, extent.last_offset, extent.length) == (0, 0, 0)

    bench.log.ingest({here: [batch((b"a", b"1"))]})
    result = bench.compact()

    assert [each.offset for each in bench.log.read(here)] == [1]
    assert result.counts["input_files"] == 1  # the empty one is not even opened


def test_control_batches_stay(bench: Bench) -> None:
    here = PartitionId(bench.topic(), 0)
    marker = BatchToWrite(((7, b"\0\0\0\1", b"\0\0\0\0\0\0", ()),), control=True)
    bench.log.ingest({here: [batch((b"a", b"1")), marker, batch((b"a", b"2")), marker]})

    result = bench.compact()

    assert result.counts["records_out"] == 3
    assert [each.offset for each in bench.log.read(here)] == [2]


@pytest.mark.parametrize("partitions", [1, 10, 1000])
@pytest.mark.parametrize("files", [1, 3])
def test_each_input_file_costs_two_gets(bench: Bench, partitions: int, files: int) -> None:
    topics = bench.topic("compact"), bench.topic("delete")
    for _ in range(files):
        bench.log.ingest(
            {
                PartitionId(topics[index % 2], index // 2): [batch((b"a", b"1"), (b"a", b"2"))]
                for index in range(partitions)
            }
        )

    result = bench.compact()

    assert result.counts["input_files"] == files
    assert result.counts["get_requests"] == 2 * files
    assert result.counts["resumes"] == 0
    assert result.counts["partitions"] == partitions


def test_a_file_without_anything_to_deduplicate_costs_one_get(bench: Bench) -> None:
    bench.log.ingest({PartitionId(bench.topic("delete"), 0): [batch((b"a", b"1"))]})

    assert bench.compact().counts["get_requests"] == 1


def test_counts_are_those_of_the_store(tmp_path: Path) -> None:
    bench = Bench(tmp_path)
    here = PartitionId(bench.topic(), 0)
    bench.log.ingest({here: [batch((b"a", b"1" * 1000), (b"a", b"2" * 1000))]})
    store = LocalStore(tmp_path, bench.ids)
    spec = bench.log.job()

    result = run_compaction(spec, store, attempt_id=bench.ids.new_uuid(), clock=bench.clock, ids=bench.ids)

    counts = store.counts.snapshot()
    assert counts.of(RequestKind.GET).requests == result.counts["get_requests"] == 2
    assert counts.of(RequestKind.GET).bytes_in == result.counts["bytes_in"]
    assert counts.of(RequestKind.PUT).bytes_out == result.counts["bytes_out"] == result.files[0].size
    assert result.counts["peak_rss_bytes"] > 0
    store.close()


def test_a_full_table_keeps_what_it_cannot_prove_obsolete(bench: Bench) -> None:
    """The newest record of every key is there, and the report tells that older ones may be too."""
    here = PartitionId(bench.topic(), 0)
    keys = [index.to_bytes(4, "big") for index in range(20_000)]
    for index in range(2):
        bench.log.ingest({here: [batch(*((key, bytes([index])) for key in keys))]}, block_target=1 << 16)
    spec = bench.log.job(table_bytes=1 << 16)

    result = bench.run(spec)

    assert result.counts["keys_outside_table"] > 0
    assert 20_000 <= result.counts["records_out"] < 40_000
    assert not result.files[0].extents[0].unique_keys
    bench.log.extents[here] = [
        bench.log.extent_of(result.files[0].extents[0], result.files[0].file_id, result.files[0].object_name)
    ]
    found = {each.key: each.value for each in bench.log.read(here)}
    assert found == dict.fromkeys(keys, b"\1")


@pytest.mark.parametrize("position", [105, 200, 268, 470])
def test_nothing_is_published_of_a_damaged_input(bench: Bench, position: int) -> None:
    """Whatever byte of the data that the job takes it is; of the rest a job believes nothing."""
    here, there = PartitionId(bench.topic("delete"), 0), PartitionId(bench.topic(), 0)
    for _ in range(2):
        bench.log.ingest({each: [batch((b"a", b"1" * 100), (b"b", b"2"))] for each in (here, there)})
    spec = bench.log.job()
    path = bench.directory / spec.inputs[1].object_name
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)
    before = bench.objects()

    with pytest.raises(CorruptDataError, match=spec.inputs[1].object_name):
        bench.run(spec)

    assert bench.objects() == before


def test_an_extent_must_have_the_records_that_the_catalog_counts(bench: Bench) -> None:
    bench.log.ingest({PartitionId(bench.topic(), 0): [batch((b"a", b"1"), (b"b", b"2"))]})
    spec = bench.log.job()
    (job_input,) = spec.inputs
    wrong = replace(job_input.extents[0], record_count=3)
    before = bench.objects()

    with pytest.raises(CorruptDataError, match=r"has 2 records .* but the catalog counts 3"):
        bench.run(replace(spec, inputs=(replace(job_input, extents=(wrong,)),)))

    assert bench.objects() == before


def test_a_missing_section_is_corrupt(bench: Bench) -> None:
    topic = bench.topic()
    bench.log.ingest({PartitionId(topic, 1): [batch((b"a", b"1"))]})
    spec = bench.log.job()
    (job_input,) = spec.inputs
    elsewhere = replace(job_input.extents[0], partition=2)

    with pytest.raises(CorruptDataError, match=r"/2, byte 68: section .*/1 begins here"):
        bench.run(
            replace(
                spec,
                inputs=(replace(job_input, extents=(elsewhere,)),),
                partitions=(replace(spec.partitions[0], partition=2),),
            )
        )


def test_a_file_under_another_name_is_refused(bench: Bench) -> None:
    bench.log.ingest({PartitionId(bench.topic(), 0): [batch((b"a", b"1"))]})
    spec = bench.log.job()

    with pytest.raises(CorruptDataError, match=r"checksum of a DATA block does not match"):
        bench.run(replace(spec, inputs=(replace(spec.inputs[0], file_id=bench.ids.new_uuid()),)))


def test_a_missing_input_is_told(bench: Bench) -> None:
    bench.log.ingest({PartitionId(bench.topic(), 0): [batch((b"a", b"1"))]})
    spec = bench.log.job()
    (bench.directory / spec.inputs[0].object_name).unlink()

    with pytest.raises(ObjectNotFoundError):
        bench.run(spec)


@pytest.mark.parametrize("at", [0, 1, 4])
def test_a_stopped_job_leaves_nothing(bench: Bench, at: int) -> None:
    topic = bench.topic()
    for _ in range(3):
        bench.log.ingest({PartitionId(topic, index): [batch((b"a", b"1"))] for index in range(3)})
    before = bench.objects()
    checks = iter(range(100))

    def check() -> None:
        if next(checks) == at:
            raise JobCancelledError("enough")

    with pytest.raises(JobCancelledError):
        bench.run(bench.log.job(), TaskHooks(check=check))

    assert bench.objects() == before


def test_progress_counts_partitions(bench: Bench) -> None:
    topic = bench.topic()
    bench.log.ingest({PartitionId(topic, index): [batch((b"a", b"1"))] for index in range(3)})
    told: list[tuple[int, int]] = []

    bench.run(bench.log.job(), TaskHooks(progress=lambda done, total: told.append((done, total))))

    assert told == [(1, 3), (2, 3), (3, 3)]


def test_a_job_with_a_gap_is_refused(bench: Bench) -> None:
    here = PartitionId(bench.topic(), 0)
    for _ in range(3):
        bench.log.ingest({here: [batch((b"a", b"1"))]})
    first, _, third = bench.log.extents[here]

    with pytest.raises(InvalidInputError, match="an extent ends at 0 and the next begins at 2"):
        bench.run(bench.log.job({here: [first, third]}))


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
    refused=st.integers(0, 5).map(lambda draw: draw == 0),
)
FILES = st.dictionaries(st.integers(0, 3), st.lists(BATCHES, min_size=1, max_size=5), min_size=1)


@given(
    st.lists(st.one_of(FILES, st.tuples(st.integers(0, 6), st.integers(0, 6)), st.just("wait")), max_size=8)
)
def test_as_the_dictionaries_say(
    new_bench: Callable[[], Bench],
    steps: Sequence[dict[int, list[BatchToWrite]] | tuple[int, int] | str],
) -> None:
    """Random files, jobs over random runs of extents, and time that passes, in any order."""
    bench = new_bench()
    topics = bench.topic("compact"), bench.topic("delete")
    for step in steps:
        if isinstance(step, dict):
            bench.log.ingest(
                {PartitionId(topics[key % 2], key // 2): batches for key, batches in step.items()},
                block_target=200,
            )
        elif isinstance(step, tuple):
            bench.clock.advance(1)
            compact_some(bench, *step)
        else:
            bench.clock.advance(DELETE_RETENTION_MS / 1000)
    compact_some(bench, 0, 6)
    compact_some(bench, 0, 6)


def compact_some(bench: Bench, skipped: int, taken: int) -> None:
    """A job over up to `taken` extents of each partition, after the first `skipped`."""
    chosen = {
        partition_id: extents[skipped : skipped + taken + 1]
        for partition_id, extents in bench.log.extents.items()
        if len(extents) > skipped
    }
    if chosen:
        bench.compact(chosen)
