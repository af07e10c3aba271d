"""What a simulation tells: samples over time, and counts of the whole and of its last month."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from cost_model.engine.counts import Counts, Sample

if TYPE_CHECKING:
    from cost_model.engine.steady_state import Front
    from cost_model.workload.workload import Workload

MONTH_DAYS: Final = 730 / 24
"""A month of 730 hours, as price lists have it."""


@dataclass(slots=True, kw_only=True)
class Outcome:
    """One workload under one policy.

    `samples` are evenly spaced; `history` are the counts at each of them. Figures of a month are those of the
    last one, scaled up where less than a month was simulated.
    """

    policy: str
    workload: Workload
    front: Front
    exact: bool
    samples: list[Sample] = field(default_factory=list)
    history: list[Counts] = field(default_factory=list)

    @property
    def days(self) -> float:
        """How much time was simulated."""
        return self.samples[-1].day

    @property
    def last(self) -> list[Sample]:
        """The samples of the last month; of the second half where less was simulated."""
        begin = max(self.days - MONTH_DAYS, self.days / 2)
        return [each for each in self.samples if each.day > begin]

    @property
    def month(self) -> Counts:
        """What a month like the last one counts."""
        first = len(self.samples) - len(self.last) - 1
        before = self.history[first] if first >= 0 else Counts()
        begun = self.samples[first].day if first >= 0 else 0.0
        return scaled(self.history[-1].since(before), MONTH_DAYS / (self.days - begun))

    def mean(self, name: str) -> float:
        """The mean of something over the samples of the last month."""
        values = [getattr(each, name) for each in self.last]
        return float(sum(values) / len(values))

    @property
    def write_amplification(self) -> float:
        """Bytes that agents and jobs write, for each that agents write."""
        return 1 + self.month.written_bytes / self.month.ingested_bytes

    @property
    def compaction_reads(self) -> float:
        """Bytes that jobs read, for each that agents write."""
        return self.month.read_bytes / self.month.ingested_bytes


def scaled(counts: Counts, factor: float) -> Counts:
    """All counts times a factor."""
    return Counts(**{name: getattr(counts, name) * factor for name in Counts.__slots__})
