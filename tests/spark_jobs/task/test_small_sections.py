"""Groups of small partitions give the results and errors of partitions that are processed one by one."""

from __future__ import annotations

import tracemalloc
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from catalog.model import AbortedTransaction, PartitionId
from core.clock import ManualClock
from core.errors import CorruptFileError, SiltstoneError
from core.ids import SeededIds
from object_format.codecs.codec import Codec
from object_format.kernels.batches.layout import KEEP_LEADER_EPOCH
from object_format.segment_file import SegmentFileWriter, SegmentKind
from object_format.segment_file.layout import BLOCK_TARGET, IGNORED_BLOCK_FLAGS, SECTION_START_LENGTH
from object_store.accounting import Purpose
from object_store.local.store import LocalStore
from spark_jobs.task import compaction_task, output_files
from spark_jobs.task.compaction_task import run_compaction
from spark_jobs.task.input_pass import InputPass
from spark_jobs.task.small_sections import runner
from spark_jobs.task.small_sections.columns import OUT_END
from spark_jobs.task.small_sections.plan import GroupLimits, plan_group
from spark_jobs.task.small_sections.read import read_partitions
from spark_jobs.task.small_sections.runner import DEFAULT_LIMITS
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import DELETE_RETENTION_MS, BatchToWrite, batch, encode

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    import numpy.typing as npt

    from catalog.model import JobInput, JobResult, JobSpec
    from spark_jobs.task.arrangement import PartitionWork
    from spark_jobs.task.small_sections.columns import Group
    from spark_jobs.task.small_sections.plan import GroupPlan
    from spark_jobs.task.small_sections.write import Output

ONE_BY_ONE = GroupLimits(bytes=0)
UNLIKE = {"peak_rss_bytes", "largest_buffer_bytes", "bytes_in"}
"""Counts that depend on how the work is done: memory, and how much of a stream was read when a job failed."""


class SectionKind(Enum):
    """What a section has."""

    COMPRESSED = 0
    PLAIN = 1
    MIXED = 2
    ABORTED = 3


@dataclass(frozen=True)
class Outcome:
    """Result of a job: objects, extents and counts, or an error with its evidence."""

    objects: dict[str, bytes]
    extents: tuple[object, ...] = ()
    counts: tuple[tuple[str, int], ...] = ()
    error: tuple[object, ...] = ()


def outcome(harness: CompactionHarness, spec: JobSpec, limits: GroupLimits) -> Outcome:
    """Run a job whose ids and time do not depend on other runs, and delete its objects."""
    clock = ManualClock()
    ids = SeededIds(99, clock)
    before = set(harness.objects())
    store = LocalStore(harness.directory, ids)
    try:
        result = run_compaction(spec, store, attempt_id=ids.new_uuid(), clock=clock, ids=ids, limits=limits)
    except SiltstoneError as error:
        file_id = error.file_id if isinstance(error, CorruptFileError) else None
        return Outcome({}, error=(type(error), str(error), error.remedy, file_id))
    finally:
        store.close()
    names = sorted(set(harness.objects()) - before)
    objects = {name: (harness.directory / name).read_bytes() for name in names}
    harness.log.store.delete(names, purpose=Purpose.GC)
    return Outcome(objects, tuple(file.extents for file in result.files), counts_of(result))


def counts_of(result: JobResult) -> tuple[tuple[str, int], ...]:
    return tuple(
        sorted(
            (name, count)
            for name, count in result.counts.items()
            if name not in UNLIKE and not name.endswith("_ms") and count
        )
    )


def check_both(harness: CompactionHarness, spec: JobSpec, limits: GroupLimits = DEFAULT_LIMITS) -> Outcome:
    """Return the outcome with groups, which must be that without them."""
    found = outcome(harness, spec, limits)
    assert found == outcome(harness, spec, ONE_BY_ONE)
    return found


@pytest.fixture
def harness(tmp_path: Path) -> CompactionHarness:
    return CompactionHarness(tmp_path)


@pytest.fixture(scope="module")
def new_harness(tmp_path_factory: pytest.TempPathFactory) -> Callable[[], CompactionHarness]:
    """Return a function that makes a harness for each example of a property test."""
    return lambda: CompactionHarness(tmp_path_factory.mktemp("harness"))


