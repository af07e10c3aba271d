"""Parts of a job's inputs."""

from __future__ import annotations

import gc
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from catalog.jobs.byte_ranges import ByteRange
from catalog.model import PartitionId
from core.errors import InvalidInputError
from object_format.segment_file import SegmentKind
from spark_jobs.task.arrangement import InputPart, arrange
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from catalog.model import Extent, JobSpec


@pytest.mark.parametrize("shift", [0, 10])
@pytest.mark.parametrize(
    ("stored", "offset"), [(5, 10), (10, 10), (18, 18), (19, 19), (20, 30), (39, 39), (40, 40), (None, 40)]
)
def test_a_block_without_an_offset_begins_at_the_next_extent(
    tmp_path: Path, shift: int, stored: int | None, offset: int
) -> None:
    """The first batch of a block may belong to no extent, as its offsets were rejected or have expired."""
    harness = CompactionHarness(tmp_path)
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch((b"a", b"1"))]}, kind=SegmentKind.COMPACTED)
    (extent,) = harness.log.extents[partition_id]
    part = InputPart.of(
        0,
        tuple(
            extent._replace(base_offset=base, last_offset=last, offset_shift=shift)
            for base, last in ((10, 19), (30, 39))
        ),
    )
    assert part.offset_of(None if stored is None else stored - shift) == offset


def test_a_part_of_one_section_has_an_index(tmp_path: Path) -> None:
    """A compacted file may have several sections of a partition, one for each retention window."""
    harness = CompactionHarness(tmp_path)
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch((b"a", b"1"))]}, kind=SegmentKind.COMPACTED)
    (extent,) = harness.log.extents[partition_id]
    extent = extent._replace(index_position=700, index_length=60)
    empty = extent._replace(position=0, length=0, index_position=0, index_length=0)
    other = extent._replace(index_position=900, index_length=40)
    without = extent._replace(index_position=0, index_length=0)

    def index_of(*extents: Extent) -> ByteRange | None:
        return InputPart.of(0, extents).section_index

    assert index_of(extent) == index_of(extent, extent) == index_of(empty, extent) == ByteRange(700, 760)
    assert index_of(extent, other) is None
    assert index_of(without) is None


def test_data_beyond_a_byte_range_is_cut_off(tmp_path: Path) -> None:
    """A range that begins or ends with the data cuts nothing, so that its index is not read."""
    harness = CompactionHarness(tmp_path)
    partition_id = PartitionId(harness.topic(), 0)
    harness.log.ingest({partition_id: [batch((b"a", b"1"))]}, kind=SegmentKind.COMPACTED)
    whole = InputPart.of(0, tuple(harness.log.extents[partition_id]))
    start, end = whole.data

    def cuts(first: int, last: int) -> tuple[bool, bool]:
        part = whole._replace(byte_range=ByteRange(first, last))
        return part.cut_before, part.cut_behind

    assert (whole.cut_before, whole.cut_behind) == (False, False)
    assert cuts(start, end) == cuts(0, end + 1) == (False, False)
    assert cuts(start + 1, end) == (True, False)
    assert cuts(start, end - 1) == (False, True)


def job_over(
    tmp_path: Path, files: Sequence[Sequence[tuple[int, int]]], controls: Sequence[tuple[int, int]]
) -> JobSpec:
    """Return a job over [0, 12) of a partition: files with extents of these offsets, and control batches.

    The records of the first file are in another retention window than the others.
    """
    harness = CompactionHarness(tmp_path)
    partition_id = PartitionId(harness.topic("compact,delete"), 0)
    for _ in files:
        harness.log.ingest({partition_id: [batch((b"a", b"1"))]})
    now_ms = harness.clock.now_ms()
    extents = [
        extent._replace(base_offset=base, last_offset=last, max_timestamp=now_ms - 1000 * (number == 0))
        for number, (extent, ranges) in enumerate(zip(harness.log.extents[partition_id], files, strict=True))
        for base, last in ranges
    ]
    spec = harness.log.job({partition_id: extents})
    (partition,) = spec.partitions
    expiring = replace(
        partition, base_offset=0, upper_offset=12, controls=tuple(controls), expires_after_ms=1500
    )
    return replace(spec, partitions=(expiring,))


def test_a_section_covers_the_control_batches_after_its_part(tmp_path: Path) -> None:
    """No offset between two sections is left out, and the last section ends with the job's range."""
    files = [[(0, 4)], [(6, 7), (8, 9)]]
    (work,) = arrange(job_over(tmp_path, files, controls=[(5, 5), (10, 11)]))

    first, second = work.by_window()

    assert [part.upper_offset for part in work.parts] == [6, 12]
    assert work.parts[0].offset_of(None) == 6
    ranges = [(each.partition.base_offset, each.partition.upper_offset) for each in (first, second)]
    assert ranges == [(0, 6), (6, 12)]


@pytest.mark.parametrize("controls", [[], [(5, 5)], [(5, 5), (10, 10)], [(10, 11)], [(4, 5), (10, 11)]])
def test_the_extents_and_control_batches_of_a_job_cover_its_range(
    tmp_path: Path, controls: list[tuple[int, int]]
) -> None:
    with pytest.raises(InvalidInputError, match=r"do not cover \[0, 12\)"):
        arrange(job_over(tmp_path, [[(0, 4)], [(6, 9)]], controls))


@pytest.mark.parametrize(
    ("last", "controls"), [(11, []), (10, [(11, 11)])], ids=["without controls", "with controls"]
)
def test_files_whose_offsets_alternate_are_refused(
    tmp_path: Path, last: int, controls: list[tuple[int, int]]
) -> None:
    """Each file is read once, so one would count as newer than the other as a whole."""
    with pytest.raises(InvalidInputError, match=r"do not cover \[0, 12\)"):
        arrange(job_over(tmp_path, [[(0, 4), (8, last)], [(5, 7)]], controls))


def test_the_cycle_collector_does_not_run_while_a_job_is_arranged(tmp_path: Path) -> None:
    """It would scan the parts of a wide job again and again while they grow in number."""
    harness = CompactionHarness(tmp_path)
    topic_id = harness.topic()
    harness.log.ingest({PartitionId(topic_id, number): [batch((b"a", b"1"))] for number in range(500)})
    spec = harness.log.job(table_bytes=1 << 20)
    runs: list[str] = []

    def record(phase: str, _: object) -> None:
        if phase == "start":
            runs.append(phase)

    thresholds = gc.get_threshold()
    gc.collect()
    gc.set_threshold(300, 1, 1)
    gc.callbacks.append(record)
    try:
        arrange(spec)
        count = len(runs)
    finally:
        gc.callbacks.remove(record)
        gc.set_threshold(*thresholds)
    assert count <= 1  # directly after it
