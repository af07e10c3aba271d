"""Simulations of the workload, and their figures for the measured time."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from benchmarks.beside_reality.measured import Figures
from benchmarks.beside_reality.workload import DAY_SECONDS
from cost_model.engine.events import simulate_events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.beside_reality.workload import Duration
    from cost_model.engine.events import ObservedRound
    from cost_model.engine.outcome import Outcome
    from cost_model.workload.definition import Workload
    from planner.settings import PlannerSettings

RUNS: Final = 8
_ALL: Final = 1_000_000
_SHIFT_SECONDS: Final = 2.5


def simulations(
    workload: Workload,
    settings: PlannerSettings,
    duration: Duration,
    *,
    runs: int = RUNS,
    observed: Sequence[ObservedRound] | None = None,
) -> list[Figures]:
    """Simulate every file, job and record several times.

    The runs have different random numbers. Their measured time begins some seconds earlier or later, because
    the phases of periodic work in the real run are not known. With `observed` rounds, those of jobs are
    known, and each round takes all files that wait at its beginning.
    """
    if observed is not None:
        settings = replace(settings, min_ingestion_files=1)
    found = []
    for seed in range(runs):
        shift = (seed - (runs - 1) / 2) * _SHIFT_SECONDS if observed is None else 0.0
        begin = duration.warm_up_seconds + shift
        end = begin + duration.measured_seconds
        longer = replace(workload, days=(end + 2 * workload.planning_seconds) / DAY_SECONDS)
        outcome = simulate_events(longer, settings, seed=seed, max_samples=_ALL, observed=observed)
        first, last = _at(outcome, begin), _at(outcome, end)
        found.append(
            Figures(counts=outcome.history[last].since(outcome.history[first]), sample=outcome.samples[last])
        )
    return found


def _at(outcome: Outcome, seconds: float) -> int:
    """Return the index of the first sample at or after a time."""
    return next(
        number for number, sample in enumerate(outcome.samples) if sample.day * DAY_SECONDS >= seconds
    )
