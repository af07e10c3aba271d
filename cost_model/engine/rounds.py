"""Aggregated simulation of a year in rounds of two hours.

Two scaled models represent the compacted topics and the other ones. Each round appends one ingestion file to
each model, with all records of the round. Then the real policy plans, and its jobs are applied until it plans
none, as long as the tasks keep up. Formulas cover what is faster than a round. docs/explanation/cost.md lists
the approximations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cost_model.engine.counts import Counts, Sample
from cost_model.engine.measurements import (
    DAY_SECONDS,
    add_rows,
    count_garbage_collection,
    sample_of,
    steady_counts,
)
from cost_model.engine.model_run import start_model_run
from cost_model.engine.outcome import Outcome
from cost_model.engine.scaled_model import MODEL_PARTITIONS
from cost_model.rates.steady_rates import steady_rates_of
from cost_model.workload.definition import MEGABYTE
from maintenance.tasks import DEAD_FILES_SECONDS

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cost_model.engine.model_run import ModelRun
    from cost_model.workload.definition import Workload
    from planner.settings import PlannerSettings

MAX_ROUNDS: Final = 4_380
"""A year in rounds of two hours."""

_MIN_ROUND_SECONDS: Final = 600.0
_SAMPLES: Final = 365


def simulate_rounds(
    workload: Workload,
    settings: PlannerSettings,
    policy: str = "default",
    *,
    model_partitions: int = MODEL_PARTITIONS,
    max_rounds: int = MAX_ROUNDS,
    progress: Callable[[float], None] = lambda _: None,
) -> Outcome:
    """Simulate a workload by aggregation; `progress` receives the finished fraction."""
    rounds, seconds = _rounds(workload, max_rounds)
    rates = steady_rates_of(workload, settings)
    found = (
        start_model_run(
            workload, rates, settings, seconds, compacted=compacted, model_partitions=model_partitions
        )
        for compacted in (False, True)
    )
    runs = [each for each in found if each is not None]
    outcome = Outcome(policy=policy, workload=workload, rates=rates, exact=False)
    total, sample_interval = Counts(), max(1, rounds // _SAMPLES)
    for number in range(1, rounds + 1):
        now_ms = round(number * seconds * 1000)
        counts = _round(workload, runs, round((number - 1) * seconds * 1000), now_ms)
        total = total.plus(counts)
        if number % sample_interval == 0 or number == rounds:
            outcome.samples.append(_sample(runs, workload, counts, now_ms))
            outcome.history.append(total.copy())
            progress(number / rounds)
    return outcome


def _round(workload: Workload, runs: Sequence[ModelRun], begun_ms: int, now_ms: int) -> Counts:
    """Simulate one round and return its counts."""
    rates, seconds = runs[0].rates, runs[0].seconds
    counts = steady_counts(workload, rates, seconds)
    before = sum(each.compacted_objects for each in runs)
    for each in runs:
        each.append_round(begun_ms, now_ms, counts)
        each.model.log.expire(now_ms)
        each.compact(now_ms, counts)
        moved = workload.tasks * workload.task_mb_per_second * MEGABYTE * seconds
        each.drain_backlog(moved * each.stored_share)
        counts = counts.plus(each.merged_within_round)
        each.record_dead_files()
    # Objects that were written but no longer exist are dead.
    more = sum(each.compacted_objects for each in runs) - before
    dead = rates.files * seconds * rates.capacity + max(0.0, counts.written_objects - more)
    count_garbage_collection(counts, dead, seconds, workload.planning_seconds)
    return counts


def _rounds(workload: Workload, max_rounds: int) -> tuple[int, float]:
    rounds = max(1, min(max_rounds, int(workload.seconds / _MIN_ROUND_SECONDS)))
    return rounds, workload.seconds / rounds


def _sample(runs: Sequence[ModelRun], workload: Workload, counts: Counts, now_ms: int) -> Sample:
    """Return a sample after a round's jobs, including files that exist only within a round."""
    sample = Sample(day=now_ms / 1000 / DAY_SECONDS)
    for each in runs:
        sample = sample.plus(sample_of(each.model.log, sample.day))
    rates, seconds = runs[0].rates, runs[0].seconds
    waiting_rounds = max(len(each.model.log.ingestion) for each in runs)
    # A waiting file of the model represents all files of its round.
    waiting_seconds = workload.planning_seconds + waiting_rounds * seconds
    sample.waiting_files = rates.files * waiting_seconds
    sample.extents += rates.extents * waiting_seconds
    sample.objects += rates.files * (waiting_seconds + workload.grace_seconds)
    sample.objects += sum(each.small_files for each in runs)
    dead = sum(each.dead_bytes for each in runs)
    sample.stored_bytes += dead * min(1.0, (workload.grace_seconds + DEAD_FILES_SECONDS) / seconds)
    sample.open_bytes = sum(each.backlog_bytes for each in runs)
    add_rows(sample, workload, rates.files, counts.jobs / seconds)
    return sample
