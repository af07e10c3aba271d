"""The stream over the sections of one input file: its requests and its errors."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pytest

from catalog.jobs.byte_ranges import ByteRange
from catalog.model import PartitionId
from core.errors import CorruptDataError, InvalidInputError
from object_format.segment_file import SECTION_START_LENGTH, SegmentKind
from spark_jobs.task.arrangement import InputPart, PartitionWork, arrange
from spark_jobs.task.counts import TaskCounts
from spark_jobs.task.section_stream import SectionStream
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from pathlib import Path

    from catalog.model import JobSpec

BATCHES = 4


@dataclass
class File:
    """A file with three sections of `BATCHES` blocks, and the work of each."""

    harness: CompactionHarness
    spec: JobSpec
    works: list[PartitionWork]

    def stream(
        self, *, read_size: int = 1 << 20, end: int | None = None, thread: ThreadPoolExecutor | None = None
    ) -> SectionStream:
        (job_input,) = self.spec.inputs
        return SectionStream(
            self.harness.log.store,
            job_input,
            end=self.works[-1].parts[0].data.end if end is None else end,
            read_size=read_size,
            counts=TaskCounts(None, self.harness.clock),
            thread=thread,
        )


@pytest.fixture
def file(tmp_path: Path) -> File:
    harness = CompactionHarness(tmp_path)
    topic = harness.topic()
    batches = [batch((b"%d" % number, bytes(50))) for number in range(BATCHES)]
    harness.log.ingest({PartitionId(topic, index): batches for index in range(3)}, 1, SegmentKind.COMPACTED)
    spec = harness.log.job()
    return File(harness, spec, arrange(spec))


def positions(stream: SectionStream, work: PartitionWork) -> list[int]:
    return [block.position for block in stream.blocks(work.partition_id, work.parts[0])]


def cut(work: PartitionWork, start: int, end: int) -> PartitionWork:
    """Return the work within a byte range, which counts from the start of its data."""
    (part,) = work.parts
    byte_range = ByteRange(part.data.start + start, part.data.start + end)
    return replace(work, parts=(part._replace(byte_range=byte_range),))


def test_sections_are_read_in_order_and_others_are_skipped(file: File) -> None:
    stream = file.stream()
    for work in (file.works[0], file.works[2]):
        (part,) = work.parts
        step = (part.data.end - part.data.start) // BATCHES
        assert stream.first_offset(work.partition_id, part) == 0
        assert positions(stream, work) == list(range(part.data.start, part.data.end, step))
        assert stream.end_offset(part) == BATCHES
    assert stream.was_opened


def test_a_section_of_several_extents_begins_with_the_first_one(file: File) -> None:
    work = file.works[1]
    (part,) = work.parts
    (extent,) = part.extents
    halves = (extent._replace(last_offset=1), extent._replace(base_offset=2))
    assert file.stream().first_offset(work.partition_id, part._replace(extents=halves)) == 0


@pytest.mark.parametrize("position", [0, 10, SECTION_START_LENGTH - 1])
def test_an_extent_before_the_first_section_is_corrupt(file: File, position: int) -> None:
    """The header of a section does not fit before it."""
    work = file.works[0]
    (part,) = work.parts
    extent = part.extents[0]._replace(position=position)
    with pytest.raises(CorruptDataError, match="the data is of another one"):
        file.stream().first_offset(work.partition_id, InputPart.of(0, (extent,)))


def test_memory_is_that_of_a_read_or_of_the_whole_range(file: File) -> None:
    (part,) = file.works[0].parts
    length = file.works[-1].parts[0].data.end - (part.data.start - SECTION_START_LENGTH)
    for read_size, expected in (
        (300, 300),
        (length - 1, length - 1),
        (length + 1, length),
        (1 << 20, length),
    ):
        stream = file.stream(read_size=read_size)
        assert stream.buffer_size == 0
        positions(stream, file.works[0])
        assert stream.buffer_size == expected


def test_a_byte_range_has_the_blocks_that_start_in_it(file: File) -> None:
    (part,) = file.works[1].parts
    step = (part.data.end - part.data.start) // BATCHES
    for start, end, expected in (
        (0, step, [0]),
        (1, step, []),
        (1, step + 1, [1]),
        (step, 2 * step, [1]),
        (step, 3 * step + 1, [1, 2, 3]),
        (3 * step + 1, 4 * step, []),
    ):
        stream = file.stream()
        work = cut(file.works[1], start, end)
        assert positions(stream, work) == [part.data.start + step * number for number in expected]
        assert stream.first_offset(work.partition_id, work.parts[0]) == (expected[0] if expected else None)
        if expected:
            assert stream.end_offset(work.parts[0]) == expected[-1] + 1


def test_an_index_must_cover_the_data_of_its_section(file: File) -> None:
    work = cut(file.works[1], 1, 1 << 20)
    (part,) = work.parts
    (extent,) = part.extents
    shorter = part._replace(data=part.data._replace(end=part.data.end - 1))
    with pytest.raises(CorruptDataError, match="the index of section"):
        file.stream().first_offset(work.partition_id, shorter)
    without_index = part._replace(extents=(extent._replace(index_length=0),))
    with pytest.raises(InvalidInputError, match="a section without an index cannot be read from byte"):
        file.stream().first_offset(work.partition_id, without_index)


def test_bytes_are_peeked_at_until_the_stream_is_after_them(file: File) -> None:
    first, second, third = (work.parts[0] for work in file.works)
    data = (file.harness.directory / file.spec.inputs[0].object_name).read_bytes()
    stream = file.stream()

    def peek(start: int, end: int) -> bytes | None:
        found = stream.peek(start, end)
        return None if found is None else bytes(found)

    for _ in range(2):
        assert peek(first.data.start, second.data.end) == data[first.data.start : second.data.end]
    stream.skip_to(second.data.start)
    assert peek(second.data.start - 1, second.data.end) is None
    assert peek(second.data.start, third.data.end + 1) is None
    assert peek(third.data.end + 1, third.data.end + 2) is None
    stream = file.stream()
    assert peek(second.data.start, third.data.end) == data[second.data.start : third.data.end]


def test_a_closed_stream_cannot_be_used(file: File) -> None:
    stream = file.stream()
    with pytest.raises(InvalidInputError, match="is not open"):
        stream.skip_to(100)
    positions(stream, file.works[0])
    stream.close()
    stream.close()
    with pytest.raises(InvalidInputError, match="is closed"):
        positions(stream, file.works[1])
    with pytest.raises(InvalidInputError, match="is closed"):
        stream.peek(0, 1)
    assert stream.was_opened


def test_only_the_start_of_a_section_is_requested_in_advance(file: File) -> None:
    """The first block of a byte range is known only after the index has been read."""
    (part,) = file.works[1].parts
    empty = InputPart.of(part.input_index, tuple(extent._replace(length=0) for extent in part.extents))
    with ThreadPoolExecutor(1) as thread:
        stream = file.stream(thread=thread)
        stream.prefetch(empty)
        stream.prefetch(cut(file.works[1], 1, 500).parts[0])
        before = stream.was_opened
        stream.prefetch(part)
        stream.prefetch(part)
        assert (before, stream.was_opened) == (False, True)
        assert len(positions(stream, file.works[1])) == BATCHES
        stream.close()
        closed = file.stream(thread=thread)
        closed.close()
        closed.prefetch(part)
        assert not closed.was_opened
    without_thread = file.stream()
    without_thread.prefetch(part)
    assert not without_thread.was_opened
