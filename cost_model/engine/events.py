"""Simulation of every event: each file that an agent writes, each plan, each job, each record with its key.

It is for small workloads, and the reference for the aggregated simulation in `cost_model.engine.rounds`.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np

from core.errors import InvalidInputError
from cost_model.engine.agent_events import Agents, Maintenance
from cost_model.engine.compaction import JobExpansion, apply_job
from cost_model.engine.counts import Counts, Sample
from cost_model.engine.measurements import (
    DAY_SECONDS,
    add_rows,
    sample_of,
)
from cost_model.engine.outcome import Outcome
from cost_model.engine.scaled_model import unscaled_log
from cost_model.engine.snapshot import snapshot_of
from cost_model.rates.steady_rates import SteadyRates, steady_rates_of
from cost_model.workload.definition import MEGABYTE
from planner.policy import make_plan
from planner.snapshot import Spent

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cost_model.engine.simulated_log import SimulatedLog
    from cost_model.workload.definition import Workload
    from planner.plan import PlannedJob
    from planner.settings import PlannerSettings

MAX_EVENTS: Final = 50_000_000
_SAMPLES: Final = 240
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedRound:
    """A round of jobs of a running system: when they were planned, and when the last was published."""

    planned_ms: int
    published_ms: int


@dataclass(slots=True)
class _System:
    """State of the system; `spent` has the time of each planned job, its moved bytes and its cost.

    `running` are the jobs of an observed round that are not published yet.
    """

    workload: Workload
    settings: PlannerSettings
    log: SimulatedLog
    agents: Agents
    maintenance: Maintenance
    now_ms: int = 0
    backlog_bytes: float = 0.0
    spent: deque[tuple[int, int, int]] = field(default_factory=deque)
    running: Sequence[PlannedJob] | None = None

    def compact(self, counts: Counts) -> None:
        """Plan and apply jobs, unless tasks are still busy with earlier ones."""
        if self.backlog_bytes <= 0:
            self._apply(self._plan(), counts)

    def follow(self, rounds: deque[ObservedRound], counts: Counts) -> None:
        """Plan and apply the jobs of the observed rounds whose times have come."""
        while rounds:
            if self.running is None:
                if rounds[0].planned_ms > self.now_ms:
                    return
                self.running = self._plan()
            if rounds[0].published_ms > self.now_ms:
                return
            rounds.popleft()
            self._apply(self.running, counts)
            self.running = None

    def _plan(self) -> Sequence[PlannedJob]:
        while self.spent and self.spent[0][0] <= self.now_ms - _HOUR_MS:
            self.spent.popleft()
        spent = Spent(
            moved_bytes=sum(each[1] for each in self.spent), nanodollars=sum(each[2] for each in self.spent)
        )
        plan = make_plan(snapshot_of(self.log, self.now_ms, self.settings, spent=spent), self.settings)
        return plan.jobs

    def _apply(self, jobs: Sequence[PlannedJob], counts: Counts) -> None:
        expansion = JobExpansion()
        for job in jobs:
            self.spent.append((self.now_ms, job.score.moved_bytes, job.score.nanodollars))
            before = counts.read_bytes + counts.written_bytes
            apply_job(self.log, job, self.now_ms, counts, expansion)
            self.backlog_bytes += counts.read_bytes + counts.written_bytes - before
            self.maintenance.job_ended(self.now_ms)
        if jobs:
            self.log.expire(self.now_ms)  # a planner does this, too

    def sample(self, counts: Counts, rates: SteadyRates) -> Sample:
        """Return a sample of the state before the next plan."""
        sample = sample_of(self.log, self.now_ms / 1000 / DAY_SECONDS)
        dead = self.maintenance.dead
        sample.objects += len(dead)
        sample.stored_bytes += sum(file.view.size for _, file in dead)
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
    max_samples: int = _SAMPLES,
    observed: Sequence[ObservedRound] = (),
    progress: Callable[[float], None] = lambda _: None,
) -> Outcome:
    """Simulate every event; raise InvalidInputError if there are too many.

    With `observed` rounds, jobs are planned and published at their times. Without them, and after the last
    one, jobs are planned at each interval, and published at once.
    """
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
    log = unscaled_log(workload, settings, generator)
    system = _System(
        workload,
        settings,
        log,
        Agents(workload, log, rates.flush_seconds, generator),
        Maintenance(workload, generator),
    )
    rounds = deque(observed)
    outcome = Outcome(policy=policy, workload=workload, rates=rates, exact=True)
    plans = max(1, int(workload.seconds / workload.planning_seconds))
    counts, sample_interval = Counts(), max(1, plans // max_samples)
    for number in range(1, plans + 1):
        step = Counts()
        system.now_ms = round(number * workload.planning_seconds * 1000)
        system.agents.write_until(system.now_ms, step)
        if system.maintenance.retention_is_due(system.now_ms):
            log.expire(system.now_ms)
        if number % sample_interval == 0 or number == plans:
            outcome.samples.append(system.sample(counts, rates))
            outcome.history.append(counts.copy())
            progress(number / plans)
        if rounds:
            system.follow(rounds, step)
        else:
            system.compact(step)
        moved = workload.tasks * workload.task_mb_per_second * MEGABYTE * workload.planning_seconds
        system.backlog_bytes = max(0.0, system.backlog_bytes - moved) if moved else 0.0
        system.maintenance.run_until(system.now_ms, log.take_dead_files(), step)
        counts = counts.plus(step)
    return outcome
