"""Simulations of the workload, and their figures for the measured time."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from benchmarks.beside_reality.measured import Figures
from benchmarks.beside_reality.workload import DAY_SECONDS
from cost_model.engine.events import simulate_events

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.beside_reality.workload import Duration
    from cost_model.engine.counts import Sample
    from cost_model.engine.events import ObservedRound
    from cost_model.engine.outcome import Outcome
    from cost_model.workload.definition import Workload
    from planner.settings import PlannerSettings

RUNS: Final = 12
_ALL: Final = 1_000_000
_SHIFT_SECONDS: Final = 1.7


def simulations(
    workload: Workload,
    settings: PlannerSettings,
    duration: Duration,
    *,
    runs: int = RUNS,
    rounds: Sequence[ObservedRound] = (),
    all_rounds: bool = False,
    waiting_files: float | None = None,
) -> list[Figures]:
    """Simulate every file, job and record several times.

    The runs have different random numbers. Their measured time begins some seconds earlier or later, because
    the phases of periodic work in the real run are not known. The first of the observed `rounds` is simulated
    at its time, because it lasted until Spark had started. With `all_rounds`, the others are, too, and each
    takes all files that wait at its beginning. The state is taken when about as many `waiting_files` wait for
    a job as at the end of the real run, within the last job's interval.
    """
    if all_rounds:
        settings = replace(settings, min_ingestion_files=1)
    found = []
    for seed in range(runs):
        shift = 0.0 if all_rounds else (seed - (runs - 1) / 2) * _SHIFT_SECONDS
        begin = duration.warm_up_seconds + shift
        end = begin + duration.measured_seconds
        longer = replace(workload, days=(end + 2 * workload.planning_seconds) / DAY_SECONDS)
        outcome = simulate_events(
            longer, settings, seed=seed, max_samples=_ALL, observed=rounds if all_rounds else rounds[:1]
        )
        first, last = _at(outcome, begin), _at(outcome, end)
        found.append(
            Figures(
                counts=outcome.history[last].since(outcome.history[first]),
                sample=_state(outcome, last, settings, waiting_files),
            )
        )
    return found


def _at(outcome: Outcome, seconds: float) -> int:
    """Return the index of the first sample at or after a time."""
    return next(
        number for number, sample in enumerate(outcome.samples) if sample.day * DAY_SECONDS >= seconds
    )


def _state(outcome: Outcome, last: int, settings: PlannerSettings, waiting_files: float | None) -> Sample:
    """Return the sample at the end of the measured time, or one with that many waiting files before it."""
    if waiting_files is None:
        return outcome.samples[last]
    job_seconds = settings.min_ingestion_files / outcome.rates.files
    span = math.ceil(job_seconds / outcome.workload.planning_seconds) + 1
    recent = outcome.samples[max(0, last - span) : last + 1]
    return min(recent, key=lambda sample: abs(sample.waiting_files - waiting_files))
