"""Simulation of every event: each file that an agent writes, each plan, each job, each record with its key.

It is for small workloads, and the reference for the aggregated simulation in `cost_model.engine.rounds`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from core.errors import InvalidInputError
from cost_model.engine.compaction import JobExpansion, apply_job
from cost_model.engine.counts import Counts, Sample
from cost_model.engine.measurements import (
    DAY_SECONDS,
    add_rows,
    count_garbage_collection,
    fetches_per_second,
    sample_of,
)
from cost_model.engine.outcome import Outcome
from cost_model.engine.scaled_model import unscaled_log
from cost_model.engine.simulated_log import Arrival, SimulatedFile, SimulatedLog
from cost_model.engine.snapshot import snapshot_of
from cost_model.engine.steady_rates import SteadyRates, steady_rates_of
from cost_model.workload.definition import MEGABYTE
from planner.policy import make_plan
from planner.snapshot import Spent

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.model import PartitionId
    from cost_model.workload.definition import Workload
    from planner.settings import PlannerSettings

MAX_EVENTS: Final = 50_000_000
_SAMPLES: Final = 240
_HOUR_MS: Final = 3_600_000


@dataclass(slots=True)
class _System:
    """State of the system; `spent` has the time of each planned job, its moved bytes and its cost."""

    workload: Workload
    settings: PlannerSettings
    log: SimulatedLog
    generator: np.random.Generator
    now_ms: int = 0
    backlog_bytes: float = 0.0
    spent: deque[tuple[int, int, int]] = field(default_factory=deque)
    dead: deque[tuple[int, SimulatedFile]] = field(default_factory=deque)

    def write_files(self, begun_ms: int, now_ms: int, counts: Counts) -> None:
        """Append one file for each agent that received anything."""
        seconds = (now_ms - begun_ms) / 1000
        by_agent: list[dict[PartitionId, Arrival]] = [{} for _ in range(self.workload.agents)]
        shared = self.workload.agents_of_partition
        for number, (key, part) in enumerate(self.log.partitions.items()):
            topic = part.topic
            rate = topic.records_per_second / topic.batch_records / shared * seconds
            for zone, batches in enumerate(self.generator.poisson(rate, shared)):
                if batches:
                    agent = (number * shared + zone) % self.workload.agents
                    by_agent[agent][key] = Arrival(records=int(batches) * topic.batch_records)
        for arrivals in by_agent:
            if arrivals:
                file = self.log.append(arrivals, begun_ms, now_ms)
                counts.put_ingest += 1
                counts.ingestion_extents += len(arrivals)
                counts.ingested_bytes += file.view.size

    def compact(self, counts: Counts) -> None:
        """Plan and apply jobs, unless tasks are still busy with earlier ones."""
        if self.backlog_bytes > 0:
            return
        while self.spent and self.spent[0][0] <= self.now_ms - _HOUR_MS:
            self.spent.popleft()
        spent = Spent(
            moved_bytes=sum(each[1] for each in self.spent), nanodollars=sum(each[2] for each in self.spent)
        )
        plan = make_plan(snapshot_of(self.log, self.now_ms, self.settings, spent=spent), self.settings)
        expansion = JobExpansion()
        for job in plan.jobs:
            self.spent.append((self.now_ms, job.score.moved_bytes, job.score.nanodollars))
            before = counts.read_bytes + counts.written_bytes
            apply_job(self.log, job, self.now_ms, counts, expansion)
            self.backlog_bytes += counts.read_bytes + counts.written_bytes - before

    def delete_dead_files(self) -> int:
        """Delete files that have been dead for `grace_seconds`, and return their number."""
        self.dead.extend((self.now_ms, file) for file in self.log.take_dead_files())
        deleted = 0
        while self.dead and self.dead[0][0] <= self.now_ms - self.workload.grace_seconds * 1000:
            self.dead.popleft()
            deleted += 1
        return deleted

    def sample(self, counts: Counts, rates: SteadyRates) -> Sample:
        """Return a sample of the state before the next plan."""
        sample = sample_of(self.log, self.now_ms / 1000 / DAY_SECONDS)
        sample.objects += len(self.dead)
        sample.stored_bytes += sum(file.view.size for _, file in self.dead)
        sample.waiting_files = len(self.log.ingestion)
        sample.open_bytes = self.backlog_bytes
        per_second = counts.jobs / max(self.now_ms / 1000, 1.0)
        add_rows(sample, self.workload, rates.files, per_second)
        return sample


def simulate_events(
    workload: Workload,
    settings: PlannerSettings,
    policy: str = "default",
    *,
    seed: int = 0,
    progress: Callable[[float], None] = lambda _: None,
) -> Outcome:
    """Simulate every event; raise InvalidInputError if there are too many."""
    rates = steady_rates_of(workload, settings)
    events = workload.seconds * (
        rates.extents + sum(each.records_per_second * each.partition_count / 100 for each in workload.topics)
    )
    if events > MAX_EVENTS:
        raise InvalidInputError(
            f"workload {workload.name!r} is too large to be simulated event by event",
            remedy="leave out --exact, or simulate fewer days, agents, partitions or records",
        )
    generator = np.random.default_rng(seed)
    system = _System(workload, settings, unscaled_log(workload, settings, generator), generator)
    outcome = Outcome(policy=policy, workload=workload, rates=rates, exact=True)
    plans = max(1, int(workload.seconds / workload.planning_seconds))
    counts, sample_interval = Counts(), max(1, plans // _SAMPLES)
    for number in range(1, plans + 1):
        step = Counts()
        _write_until(system, rates, round(number * workload.planning_seconds * 1000), step)
        system.log.expire(system.now_ms)
        if number % sample_interval == 0 or number == plans:
            outcome.samples.append(system.sample(counts, rates))
            outcome.history.append(counts.copy())
            progress(number / plans)
        system.compact(step)
        moved = workload.tasks * workload.task_mb_per_second * MEGABYTE * workload.planning_seconds
        system.backlog_bytes = max(0.0, system.backlog_bytes - moved) if moved else 0.0
        reads, read_bytes = fetches_per_second(workload, rates)
        step.get_fetch = reads * workload.planning_seconds
        step.fetch_bytes = read_bytes * workload.planning_seconds
        count_garbage_collection(step, system.delete_dead_files(), workload.planning_seconds)
        counts = counts.plus(step)
    return outcome


def _write_until(system: _System, rates: SteadyRates, until_ms: int, counts: Counts) -> None:
    """Append all files that agents write up to a time, flush by flush."""
    flush_ms = max(1, round(rates.flush_seconds * 1000))
    while system.now_ms < until_ms:
        end_ms = min(system.now_ms + flush_ms, until_ms)
        system.write_files(system.now_ms, end_ms, counts)
        system.now_ms = end_ms
