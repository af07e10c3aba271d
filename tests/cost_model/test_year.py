"""A year of a large system, in coarser steps than the command takes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_model.engine.rounds import simulate_rounds
from cost_model.workload.workload import load_workload
from planner.settings import PlannerSettings


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("name", "rounds", "most_rows"),
    [("platform", 1095, 150_000), ("changelog", 730, 40_000), ("clickstream", 1460, 1_000)],
)
def test_rows_for_each_gib_stay_bounded(name: str, rounds: int, most_rows: float) -> None:
    """Once retention has begun to take away what came first, a year adds nothing to them."""
    outcome = simulate_rounds(load_workload(name), PlannerSettings(), cell_partitions=12, most_rounds=rounds)
    assert outcome.days == pytest.approx(365)
    settled = [sample.rows_per_gib for sample in outcome.samples if sample.day > 60]
    assert max(settled) < most_rows
    late = [sample.rows_per_gib for sample in outcome.samples if sample.day > 335]
    early = [sample.rows_per_gib for sample in outcome.samples if 60 < sample.day < 90]
    assert max(late) < 1.1 * max(early)
    # Jobs never leave more extents than agents wrote.
    front = outcome.front
    written_per_gib = front.extents / front.stored_bytes * 2**30
    assert outcome.mean("extents") / (outcome.mean("live_bytes") / 2**30) < written_per_gib


def test_a_planner_that_cannot_keep_up_shows_a_growing_backlog() -> None:
    """Its bounds let it take fewer files than agents write."""
    workload = replace(load_workload("clickstream"), days=2)
    slow = simulate_rounds(workload, PlannerSettings(max_plan_files=10), cell_partitions=8)
    assert slow.front.capacity < 1
    waiting = [sample.waiting_files for sample in slow.samples]
    lost = slow.front.files * 86_400 * (1 - slow.front.capacity)
    assert waiting[-1] == pytest.approx(2 * lost, rel=0.1)
    assert waiting[len(waiting) // 2] == pytest.approx(lost, rel=0.1)
