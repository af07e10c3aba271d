"""Invariants of the simulated log under jobs and retention."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

from cost_model.engine.counts import Counts
from cost_model.engine.model_run import start_model_run
from cost_model.rates.steady_rates import steady_rates_of
from tests.cost_model.small import MIXED, SETTINGS

if TYPE_CHECKING:
    from uuid import UUID

    from catalog.model import Extent, PartitionId
    from cost_model.engine.simulated_log import SimulatedLog


def assert_consistent(log: SimulatedLog) -> None:
    """Assert that extents cover each partition without gaps and that files add up to their extents."""
    live_extents: dict[UUID, dict[tuple[PartitionId, int], Extent]] = {}
    for part in log.partitions.values():
        assert all(after.base_offset == before.last_offset + 1 for before, after in pairwise(part.extents))
        if part.extents:
            assert part.extents[0].base_offset == part.log_start
            assert part.extents[-1].last_offset == part.log_end - 1
        assert set(part.rows) == {extent.base_offset for extent in part.extents}
        for extent in part.extents:
            live_extents.setdefault(extent.file_id, {})[part.key, extent.base_offset] = extent
    files = log.files | log.ingestion
    assert live_extents == {file_id: file.live for file_id, file in files.items()}
    for file in files.values():
        assert file.live_bytes == sum(extent.length for extent in file.live.values())
        assert file.live_bytes <= file.initial_bytes <= file.view.size


@pytest.mark.parametrize("compacted", [True, False])
@pytest.mark.parametrize("scale", [1, 1000])
def test_the_simulated_log_stays_consistent(*, compacted: bool, scale: int) -> None:
    """It does so after arrivals, jobs and retention, with or without thinning and dilation."""
    topics = tuple(
        replace(each, topics=each.topics * scale, mb_per_second=each.mb_per_second * scale)
        for each in MIXED.topics
    )
    workload = replace(MIXED, topics=topics)
    rates = steady_rates_of(workload, SETTINGS)
    run = start_model_run(workload, rates, SETTINGS, 600.0, compacted=compacted)
    assert run is not None
    assert (run.model.log.scale.thinning > 1) == (run.model.log.scale.dilation > 1) == (scale > 1)
    counts = Counts()
    for number in range(1, 60):
        run.append_round((number - 1) * 600_000, number * 600_000)
        assert_consistent(run.model.log)
        run.model.log.expire(number * 600_000)
        run.compact(number * 600_000, counts)
        run.drain_backlog(0)
        assert_consistent(run.model.log)
        run.record_dead_files()
        assert not run.model.log.ingestion
    assert counts.written_bytes > 0


def test_slow_tasks_leave_a_backlog() -> None:
    """No job is planned while the tasks are busy, and ingestion files accumulate."""
    rates = steady_rates_of(MIXED, SETTINGS)
    run = start_model_run(MIXED, rates, SETTINGS, 600.0, compacted=False)
    assert run is not None
    for number in range(1, 20):
        run.append_round((number - 1) * 600_000, number * 600_000)
        run.compact(number * 600_000, Counts())
        run.drain_backlog(1.0)
    assert run.backlog_bytes > 0
    assert len(run.model.log.ingestion) == 18