def write_wide_files(
    harness: CompactionHarness,
    *,
    files: int = 3,
    partitions: int = 20,
    codec: Codec = Codec.NONE,
    policy: str = "compact",
) -> JobSpec:
    topic = harness.topic(policy)
    for number in range(files):
        pairs = [(b"%d" % key, b"%d-%d" % (number, key)) for key in range(number % 2, 8)]
        harness.log.ingest(
            {PartitionId(topic, index): [batch(*pairs, codec=codec)] for index in range(partitions)}
        )
    return harness.log.job()


def refuse_single_partitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a job fail that processes a partition outside of a group."""

    def refuse(*_arguments: object, **_options: object) -> None:
        raise AssertionError("a section is processed on its own")

    monkeypatch.setattr(compaction_task, "SurvivorFinder", refuse)
    monkeypatch.setattr(InputPass, "pieces", refuse)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
def test_small_sections_are_not_entered_one_by_one(
    harness: CompactionHarness, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    spec = write_wide_files(harness, codec=codec)

    refuse_single_partitions(monkeypatch)
    result = harness.run(spec)

    harness.log.publish(spec, result)
    harness.log.check()
    assert result.counts["get_requests"] == (6 if codec is Codec.NONE else 3)
    assert result.counts["partitions"] == 20


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_the_outcome_is_the_same_without_native_codecs(
    harness: CompactionHarness, monkeypatch: pytest.MonkeyPatch, attempts: Attempts, codec: Codec
) -> None:
    """The task processes compressed partitions. Groups then have no memory for opened batches."""
    spec = write_wide_files(harness, codec=codec)
    expected = outcome(harness, spec, ONE_BY_ONE)
    monkeypatch.setattr(runner, "native_codec_table", lambda: None)
    opened = set()

    def read(group: Group, count: int, opens: int) -> int:
        opened.add(group.opened.size)
        return int(read_partitions(group, count, opens))

    monkeypatch.setattr(runner, "read_partitions", read)

    assert outcome(harness, spec, DEFAULT_LIMITS) == expected
    assert opened == {0}
    assert attempts.of(harness, spec) == ([0] if codec is Codec.NONE else [0, 1, 3, 7, 15])


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP])
def test_small_sections_that_are_copied_are_not_entered_one_by_one(
    harness: CompactionHarness, monkeypatch: pytest.MonkeyPatch, codec: Codec
) -> None:
    spec = write_wide_files(harness, codec=codec, policy="delete")

    refuse_single_partitions(monkeypatch)
    result = harness.run(spec)

    harness.log.publish(spec, result)
    harness.log.check()
    assert (result.counts["get_requests"], result.counts["partitions"]) == (3, 20)


def test_extents_without_bytes_are_in_groups(
    harness: CompactionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = harness.topic()
    keys = [PartitionId(topic, index) for index in range(3)]
    harness.log.ingest({key: [batch((b"a", None))] for key in keys})
    for _ in range(2):
        harness.compact()
        harness.clock.advance(DELETE_RETENTION_MS)
    assert [harness.log.extents[key][0].length for key in keys] == [0, 0, 0]
    harness.log.ingest({key: [batch((b"a", b"1"), (b"a", b"2"))] for key in keys})
    spec = harness.log.job()
    expected = check_both(harness, spec)

    refuse_single_partitions(monkeypatch)

    assert outcome(harness, spec, DEFAULT_LIMITS) == expected


@pytest.mark.parametrize(("codec", "limit"), [(Codec.NONE, 150), (Codec.LZ4, 800)])
def test_records_of_a_block_are_merged_into_several_batches(
    harness: CompactionHarness, codec: Codec, limit: int
) -> None:
    """The batches of a block are limited by the topic, and each saves bytes."""
    topic = harness.topic()
    batches = [batch((b"%d" % number, b"value"), codec=codec) for number in range(40)]
    harness.log.ingest({PartitionId(topic, index): batches for index in (0, 1)})
    spec = harness.log.job()
    limited = tuple(replace(each, max_message_bytes=limit) for each in spec.partitions)

    found = check_both(harness, replace(spec, partitions=limited))

    assert dict(found.counts)["merged_bytes_saved"] > 0


def test_holes_stay_when_a_topic_is_no_longer_compacted(harness: CompactionHarness) -> None:
    """The offsets of the records are then in the records only."""
    topic = harness.topic()
    keys = [PartitionId(topic, index) for index in range(3)]
    harness.log.ingest({key: [batch((b"a", b"1"), (b"b", b"2"), (b"a", b"3"))] for key in keys})
    harness.compact()
    harness.log.policies[topic] = "delete"
    harness.log.ingest({key: [batch((b"b", b"4"))] for key in keys})
    spec = harness.log.job()

    check_both(harness, spec)

    harness.log.publish(spec, harness.run(spec))
    assert [[each.offset for each in harness.log.read(key)] for key in keys] == [[1, 2, 3]] * 3


@pytest.mark.parametrize(
    "limits",
    [
        DEFAULT_LIMITS,
        GroupLimits(bytes=2000),
        GroupLimits(records=60),
        GroupLimits(partition_bytes=400),
        GroupLimits(partition_records=10),
    ],
)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.GZIP, Codec.LZ4])
def test_the_size_of_groups_does_not_matter(
    harness: CompactionHarness, codec: Codec, limits: GroupLimits
) -> None:
    spec = write_wide_files(harness, codec=codec)

    assert len(check_both(harness, spec, limits).extents[0]) == 20  # type: ignore[arg-type]  # a tuple


@pytest.mark.parametrize(("policy", "bound"), [("compact", 32 << 20), ("delete", 2 << 20)])
def test_the_memory_of_a_group_is_bounded(harness: CompactionHarness, policy: str, bound: int) -> None:
    """It has 24 MiB to open batches in and to compress them, if it deduplicates, and little else."""
    topic = harness.topic(policy)
    for _ in range(3):
        harness.log.ingest({PartitionId(topic, index): [batch((b"a", b"1"))] for index in range(20)})
    spec = harness.log.job()
    harness.run(spec)  # compiles the kernels

    tracemalloc.start()
    harness.run(spec)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert peak < bound


@pytest.mark.parametrize("limits", [DEFAULT_LIMITS, GroupLimits(records=5 * 23)])
@pytest.mark.parametrize("sections", [0, 1, 2, 3])
def test_output_files_end_at_the_same_partitions(
    harness: CompactionHarness, limits: GroupLimits, sections: int
) -> None:
    """The limit is exactly that of so many sections. A group of five begins in the middle of a file."""
    spec = write_wide_files(harness)
    length = harness.run(spec).files[0].extents[0].length

    found = check_both(harness, replace(spec, output_bytes=sections * length), limits)

    most = max(sections, 1)
    assert [len(each) for each in found.extents] == [most] * (20 // most) + [20 % most] * (20 % most > 0)  # type: ignore[arg-type]  # tuples


@dataclass
class Attempts:
    """Groups that a job has planned, by their first partition."""

    firsts: list[int]

    def of(self, harness: CompactionHarness, spec: JobSpec) -> list[int]:
        """Run a job, and return its attempts."""
        self.firsts.clear()
        harness.run(spec)
        return list(self.firsts)


@pytest.fixture
def attempts(monkeypatch: pytest.MonkeyPatch) -> Attempts:
    found = Attempts([])

    def plan(
        spec: JobSpec,
        works: Sequence[PartitionWork],
        first: int,
        *,
        max_file_bytes: int,
        key_capacity: int,
        limits: GroupLimits,
    ) -> GroupPlan | None:
        found.firsts.append(first)
        return plan_group(
            spec, works, first, max_file_bytes=max_file_bytes, key_capacity=key_capacity, limits=limits
        )

    monkeypatch.setattr(runner, "plan_group", plan)
    return found


@pytest.mark.parametrize("output_bytes", [None, 1 << 30])
@pytest.mark.parametrize(("codec", "merged"), [(Codec.GZIP, "producer"), (Codec.NONE, "gzip")])
def test_the_task_pauses_after_groups_that_cannot_be_read_or_written(
    harness: CompactionHarness, attempts: Attempts, codec: Codec, merged: str, output_bytes: int | None
) -> None:
    spec = write_wide_files(harness, codec=codec)
    partitions = tuple(replace(each, compression_type=merged) for each in spec.partitions)
    spec = replace(spec, partitions=partitions, output_bytes=output_bytes)

    assert attempts.of(harness, spec) == [0, 1, 3, 7, 15]


@pytest.mark.parametrize("sections", [1, 2, 5])
def test_the_task_does_not_pause_after_a_full_file(
    harness: CompactionHarness, attempts: Attempts, sections: int
) -> None:
    spec = write_wide_files(harness)
    length = harness.run(spec).files[0].extents[0].length

    firsts = attempts.of(harness, replace(spec, output_bytes=sections * length))

    assert firsts == list(range(0, 20, sections))


@pytest.mark.parametrize("kinds", list(product(SectionKind, repeat=2)))
def test_only_sections_with_uncompressed_batches_are_read_again(
    harness: CompactionHarness,
    monkeypatch: pytest.MonkeyPatch,
    kinds: tuple[SectionKind, SectionKind],
) -> None:
    """So are sections that have no batches of the log, as if each partition was processed on its own."""
    topic = harness.topic()
    compressed = batch((b"a", b"1"), (b"b", b"2"), codec=Codec.LZ4)
    plain = batch((b"b", b"3"))
    batches = {
        SectionKind.COMPRESSED: [compressed, compressed],
        SectionKind.PLAIN: [plain],
        SectionKind.MIXED: [compressed, plain, compressed],
        SectionKind.ABORTED: [replace(plain, producer_id=1)],
    }
    for _ in range(2):
        harness.log.ingest({PartitionId(topic, index): batches[kind] for index, kind in enumerate(kinds)}, 1)
    spec = harness.log.job()
    partitions = tuple(
        replace(each, aborted=(AbortedTransaction(1, 0, each.upper_offset),)) for each in spec.partitions
    )

    reads = []

    def read(group: Group, count: int, opens: int) -> int:
        reads.append(count)
        return int(read_partitions(group, count, opens))

    monkeypatch.setattr(runner, "read_partitions", read)

    found = check_both(harness, replace(spec, partitions=partitions))

    is_read_again = set(kinds) != {SectionKind.COMPRESSED}
    assert reads == [len(kinds)] * (1 + is_read_again)
    assert dict(found.counts)["get_requests"] == (4 if is_read_again else 2)


def test_a_partition_without_records_has_no_timestamps(harness: CompactionHarness) -> None:
    topic = harness.topic()
    keys = [PartitionId(topic, index) for index in range(2)]
    harness.log.ingest({key: [batch((b"a", None))] for key in keys})
    harness.compact()
    harness.clock.advance(DELETE_RETENTION_MS)

    (extents,) = check_both(harness, harness.log.job()).extents

    assert isinstance(extents, tuple)
    assert [(each.record_count, each.min_timestamp, each.max_timestamp) for each in extents] == [
        (0, -1, -1)
    ] * 2


def test_a_section_of_many_blocks_is_cut_at_the_same_batches(harness: CompactionHarness) -> None:
    """Outputs are longer than the target of a block, from sections that are shorter."""
    topic = harness.topic("delete"), harness.topic("compact")
    for number in range(5):
        batches = [batch((b"%d-%d" % (number, each), bytes(9000))) for each in range(9)]
        harness.log.ingest({PartitionId(each, index): batches for each in topic for index in (0, 1)})

    check_both(harness, harness.log.job())


def test_a_block_may_be_exactly_full(harness: CompactionHarness) -> None:
    value = bytes(BLOCK_TARGET // 2 - 80)
    value += bytes(BLOCK_TARGET // 2 - len(encode(batch((b"a", value)))))
    half = batch((b"a", value))
    assert len(encode(half)) * 2 == BLOCK_TARGET
    topic = harness.topic("delete")
    harness.log.ingest({PartitionId(topic, index): [half] * 3 for index in (0, 1)}, block_target=BLOCK_TARGET)

    check_both(harness, harness.log.job())

    for file in harness.run(harness.log.job()).files:
        assert [each.length for each in file.extents] == [3 * len(encode(half)) + 2 * 12] * 2


@pytest.mark.parametrize("field", ["base_offset", "shorter", "longer", "record_count"])
def test_a_catalog_that_disagrees_leads_to_the_same_error(harness: CompactionHarness, field: str) -> None:
    spec = write_wide_files(harness)
    (first, *others) = spec.inputs
    extents = list(first.extents)
    if field == "record_count":
        extents[7] = extents[7]._replace(record_count=5)
    elif field == "base_offset":
        extents[7] = extents[7]._replace(offset_shift=1)
    elif field == "shorter":
        extents[7] = extents[7]._replace(length=extents[7].length - 1)
    else:  # by less than the header of a block
        extents[7] = extents[7]._replace(length=extents[7].length + 11)

    found = check_both(harness, replace(spec, inputs=(replace(first, extents=tuple(extents)), *others)))

    assert found.error[0] is CorruptFileError
    assert found.error[3] == first.file_id


def test_a_section_of_another_partition_is_refused(harness: CompactionHarness) -> None:
    spec = write_wide_files(harness)
    (first, *others) = spec.inputs
    extents = list(first.extents)
    extents[7] = extents[7]._replace(position=extents[8].position, length=extents[8].length)
    extents[8] = extents[8]._replace(position=extents[9].position, length=extents[9].length)

    found = check_both(harness, replace(spec, inputs=(replace(first, extents=tuple(extents)), *others)))

    assert found.error[0] is CorruptFileError


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize("blocks", [1, 2])
def test_data_of_the_section_before_it_is_refused(
    harness: CompactionHarness, codec: Codec, blocks: int
) -> None:
    """The last extent is the second block of the section before it, of which the job has so many blocks.

    Blocks do not name their partition, and the header of a section is before its first one.
    """
    topic = harness.topic()
    batches = [batch((b"a", b"1"), codec=codec), batch((b"b", b"2"), codec=codec)]
    harness.log.ingest({PartitionId(topic, index): batches for index in range(4)}, block_target=1)
    spec = harness.log.job()
    (job_input,) = spec.inputs
    *before, third, _ = job_input.extents
    length = third.length // 2
    first_block = third._replace(last_offset=0, record_count=1, length=length)
    last = first_block._replace(partition=3, position=third.position + length, offset_shift=-1)
    if blocks == 1:
        third = first_block
    ends = [2, 2, blocks, 1]
    partitions = tuple(
        replace(each, upper_offset=end) for each, end in zip(spec.partitions, ends, strict=True)
    )
    inputs = (replace(job_input, extents=(*before, third, last)),)

    found = check_both(harness, replace(spec, inputs=inputs, partitions=partitions))

    assert found.error[0] is CorruptFileError
    assert "the data is of another one" in str(found.error[1])


def forge(
    harness: CompactionHarness, job_input: JobInput, at: int, value: int, section: int = 3, before: int = 0
) -> None:
    """Change a byte of a section's only DATA block, and correct the checksum of the block.

    The header of the section is the block of `before` bytes before it.
    """
    path = harness.directory / job_input.object_name
    data = bytearray(path.read_bytes())
    extent = job_input.extents[section]
    start, end = extent.position - before, extent.position + (0 if before else extent.length)
    block = data[start:end]
    block[at] = value
    checked = job_input.file_id.bytes + start.to_bytes(8, "big") + block[:8] + block[12:]
    block[8:12] = crc32c(checked).to_bytes(4, "big")
    data[start:end] = block
    path.write_bytes(data)


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
@pytest.mark.parametrize(
    ("at", "value"),
    [
        (0, 200),  # type of the block
        *((1, 1 << bit) for bit in range(8)),  # flags
        (2, 1),  # reserved
        (3, 1),
        (12, 0x80),  # base offset of the first batch
        (12 + 8, 0x7F),  # its length
        (12 + 16, 1),  # magic
        (12 + 22, 7),  # codec
        (12 + 23, 0x7F),  # last offset delta
        (12 + 57, 0x7F),  # number of records
        (12 + 60, 1),
        (12 + 61, 0x7E),  # length of the first record
    ],
)
def test_a_forged_block_gives_the_same_evidence(
    harness: CompactionHarness, codec: Codec, at: int, value: int
) -> None:
    spec = write_wide_files(harness, partitions=6, codec=codec)
    forge(harness, spec.inputs[1], at, value)

    found = check_both(harness, spec)

    ignored = at == 1 and value & IGNORED_BLOCK_FLAGS
    assert found.error == () if ignored else found.error[3] == spec.inputs[1].file_id


@given(
    file=st.integers(0, 2),
    section=st.integers(0, 5),
    is_header=st.booleans(),
    at=st.one_of(st.integers(0, 3), st.integers(12, 35), st.integers(36, 90)),
    value=st.one_of(st.integers(0, 8).map(lambda bit: 1 << bit & 0xFF), st.integers(0, 255)),
    codec=st.sampled_from([Codec.NONE, Codec.LZ4]),
    policy=st.sampled_from(["compact", "delete"]),
)
def test_any_forged_byte_gives_the_same_outcome(
    new_harness: Callable[[], CompactionHarness],
    file: int,
    section: int,
    *,
    is_header: bool,
    at: int,
    value: int,
    codec: Codec,
    policy: str,
) -> None:
    """A group that leads to no error has read all sections."""
    harness = new_harness()
    spec = write_wide_files(harness, partitions=6, codec=codec, policy=policy)
    before = SECTION_START_LENGTH if is_header else 0
    forge(harness, spec.inputs[file], at % before if before else at, value, section, before)
    stopped: list[object] = []

    with stopped_groups(stopped):
        found = check_both(harness, spec)

    assert found.error or not stopped


def test_damage_to_the_header_of_a_section_does_not_stop_a_group(
    harness: CompactionHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job reads the data of a section, whether or not its header is intact."""
    spec = write_wide_files(harness)
    path = harness.directory / spec.inputs[1].object_name
    data = bytearray(path.read_bytes())
    data[spec.inputs[1].extents[3].position - 1] ^= 1
    path.write_bytes(data)
    expected = check_both(harness, spec)

    refuse_single_partitions(monkeypatch)

    assert outcome(harness, spec, DEFAULT_LIMITS) == expected


