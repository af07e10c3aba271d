"""Distinct keys among n records: their expected number by formula, or keys drawn one by one.

If keys are drawn independently with probabilities p, the expected number of distinct keys among n records is
the sum of 1 - (1 - p)^n. For K uniform keys that is K·(1 - (1 - 1/K)^n). For Zipf's law (p proportional to
rank^-s), the sum is taken over ranges of ranks, each with the probability of its geometric mean rank, and
tabulated. The error is below 1 % of the exact sum, which a test checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from cost_model.workload.definition import TopicClass

_RANGES: Final = 2_000
_EXACT_RANKS: Final = 200
_TABLE: Final = 400
_MAX_RECORDS: Final = 1e15


class ExpectedKeys:
    """The expected number of distinct keys among consecutive records of a partition."""

    def __init__(self, topic: TopicClass) -> None:
        self._keys = float(topic.keys)
        self._update_ratio = topic.update_ratio
        self._table: tuple[NDArray[np.float64], NDArray[np.float64]] | None = None
        if topic.key_distribution == "zipf":
            self._table = _zipf_table(topic.keys, topic.zipf_exponent)

    def distinct(self, records: float) -> float:
        """Return the expected number of distinct keys among that many consecutive records."""
        if records <= 0:
            return 0.0
        drawn = records * self._update_ratio
        return min(records - drawn + self._distinct_updates(drawn), records)

    def _distinct_updates(self, drawn: float) -> float:
        if drawn <= 0:
            return 0.0
        if self._table is None:
            if self._keys == 1:
                return min(drawn, 1.0)
            return float(-self._keys * np.expm1(drawn * np.log1p(-1 / self._keys)))
        counts, distinct = self._table
        return float(np.exp(np.interp(np.log(max(drawn, 1.0)), counts, distinct))) * min(drawn, 1.0)


def rank_ranges(keys: int, exponent: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return, for ranges of ranks, the probability of one key and the number of keys.

    The first ranks are ranges of one key. The bounds of the other ranges grow geometrically.
    """
    single = np.arange(1, min(keys, _EXACT_RANKS) + 1, dtype=np.float64)
    ranks, sizes = single, np.ones_like(single)
    if keys > _EXACT_RANKS:
        bounds = np.unique(np.geomspace(_EXACT_RANKS + 1, keys + 1, _RANGES).round())
        low, high = bounds[:-1], bounds[1:]
        ranks = np.concatenate([ranks, np.sqrt(low * (high - 1))])
        sizes = np.concatenate([sizes, high - low])
    weights = ranks**-exponent
    return weights / float(np.sum(weights * sizes)), sizes


def _zipf_table(keys: int, exponent: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the logarithms of record counts, and of the distinct keys among that many records."""
    probability, sizes = rank_ranges(keys, exponent)
    counts = np.geomspace(1, _MAX_RECORDS, _TABLE)
    log_absent = np.log1p(-np.minimum(probability, 1 - 1e-15))
    distinct = np.array([-np.sum(sizes * np.expm1(count * log_absent)) for count in counts])
    return np.log(counts), np.log(np.maximum(distinct, 1e-300))


class DrawnKeys:
    """Random keys and tombstones of the records of one partition."""

    def __init__(self, topic: TopicClass, generator: np.random.Generator) -> None:
        self._topic = topic
        self._generator = generator
        self._next_unique_key = topic.keys
        self._cumulative: NDArray[np.float64] | None = None
        if topic.key_distribution == "zipf":
            weights = np.arange(1, topic.keys + 1, dtype=np.float64) ** -topic.zipf_exponent
            self._cumulative = np.cumsum(weights / weights.sum())

    def draw(self, count: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the keys of the next `count` records as numbers, and whether each is a tombstone."""
        topic, generator = self._topic, self._generator
        if self._cumulative is None:
            keys = generator.integers(0, topic.keys, count)
        else:
            found = np.searchsorted(self._cumulative, generator.random(count))
            keys = np.minimum(found, topic.keys - 1).astype(np.int64)
        unique = generator.random(count) >= topic.update_ratio
        keys[unique] = self._next_unique_key + np.arange(int(unique.sum()))
        self._next_unique_key += int(unique.sum())
        return keys, generator.random(count) < topic.tombstone_ratio
