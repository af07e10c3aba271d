"""The schedules that one process runs."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import structlog

from tests.simulation.schedule import Simulator

if TYPE_CHECKING:
    from collections.abc import Sequence

WARM_UP = 3


@dataclass(frozen=True, slots=True)
class SeedsResult:
    """Results of a process; the times exclude the warm-up."""

    schedules: int
    calls: int
    seconds: float
    processor_seconds: float
    violations: tuple[str, ...]


def run_seeds(address: str, seeds: Sequence[int]) -> SeedsResult:
    """Run schedules one after another."""
    structlog.configure(
        processors=[lambda _logger, _method, _event: (_ for _ in ()).throw(structlog.DropEvent)]
    )
    simulator = Simulator(address)
    try:
        for seed in range(WARM_UP):
            simulator.run(-1 - seed)
        started, started_cpu = perf_counter(), process_time()
        outcomes = [simulator.run(seed) for seed in seeds]
        return SeedsResult(
            schedules=len(outcomes),
            calls=sum(outcome.calls for outcome in outcomes),
            seconds=perf_counter() - started,
            processor_seconds=process_time() - started_cpu,
            violations=tuple(
                f"SILTSTONE_SEED={outcome.seed}: {each}"
                for outcome in outcomes
                for each in outcome.violations
            ),
        )
    finally:
        simulator.close()