@given(st.integers(0, 2), st.integers(0, 10**6), st.integers(0, 7), st.sampled_from([Codec.NONE, Codec.LZ4]))
def test_a_changed_bit_gives_the_same_evidence(
    new_harness: Callable[[], CompactionHarness], file: int, position: int, bit: int, codec: Codec
) -> None:
    harness = new_harness()
    spec = write_wide_files(harness, codec=codec, partitions=6)
    path = harness.directory / spec.inputs[file].object_name
    damaged = bytearray(path.read_bytes())
    damaged[position % len(damaged)] ^= 1 << bit
    path.write_bytes(damaged)

    found = check_both(harness, spec)

    if found.error:
        assert found.error[3] == spec.inputs[file].file_id


@given(st.integers(0, 10**6))
def test_a_truncated_file_gives_the_same_evidence(
    new_harness: Callable[[], CompactionHarness], length: int
) -> None:
    harness = new_harness()
    spec = write_wide_files(harness, partitions=6)
    path = harness.directory / spec.inputs[1].object_name
    data = path.read_bytes()
    path.write_bytes(data[: length % len(data)])

    check_both(harness, spec)


KEYS = st.one_of(st.none(), st.integers(0, 6).map(lambda key: b"key-%d" % key))
VALUES = st.one_of(st.none(), st.binary(max_size=12))
RECORDS = st.tuples(st.integers(0, 10**13), KEYS, VALUES, st.just(()))
CODECS = st.one_of(st.just(Codec.NONE), st.just(Codec.LZ4), st.sampled_from(Codec))
ONE_CODEC = st.sampled_from([None, None, Codec.NONE, Codec.LZ4])
BATCHES = st.builds(
    BatchToWrite,
    records=st.lists(RECORDS, min_size=1, max_size=6).map(tuple),
    codec=CODECS,
    rejected=st.integers(0, 7).map(lambda draw: draw == 0),
    producer_id=st.one_of(st.none(), st.integers(1, 2)),
    control=st.integers(0, 9).map(lambda draw: draw == 0),
)
FILES = st.dictionaries(st.integers(0, 5), st.lists(BATCHES, min_size=1, max_size=5), min_size=1)
ABORTED = st.lists(st.tuples(st.integers(1, 2), st.integers(0, 20), st.integers(0, 6)), max_size=3)
OPTIONS = st.fixed_dictionaries(
    {
        "compression_type": st.sampled_from(["producer", "uncompressed", "lz4", "gzip"]),
        "max_message_bytes": st.sampled_from([200, 1 << 20]),
        "reaches_log_start": st.booleans(),
    }
)


