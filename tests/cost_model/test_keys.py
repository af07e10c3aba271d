"""Numbers of distinct keys, by formula and by random draws."""

from __future__ import annotations

import numpy as np
import pytest

from cost_model.workload.definition import TopicClass
from cost_model.workload.keys import DrawnKeys, ExpectedKeys


def topic(distribution: str, keys: int, exponent: float = 1.0, **changes: float) -> TopicClass:
    return TopicClass(name="t", keys=keys, key_distribution=distribution, zipf_exponent=exponent, **changes)  # type: ignore[arg-type]  # shares are floats


@pytest.mark.parametrize("keys", [1, 10, 50_000])
@pytest.mark.parametrize("exponent", [0.5, 1.0, 1.4])
@pytest.mark.parametrize("records", [1, 100, 30_000, 5_000_000])
def test_the_zipf_table_is_within_one_percent_of_the_exact_sum(
    keys: int, exponent: float, records: int
) -> None:
    """The exact sum goes over every rank, the table over ranges of ranks."""
    weights = np.arange(1, keys + 1, dtype=np.float64) ** -exponent
    chances = np.minimum(weights / weights.sum(), 1 - 1e-15)
    exact = float(-np.expm1(records * np.log1p(-chances)).sum())
    found = ExpectedKeys(topic("zipf", keys, exponent)).distinct(records)
    assert found == pytest.approx(exact, rel=0.01)


@pytest.mark.parametrize("distribution", ["uniform", "zipf"])
@pytest.mark.parametrize("update_ratio", [1.0, 0.7])
def test_drawn_keys_match_the_expected_number_of_distinct_keys(
    distribution: str, update_ratio: float
) -> None:
    """Records that update nothing have unique keys."""
    made = topic(distribution, 3_000, update_ratio=update_ratio, tombstone_ratio=0.25)
    keys, tombstones = DrawnKeys(made, np.random.default_rng(7)).draw(20_000)
    assert len(np.unique(keys)) == pytest.approx(ExpectedKeys(made).distinct(20_000), rel=0.02)
    assert tombstones.mean() == pytest.approx(0.25, abs=0.02)


def test_distinct_keys_are_bounded_by_records_and_keys() -> None:
    """The bounds hold for few and for many records."""
    for distribution in ("uniform", "zipf"):
        expected = ExpectedKeys(topic(distribution, 1000))
        assert expected.distinct(0) == 0
        assert expected.distinct(1) == pytest.approx(1, abs=0.01)
        assert expected.distinct(1e12) == pytest.approx(1000, rel=0.01)
