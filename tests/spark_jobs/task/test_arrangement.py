"""Parts of a job's inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from catalog.model import PartitionId
from object_format.segment_file import SegmentKind
from spark_jobs.task.arrangement import InputPart
from tests.spark_jobs.compaction_harness import CompactionHarness
from tests.spark_jobs.reference_log import batch

if TYPE_CHECKING:
    from pathlib import Path


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
