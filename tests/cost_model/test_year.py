"""Simulations of a year of a large system, in longer rounds than those of the command."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cost_model.engine.rounds import simulate_rounds
from cost_model.workload.definition import load_workload
from planner.settings import PlannerSettings


@pytest.mark.simulation
@pytest.mark.parametrize(
    ("name", "rounds", "max_rows"),
    [("platform", 1095, 150_000), ("changelog", 730, 40_000), ("clickstream", 1460, 1_000)],
)
def test_catalog_rows_per_gib_stay_bounded(name: str, rounds: int, max_rows: float) -> None:
    """They stop growing once retention deletes the oldest records."""
    outcome = simulate_rounds(load_workload(name), PlannerSettings(), model_partitions=12, max_rounds=rounds)
    assert outcome.days == pytest.approx(365)
    after_start = [sample.rows_per_gib for sample in outcome.samples if sample.day > 60]
    assert max(after_start) < max_rows
    late = [sample.rows_per_gib for sample in outcome.samples if sample.day > 335]
    early = [sample.rows_per_gib for sample in outcome.samples if 60 < sample.day < 90]
    assert max(late) < 1.1 * max(early)
    # Jobs never leave more extents than agents wrote.
    rates = outcome.rates
    written_per_gib = rates.extents / rates.stored_bytes * 2**30
    assert outcome.mean("extents") / (outcome.mean("live_bytes") / 2**30) < written_per_gib


def test_a_planner_that_cannot_keep_up_shows_a_growing_backlog() -> None:
    """The settings let it take fewer files than agents write."""
    workload = replace(load_workload("clickstream"), days=2)
    slow = simulate_rounds(workload, PlannerSettings(max_plan_files=10), model_partitions=8)
    assert slow.rates.capacity < 1
    waiting = [sample.waiting_files for sample in slow.samples]
    lost = slow.rates.files * 86_400 * (1 - slow.rates.capacity)
    assert waiting[-1] == pytest.approx(2 * lost, rel=0.1)
    assert waiting[len(waiting) // 2] == pytest.approx(lost, rel=0.1)
