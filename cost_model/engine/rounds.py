"""A year in rounds of two hours: cells of the system, the real policy, and formulas for what is faster.

Each round brings one ingestion file to each cell, with what a round brings to its partitions. Then the policy
plans and its jobs are carried out until it finds nothing more, as long as the tasks keep up.
docs/explanation/cost.md lists what is approximate about it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from cost_model.engine.build import CELL_PARTITIONS
from cost_model.engine.counts import Counts, Sample
from cost_model.engine.meters import DAY_SECONDS, add_rows, collected, sample_of, steady_counts
from cost_model.engine.outcome import Outcome
from cost_model.engine.running import running_cell
from cost_model.engine.steady_state import front_of
from cost_model.workload.workload import MEGABYTE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cost_model.engine.running import Running
    from cost_model.workload.workload import Workload
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
    cell_partitions: int = CELL_PARTITIONS,
    most_rounds: int = MAX_ROUNDS,
    progress: Callable[[float], None] = lambda _: None,
) -> Outcome:
    """Simulate a workload by aggregation; `progress` hears which part of the time is over."""
    rounds, seconds = _rounds(workload, most_rounds)
    front = front_of(workload, settings)
    kinds = (
        running_cell(workload, front, settings, seconds, compacted=compacted, cell_partitions=cell_partitions)
        for compacted in (False, True)
    )
    running = [each for each in kinds if each is not None]
    outcome = Outcome(policy=policy, workload=workload, front=front, exact=False)
    total, every = Counts(), max(1, rounds // _SAMPLES)
    for number in range(1, rounds + 1):
        now_ms = round(number * seconds * 1000)
        counts = _round(workload, running, round((number - 1) * seconds * 1000), now_ms)
        total = total.plus(counts)
        if number % every == 0 or number == rounds:
            outcome.samples.append(_sample(running, workload, counts, now_ms))
            outcome.history.append(total.copy())
            progress(number / rounds)
    return outcome


def _round(workload: Workload, running: Sequence[Running], begun_ms: int, now_ms: int) -> Counts:
    """What one round counts."""
    front, seconds = running[0].front, running[0].seconds
    counts = steady_counts(workload, front, seconds)
    before = sum(each.compacted_objects for each in running)
    for each in running:
        each.arrive(begun_ms, now_ms, counts)
        each.cell.log.expire(now_ms)
        each.compact(now_ms, counts)
        moved = workload.tasks * workload.task_mb_per_second * MEGABYTE * seconds
        each.work_off(moved * each.stored_share)
        counts = counts.plus(each.within)
        each.bury()
    # What was written and is not there any more has died.
    more = sum(each.compacted_objects for each in running) - before
    died = front.files * seconds * front.capacity + max(0.0, counts.multipart_create - more)
    collected(workload, counts, died, seconds)
    return counts


def _rounds(workload: Workload, most_rounds: int) -> tuple[int, float]:
    rounds = max(1, min(most_rounds, int(workload.seconds / _MIN_ROUND_SECONDS)))
    return rounds, workload.seconds / rounds


def _sample(running: Sequence[Running], workload: Workload, counts: Counts, now_ms: int) -> Sample:
    """What is there after a round's jobs, with what comes and goes within a round."""
    sample = Sample(day=now_ms / 1000 / DAY_SECONDS)
    for each in running:
        sample = sample.plus(sample_of(each.cell.log, sample.day))
    front, seconds = running[0].front, running[0].seconds
    waiting_rounds = max(len(each.cell.log.ingestion) for each in running)
    # A file of a round that is still there stands for all files of that round.
    stands = workload.planning_seconds + waiting_rounds * seconds
    sample.waiting_files = front.files * stands
    sample.waiting_bytes = front.stored_bytes * stands
    sample.extents += front.extents * stands
    sample.objects += front.files * (stands + workload.grace_seconds)
    sample.objects += sum(each.small_files for each in running)
    died = sum(each.died_bytes for each in running)
    sample.stored_bytes += died * min(1.0, (workload.grace_seconds + workload.planning_seconds) / seconds)
    sample.open_bytes = sum(each.debt_bytes for each in running)
    add_rows(sample, workload, front.files, counts.jobs / seconds)
    return sample
