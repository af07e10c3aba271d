"""The log in memory that jobs are applied to."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from cost_model.engine.counts import Counts
from cost_model.engine.running import running_cell
from cost_model.engine.steady_state import front_of
from tests.cost_model.small import MIXED, SETTINGS

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.model import Extent, PartitionId
    from cost_model.engine.scaled_model import CellLog


def check(log: CellLog) -> None:
    """Extents cover each partition without gap, and files add up to their extents."""
    held: dict[UUID, dict[tuple[PartitionId, int], Extent]] = {}
    for part in log.parts.values():
        assert all(after.base_offset == before.last_offset + 1 for before, after in pairwise(part.extents))
        if part.extents:
            assert part.extents[0].base_offset == part.log_start
            assert part.extents[-1].last_offset == part.log_end - 1
        assert set(part.rows) == {extent.base_offset for extent in part.extents}
        for extent in part.extents:
            held.setdefault(extent.file_id, {})[part.key, extent.base_offset] = extent
    files = log.files | log.ingestion
    assert held == {file_id: file.live for file_id, file in files.items()}
    for file in files.values():
        assert file.live_bytes == sum(extent.length for extent in file.live.values())
        assert file.live_bytes <= file.born_bytes <= file.view.size


@pytest.mark.parametrize("compacted", [True, False])
@pytest.mark.parametrize("scale", [1, 1000])
def test_a_cell_stays_whole(*, compacted: bool, scale: int) -> None:
    """Through arrivals, jobs and retention, thinned or not, dilated or not."""
    topics = tuple(
        replace(each, topics=each.topics * scale, mb_per_second=each.mb_per_second * scale)
        for each in MIXED.topics
    )
    workload = replace(MIXED, topics=topics)
    front = front_of(workload, SETTINGS)
    cell = running_cell(workload, front, SETTINGS, 600.0, compacted=compacted)
    assert cell is not None
    assert (cell.cell.log.scale.thinning > 1) == (cell.cell.log.scale.dilation > 1) == (scale > 1)
    counts = Counts()
    for number in range(1, 60):
        cell.arrive((number - 1) * 600_000, number * 600_000)
        check(cell.cell.log)
        cell.cell.log.expire(number * 600_000)
        cell.compact(number * 600_000, counts)
        cell.work_off(0)
        check(cell.cell.log)
        cell.bury()
        assert not cell.cell.log.ingestion
    assert counts.written_bytes > 0


def test_tasks_that_are_too_slow_leave_a_backlog() -> None:
    """Nothing new is planned while jobs are waiting, and files pile up."""
    front = front_of(MIXED, SETTINGS)
    cell = running_cell(MIXED, front, SETTINGS, 600.0, compacted=False)
    assert cell is not None
    for number in range(1, 20):
        cell.arrive((number - 1) * 600_000, number * 600_000)
        cell.compact(number * 600_000, Counts())
        cell.work_off(1.0)
    assert cell.debt_bytes > 0
    assert len(cell.cell.log.ingestion) == 18
