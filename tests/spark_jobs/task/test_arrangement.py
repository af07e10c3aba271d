"""Parts of a job's inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from catalog.model import PartitionId
from core.errors import InvalidInputError
from object_format.segment_file import SegmentKind
from spark_jobs.task.arrangement import InputPart, arrange
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from catalog.model import JobSpec


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
    part = InputPart(
        0,
        tuple(
            extent._replace(base_offset=base, last_offset=last, offset_shift=shift)
            for base, last in ((10, 19), (30, 39))
        ),
    )
    assert part.offset_of(None if stored is None else stored - shift) == offset


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


@pytest.mark.parametrize(
    ("last", "controls"), [(11, []), (10, [(11, 11)])], ids=["without controls", "with controls"]
)
def test_files_whose_offsets_alternate_are_refused(
    tmp_path: Path, last: int, controls: list[tuple[int, int]]
) -> None:
    """Each file is read once, so one would count as newer than the other as a whole."""
    with pytest.raises(InvalidInputError, match=r"do not cover \[0, 12\)"):
        arrange(job_over(tmp_path, [[(0, 4), (8, last)], [(5, 7)]], controls))
