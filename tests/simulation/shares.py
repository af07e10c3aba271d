"""One process's share of many schedules."""

from __future__ import annotations

from dataclasses import dataclass
from time import perf_counter, process_time
from typing import TYPE_CHECKING

import structlog

from tests.simulation.schedule import Simulator

if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import NoReturn

WARM_UP = 3


@dataclass(frozen=True, slots=True)
class Share:
    """What one process did: seconds of wall clock and of its processor, without its kernels' first use."""

    schedules: int
    calls: int
    seconds: float
    processor_seconds: float
    violations: tuple[str, ...]


def run_share(address: str, seeds: Sequence[int]) -> Share:
    """These schedules, one after the other."""
    structlog.configure(
        processors=[lambda _logger, _method, _event: (_ for _ in ()).throw(structlog.DropEvent)]
    )
    simulator = Simulator(address)
    try:
        for seed in range(WARM_UP):
            simulator.run(-1 - seed)
        begun, worked = perf_counter(), process_time()
        outcomes = [simulator.run(seed) for seed in seeds]
        return Share(
            schedules=len(outcomes),
            calls=sum(outcome.calls for outcome in outcomes),
            seconds=perf_counter() - begun,
            processor_seconds=process_time() - worked,
            violations=tuple(
                f"SILTSTONE_SEED={outcome.seed}: {each}"
                for outcome in outcomes
                for each in outcome.violations
            ),
        )
    finally:
        simulator.close()


def _say_nothing(_logger: object, _method: str, _event: object) -> NoReturn:
    """What dies and stands still has a lot to say."""
    raise structlog.DropEvent
