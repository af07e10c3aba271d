"""Result of a simulation: samples over time, and counts in total and for the last month."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cost_model.engine.counts import Counts, Sample

if TYPE_CHECKING:
    from cost_model.rates.steady_rates import SteadyRates
    from cost_model.workload.definition import Workload

MONTH_DAYS: Final = 730 / 24
"""A month of 730 hours, as in price lists."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """Result for one workload under one policy.

    `samples` are evenly spaced, and `history` has the counts at each of them. Monthly figures are those of
    the last month, extrapolated if less than a month was simulated.
    """

    policy: str
    workload: Workload
    rates: SteadyRates
    exact: bool
    samples: list[Sample] = field(default_factory=list)
    history: list[Counts] = field(default_factory=list)

    @property
    def days(self) -> float:
        """Simulated time."""
        return self.samples[-1].day

    @property
    def last(self) -> list[Sample]:
        """Samples of the last month; of the second half if less than two months were simulated."""
        begin = max(self.days - MONTH_DAYS, self.days / 2)
        return [each for each in self.samples if each.day > begin]

    @property
    def month(self) -> Counts:
        """Counts of the last month."""
        first = len(self.samples) - len(self.last) - 1
        before = self.history[first] if first >= 0 else Counts()
        begun = self.samples[first].day if first >= 0 else 0.0
        return scaled(self.history[-1].since(before), MONTH_DAYS / (self.days - begun))

    def mean(self, name: str) -> float:
        """Return the mean of an attribute over the samples of the last month."""
        values = [getattr(each, name) for each in self.last]
        return float(sum(values) / len(values))

    @property
    def write_amplification(self) -> float:
        """Bytes that agents and jobs write, per byte that agents write."""
        return 1 + self.month.written_bytes / self.month.ingested_bytes

    @property
    def compaction_reads(self) -> float:
        """Bytes that jobs read, per byte that agents write."""
        return self.month.read_bytes / self.month.ingested_bytes


def scaled(counts: Counts, factor: float) -> Counts:
    """Return all counts multiplied by a factor."""
    return Counts(**{name: getattr(counts, name) * factor for name in Counts.__slots__})
