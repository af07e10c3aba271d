"""Comparison of measured figures with those of several simulations."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from benchmarks.beside_reality.measured import Figures

TOLERANCE: Final = 0.05
_DEVIATIONS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Kind:
    """One row: its label, and how it follows from the figures."""

    label: str
    of: Callable[[Figures], float]
    is_bytes: bool = False


KINDS: Final = (
    Kind("PUT by agents", lambda each: each.counts.put_ingest),
    Kind("bytes of these PUTs", lambda each: each.counts.ingested_bytes, is_bytes=True),
    Kind("PUT of objects by jobs", lambda each: each.counts.put_compaction),
    Kind(
        "requests of multipart uploads by jobs",
        lambda each: each.counts.upload_requests - each.counts.put_compaction,
    ),
    Kind("bytes written by jobs", lambda each: each.counts.written_bytes, is_bytes=True),
    Kind("GET by jobs", lambda each: each.counts.get_compaction),
    Kind("bytes read by jobs", lambda each: each.counts.read_bytes, is_bytes=True),
    Kind("GET for consumers", lambda each: each.counts.get_fetch),
    Kind("bytes read for consumers", lambda each: each.counts.fetch_bytes, is_bytes=True),
    Kind("GET of the marker by maintenance", lambda each: each.counts.get_gc),
    Kind("LIST by garbage collection", lambda each: each.counts.list_gc),
    Kind("DELETE calls", lambda each: each.counts.delete_calls),
    Kind("deleted objects", lambda each: each.counts.deleted_objects),
    Kind("other requests", lambda each: each.others),
    Kind("jobs (publishing commits)", lambda each: each.counts.jobs),
    Kind("stored bytes at the end", lambda each: each.sample.stored_bytes, is_bytes=True),
    Kind("objects at the end", lambda each: each.sample.objects),
    Kind("live bytes at the end", lambda each: each.sample.live_bytes, is_bytes=True),
    Kind("extents at the end", lambda each: each.sample.extents),
    Kind("catalog rows at the end", lambda each: each.sample.rows),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Result for one kind: `deviation` is the standard deviation of the simulations."""

    label: str
    reality: float
    simulation: float
    deviation: float
    is_bytes: bool = False

    @property
    def ratio(self) -> float:
        """Reality divided by the mean of the simulations; 1 if both are 0."""
        if self.reality == self.simulation:
            return 1.0
        return self.reality / self.simulation if self.simulation else float("inf")

    @property
    def random_share(self) -> float:
        """Two standard deviations of one simulation, as a share of their mean."""
        return _DEVIATIONS * self.deviation / self.simulation if self.simulation else 0.0

    @property
    def verdict(self) -> str:
        """Return `agrees`, `random` or `differs`.

        Random arrivals and the phases of periodic work make each run different. A difference of more than
        5 % is `random` if it is within two standard deviations of the simulations, or less than one event.
        """
        difference = abs(self.reality - self.simulation)
        if difference <= TOLERANCE * self.simulation:
            return "agrees"
        is_random = difference <= _DEVIATIONS * self.deviation or (difference < 1 and not self.is_bytes)
        return "random" if is_random else "differs"

    def as_dict(self) -> dict[str, Any]:
        """Return the row for `--json`."""
        return {
            "kind": self.label,
            "reality": self.reality,
            "simulation": self.simulation,
            "deviation": self.deviation,
            "ratio": self.ratio,
            "verdict": self.verdict,
        }


def compare(reality: Figures, simulations: Sequence[Figures]) -> list[Row]:
    """Return one row for each kind; at least two simulations give the random error."""
    rows = []
    for kind in KINDS:
        values = [kind.of(each) for each in simulations]
        rows.append(
            Row(
                label=kind.label,
                reality=kind.of(reality),
                simulation=mean(values),
                deviation=stdev(values),
                is_bytes=kind.is_bytes,
            )
        )
    return rows
