"""One pass over the inputs of a job: its counts, offsets of byte ranges, and what is proof against a file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from catalog.jobs.byte_ranges import ByteRange
from catalog.model import AbortedTransaction, PartitionId
from core.errors import CorruptDataError, CorruptFileError
from object_format.errors import Fault, MalformedBatchError
from object_format.segment_file import SegmentKind
from spark_jobs.task.arrangement import InputPart, PartitionWork, arrange, input_uses
from spark_jobs.task.counts import TaskCounts
from spark_jobs.task.input_pass import InputPass
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from catalog.model import JobSpec

BATCHES = 4
FILES = 3


@pytest.fixture
def harness(tmp_path: Path) -> CompactionHarness:
    return CompactionHarness(tmp_path)


def input_pass(harness: CompactionHarness, spec: JobSpec, works: Sequence[PartitionWork]) -> InputPass:
    return InputPass(
        spec,
        harness.log.store,
        input_uses(works, deduplicated_only=False),
        read_size=1 << 20,
        check=lambda: None,
        counts=TaskCounts(None, harness.clock),
    )


def one_partition(harness: CompactionHarness) -> tuple[JobSpec, PartitionWork]:
    """Write files with one partition, each with blocks of one record."""
    key = PartitionId(harness.topic(), 0)
    for _ in range(FILES):
        batches = [batch((b"a", b"%d" % number)) for number in range(BATCHES)]
        harness.log.ingest({key: batches}, 1, SegmentKind.COMPACTED)
    spec = harness.log.job()
    (work,) = arrange(spec)
    return spec, work


def block_length(part: InputPart) -> int:
    return part.data.length // BATCHES


def cut(part: InputPart, start: int, end: int) -> InputPart:
    """Return the part without the blocks before index `start`, and from index `end` on."""
    length = block_length(part)
    return part._replace(
        byte_range=ByteRange(part.data.start + start * length, part.data.start + end * length)
    )


@pytest.mark.parametrize("first", range(BATCHES))
@pytest.mark.parametrize("end", range(1, BATCHES + 1))
def test_the_offsets_of_a_work_are_those_of_its_first_and_last_part(
    harness: CompactionHarness, first: int, end: int
) -> None:
    spec, work = one_partition(harness)
    parts = (cut(work.parts[0], first, BATCHES), work.parts[1], cut(work.parts[2], 0, end))
    work = replace(work, parts=parts)
    reader = input_pass(harness, spec, [work])

    begin = reader.first_offset(work)
    counts = [sum(piece.record_count for piece, _, _ in reader.pieces(work, part)) for part in parts]

    assert (begin, reader.end_offset(work)) == (first, 2 * BATCHES + end)
    assert counts == [BATCHES - first, BATCHES, end]


def test_a_whole_work_has_the_offsets_of_its_partition(harness: CompactionHarness) -> None:
    """Control batches that the job removes are after the last extent."""
    spec, work = one_partition(harness)
    work = replace(work, partition=replace(work.partition, upper_offset=99))
    reader = input_pass(harness, spec, [work])

    assert (reader.first_offset(work), reader.end_offset(work)) == (0, 99)


def test_a_pass_counts_its_largest_buffer_and_aborted_records(harness: CompactionHarness) -> None:
    topic = harness.topic()
    for _ in range(2):
        transactional = batch((b"a", b"1"), (b"b", bytes(500)), producer_id=7)
        harness.log.ingest({PartitionId(topic, 0): [transactional, batch((b"c", b"2"))]})
    spec = harness.log.job()
    (work,) = arrange(spec)
    work = replace(work, partition=replace(work.partition, aborted=(AbortedTransaction(7, 0, 2),)))
    reader = input_pass(harness, spec, [work])
    assert (reader.largest_buffer, reader.aborted_records) == (0, 0)

    found = [list(reader.pieces(work, part)) for part in work.parts]

    assert [sum(piece.record_count for piece, _, _ in each) for each in found] == [1, 3]
    assert reader.aborted_records == 2
    assert reader.largest_buffer == max(part.data.length for part in work.parts) + 36


def test_inputs_are_requested_early_only_if_the_pass_needs_them(harness: CompactionHarness) -> None:
    spec, work = one_partition(harness)
    reader = input_pass(harness, spec, [replace(work, parts=work.parts[:1])])

    reader.prefetch(None)
    reader.prefetch(work.parts[1])

    assert reader.opened == set()


def test_malformed_batches_are_proof_against_the_file_that_their_location_names(
    harness: CompactionHarness,
) -> None:
    """The origin of an error is more exact than the location. A missing survivor is no proof."""
    spec, work = one_partition(harness)
    reader = input_pass(harness, spec, [work])
    first, second, third = spec.inputs
    for fault, origin, location, proof in (
        (Fault.RECORD_LENGTH, "", f"{second.object_name}: partition 0", second.file_id),
        (
            Fault.RECORD_LENGTH,
            f"{third.object_name}: block",
            f"{first.object_name}: partition 0",
            third.file_id,
        ),
        (Fault.RECORD_LENGTH, "", "", None),
        (Fault.RECORD_LENGTH, "", "another object: partition 0", None),
        (Fault.SURVIVORS, "", f"{second.object_name}: partition 0", None),
    ):
        error = MalformedBatchError.at(fault, 5)
        error.origin = origin
        with pytest.raises(CorruptDataError) as found, reader.located(location):
            raise error
        file_id = found.value.file_id if isinstance(found.value, CorruptFileError) else None
        assert file_id == proof
        assert found.value.message == f"{origin or location}: {error.message}"
