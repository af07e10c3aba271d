"""Comparison of the aggregated simulation with the exact one, on workloads small enough for both."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from core.errors import InvalidInputError
from cost_model.engine.events import simulate_events
from cost_model.engine.rounds import simulate_rounds
from cost_model.workload.definition import TopicClass, Workload, load_workload
from planner.settings import PlannerSettings
from tests.cost_model.small import MIXED, SETTINGS, SHORT, SHORT_SETTINGS

if TYPE_CHECKING:
    from cost_model.engine.outcome import Outcome


@pytest.fixture(scope="module")
def exact() -> Outcome:
    return simulate_events(MIXED, SETTINGS, seed=1)


@pytest.fixture(scope="module")
def aggregated() -> Outcome:
    return simulate_rounds(MIXED, SETTINGS)


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("live_bytes", 0.05),
        ("stored_bytes", 0.1),
        ("ideal_bytes", 0.1),
        ("rows", 0.1),
        ("extents", 0.35),
        ("objects", 0.2),
        ("waiting_files", 0.05),
        ("dirty_ratio", 0.15),
        ("read_amplification", 0.02),
    ],
)
def test_samples_of_both_simulations_agree(
    exact: Outcome, aggregated: Outcome, name: str, tolerance: float
) -> None:
    """docs/explanation/cost.md states these tolerances."""
    assert aggregated.mean(name) == pytest.approx(exact.mean(name), rel=tolerance)


@pytest.mark.parametrize(
    ("name", "tolerance"),
    [
        ("ingested_bytes", 0.02),
        ("put_ingest", 0.02),
        ("ingestion_extents", 0.02),
        ("ingestion_jobs", 0.02),
        ("written_bytes", 0.25),
        ("read_bytes", 0.35),
        ("get_compaction", 0.35),
        ("get_fetch", 0.2),
        ("fetch_bytes", 0.2),
        ("written_objects", 0.15),
        ("upload_requests", 0.2),
        ("deleted_objects", 0.05),
        ("delete_calls", 0.1),
        ("get_gc", 0.02),
    ],
)
def test_counts_of_both_simulations_agree(
    exact: Outcome, aggregated: Outcome, name: str, tolerance: float
) -> None:
    """docs/explanation/cost.md states these tolerances."""
    assert getattr(aggregated.month, name) == pytest.approx(getattr(exact.month, name), rel=tolerance)


def test_both_simulations_agree_if_cleaning_and_clustering_need_separate_jobs() -> None:
    """Partitions become dirty or fragmented one by one; docs/explanation/cost.md states the tolerances."""
    exact = simulate_events(SHORT, SHORT_SETTINGS, seed=1)
    aggregated = simulate_rounds(SHORT, SHORT_SETTINGS)
    assert exact.month.clustering_jobs > 2 * exact.month.cleaning_jobs > 40_000
    for name, tolerance in (("rows", 0.15), ("extents", 0.35), ("live_bytes", 0.05), ("stored_bytes", 0.1)):
        assert aggregated.mean(name) == pytest.approx(exact.mean(name), rel=tolerance)
    for name, tolerance in (
        ("written_bytes", 0.25),
        ("read_bytes", 0.35),
        ("get_compaction", 0.5),
        ("get_fetch", 0.2),
        ("fetch_bytes", 0.2),
        ("written_objects", 0.15),
        ("upload_requests", 0.2),
        ("cleaning_jobs", 0.5),
        ("clustering_jobs", 0.5),
        ("merging_jobs", 0.5),
        ("deleted_objects", 0.05),
        ("delete_calls", 0.1),
    ):
        assert getattr(aggregated.month, name) == pytest.approx(getattr(exact.month, name), rel=tolerance)


def test_catalog_rows_are_bounded_by_live_bytes_and_partitions() -> None:
    """The bound does not depend on ingestion; docs/explanation/planner.md derives it."""
    settings = PlannerSettings()
    waiting = settings.resting_extents + 2 * settings.merge_fan_in
    topic = TopicClass(name="t", partitions=10_000, mb_per_second=1.0, config={"retention.ms": "604800000"})
    wide = Workload(name="wide", days=20, agents=30, topics=(topic,))
    outcome = simulate_rounds(wide, settings, max_rounds=240)
    arriving = outcome.rates.extents * (wide.planning_seconds + 7_200)  # at most the extents of a round
    bound = outcome.mean("live_bytes") / settings.section_bytes + waiting * wide.partition_count + arriving
    assert outcome.rates.extents * 604_800 > 20 * bound
    assert outcome.mean("extents") < bound


def test_the_same_seed_gives_the_same_counts() -> None:
    """Another seed gives other counts."""
    short = replace(MIXED, days=0.02)
    first, again, other = (simulate_events(short, SETTINGS, seed=seed).history[-1] for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_exact_simulation_of_a_large_workload_is_rejected() -> None:
    with pytest.raises(InvalidInputError, match="leave out --exact"):
        simulate_events(load_workload("platform"), PlannerSettings())