def with_aborted(spec: JobSpec, aborted: Sequence[tuple[int, int, int]]) -> JobSpec:
    """Return the job with these transactions in all partitions; those of one producer do not overlap."""
    found: list[AbortedTransaction] = []
    for producer_id, first, length in aborted:
        if all(each.producer_id != producer_id for each in found):
            found.append(AbortedTransaction(producer_id, first, first + length))
    return replace(spec, partitions=tuple(replace(each, aborted=tuple(found)) for each in spec.partitions))


@contextmanager
def blocks_of(target: int) -> Iterator[None]:
    """Write DATA blocks of this size, in groups and on their own."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(runner, "BLOCK_TARGET", target)
        writer = partial(SegmentFileWriter, block_target=target)
        monkeypatch.setattr(output_files, "SegmentFileWriter", writer)
        yield


@contextmanager
def stopped_groups(found: list[object]) -> Iterator[None]:
    """Add the partitions that stop the kernels of a group."""
    run = runner._GroupRun.run

    def record(group: runner._GroupRun, pass1: InputPass, pass2: InputPass) -> tuple[int, bool]:
        done, is_stopped = run(group, pass1, pass2)
        if is_stopped:
            found.append(group._plan.works[done].partition)
        return done, is_stopped

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(runner._GroupRun, "run", record)
        yield


@given(st.lists(FILES, min_size=1, max_size=5), ABORTED, OPTIONS, st.sampled_from([60, 200, 4096]), st.data())
def test_random_files_have_the_same_outcome(
    new_harness: Callable[[], CompactionHarness],
    files: Sequence[dict[int, list[BatchToWrite]]],
    aborted: Sequence[tuple[int, int, int]],
    options: dict[str, Any],
    block_target: int,
    data: st.DataObject,
) -> None:
    """All codecs, tombstones, transactions, holes, rejected batches and leader epochs, in several rounds."""
    harness = new_harness()
    topics = harness.topic("compact"), harness.topic("delete"), harness.topic("compact,delete")
    limits = data.draw(st.sampled_from([DEFAULT_LIMITS, GroupLimits(bytes=800), GroupLimits(records=9)]))
    codec = data.draw(ONE_CODEC)
    output_target = data.draw(st.sampled_from([BLOCK_TARGET, 100, 250, 600]))
    stopped: list[object] = []
    for number, file in enumerate(files):
        harness.log.ingest(
            {
                PartitionId(topics[key % 3], key // 3): [
                    each if codec is None else replace(each, codec=codec) for each in batches
                ]
                for key, batches in file.items()
            },
            block_target=block_target,
        )
        if number % 2:
            harness.clock.advance(data.draw(st.sampled_from([1, DELETE_RETENTION_MS / 1000])))
            with stopped_groups(stopped), blocks_of(output_target):
                check_both(harness, harness.log.job(), limits)
            harness.compact()
    spec = harness.log.job()
    spec = replace(
        spec,
        partitions=tuple(replace(each, **options) for each in spec.partitions),
        merge_batches=data.draw(st.booleans()),
        inputs=tuple(
            replace(
                each,
                extents=tuple(
                    extent._replace(leader_epoch=data.draw(st.sampled_from([KEEP_LEADER_EPOCH, 0, 7])))
                    for extent in each.extents
                ),
            )
            for each in spec.inputs
        ),
    )

    with stopped_groups(stopped), blocks_of(output_target):
        check_both(harness, with_aborted(spec, aborted), limits)
    fits = options["compression_type"] in ("producer", "uncompressed") or codec is Codec.LZ4
    if codec is not None and fits and options["compression_type"] != "gzip":
        assert not stopped


@pytest.mark.parametrize("epoch", [KEEP_LEADER_EPOCH, 5])
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4])
def test_batches_of_several_epochs_are_merged_in_the_same_way(
    harness: CompactionHarness, codec: Codec, epoch: int
) -> None:
    """Batches of a compacted file have their epochs in their headers, unless its extent has one."""
    topic = harness.topic()
    keys = [PartitionId(topic, index) for index in range(3)]
    for number in range(3):
        harness.log.ingest({key: [batch((b"%d" % number, b"value"), codec=codec)] for key in keys})
    for key in keys:
        first, second, third = harness.log.extents[key]
        harness.log.extents[key] = [first, second, third._replace(leader_epoch=8)]
    spec = harness.log.job()
    harness.log.publish(spec, harness.run(spec))
    spec = harness.log.job()
    inputs = tuple(
        replace(each, extents=tuple(extent._replace(leader_epoch=epoch) for extent in each.extents))
        for each in spec.inputs
    )

    found = check_both(harness, replace(spec, inputs=inputs))

    assert ("merged_bytes_saved" in dict(found.counts)) == (epoch == 5)


def test_compacted_files_with_many_containers_of_holes(harness: CompactionHarness) -> None:
    """Holes that span containers, in a partition of few records."""
    topic = harness.topic()
    ids = [PartitionId(topic, index) for index in range(3)]
    for number in range(3):
        harness.log.ingest({each: [batch((b"a", b"%d" % number), (b"b", b"x"))] for each in ids})
        for each in ids:
            harness.log.ends[each] += 70_000
    extents = {
        each: [extent._replace(last_offset=extent.last_offset) for extent in harness.log.extents[each]]
        for each in ids
    }
    assert all(len(found) == 3 for found in extents.values())
    spec = harness.log.job(extents)
    wide = tuple(
        replace(
            each, extents=tuple(one._replace(last_offset=one.base_offset + 70_001) for one in each.extents)
        )
        for each in spec.inputs
    )
    upper = [replace(each, upper_offset=each.upper_offset + 70_000) for each in spec.partitions]

    found = check_both(harness, replace(spec, inputs=wide, partitions=tuple(upper)))

    assert found.objects


@pytest.mark.parametrize("span", [4, 64 << 16])
def test_a_group_writes_only_to_its_memory(
    harness: CompactionHarness, monkeypatch: pytest.MonkeyPatch, span: int
) -> None:
    """It stops before a section that does not fit. A container of holes takes more memory than a record."""
    topic = harness.topic()
    records = batch((b"a", b"1"), (b"b", b"2"), (b"a", b"3"), (b"c", b"4"))
    harness.log.ingest({PartitionId(topic, index): [records] for index in (0, 1)})
    spec = harness.log.job()
    (job_input,) = spec.inputs
    spec = replace(
        spec,
        inputs=(
            replace(job_input, extents=tuple(e._replace(last_offset=span - 1) for e in job_input.extents)),
        ),
        partitions=tuple(replace(each, upper_offset=span) for each in spec.partitions),
    )
    expected = outcome(harness, spec, ONE_BY_ONE)
    outputs: list[Output] = []
    memories: list[npt.NDArray[np.uint8]] = []
    make_output = runner._GroupRun._make_output
    size = 0

    def limited(group: runner._GroupRun, writer: SegmentFileWriter) -> Output:
        output = make_output(group, writer)
        memories.append(np.full(output.out.size, 0xEE, np.uint8))
        outputs.append(output._replace(out=memories[-1][:size] if size else output.out))
        return outputs[-1]

    monkeypatch.setattr(runner._GroupRun, "_make_output", limited)
    assert outcome(harness, spec, DEFAULT_LIMITS) == expected
    ends = (outputs[0].sections[:, OUT_END] - outputs[0].position).tolist()
    holes_end = ends[0] - 76  # the footer follows
    for size in (
        1,
        30,
        50,
        90,
        *range(holes_end - 6, holes_end + 2),
        *range(ends[0] - 1, ends[0] + 2),
        ends[1] - 1,
    ):
        assert outcome(harness, spec, DEFAULT_LIMITS) == expected
        assert (memories[-1][size:] == 0xEE).all()


@pytest.mark.parametrize("kind", [SegmentKind.INGESTION, SegmentKind.COMPACTED])
def test_inputs_of_both_kinds_are_read_in_groups(harness: CompactionHarness, kind: SegmentKind) -> None:
    topic = harness.topic()
    for number in range(2):
        pairs = [(b"%d" % key, b"%d" % number) for key in range(5)]
        harness.log.ingest({PartitionId(topic, index): [batch(*pairs)] for index in range(4)}, kind=kind)

    assert check_both(harness, harness.log.job()).objects
