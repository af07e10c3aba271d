"""Schedules from seeds.

`SILTSTONE_SEED=n` runs one schedule again, `SILTSTONE_SCHEDULES=n` runs another number of schedules, and
`SILTSTONE_FIRST_SEED=n` starts at another seed. `python -m tests.simulation` uses all cores.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
import structlog

from tests.simulation.defects import DEFECTS, Defect
from tests.simulation.environment import Rules
from tests.simulation.schedule import Simulator

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ONLY = os.environ.get("SILTSTONE_SEED")
FIRST = int(ONLY or os.environ.get("SILTSTONE_FIRST_SEED", "0"))
#: Schedules of `make test`: most planted defects are found at least once in so many.
_DEFAULT = "600" if os.environ.get("HYPOTHESIS_PROFILE") == "night" else "20"
SCHEDULES = 1 if ONLY else int(os.environ.get("SILTSTONE_SCHEDULES", _DEFAULT))
TRANSACTIONAL_SCHEDULES = 1 if ONLY else SCHEDULES // 4
#: Number of schedules within which a defect must be found.
MAX_SCHEDULES = 150


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Suppress the logs of processes that crash and stall."""
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
def simulator(catalog_url: str) -> Iterator[Callable[[Rules], Simulator]]:
    """Return a function that makes simulators over one database."""
    made: list[Simulator] = []

    def make(rules: Rules) -> Simulator:
        made.append(Simulator(catalog_url, rules))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_every_invariant_holds_in_every_schedule(simulator: Callable[[Rules], Simulator]) -> None:
    running = simulator(Rules())
    acknowledged = jobs = faults = 0
    for seed in range(FIRST, FIRST + SCHEDULES):
        outcome = running.run(seed)
        if ONLY:
            sys.stderr.write("\n".join((*outcome.trace, "")))
        assert not outcome.violations, f"SILTSTONE_SEED={seed}:\n" + "\n".join(outcome.violations)
        acknowledged += outcome.acknowledged
        jobs += outcome.jobs
        faults += outcome.faults
    if not ONLY:  # check that the schedules tested something
        assert acknowledged > 4 * SCHEDULES
        assert jobs > SCHEDULES / 2
        assert faults > SCHEDULES


def test_transactions_are_all_or_nothing_in_every_schedule(
    simulator: Callable[[Rules], Simulator],
) -> None:
    running = simulator(Rules(transactions=True))
    committed = unknown = 0
    for seed in range(FIRST, FIRST + TRANSACTIONAL_SCHEDULES):
        outcome = running.run(seed)
        assert not outcome.violations, f"SILTSTONE_SEED={seed}:\n" + "\n".join(outcome.violations)
        committed += outcome.committed
        unknown += outcome.unknown
    if not ONLY:  # check that the schedules tested something
        assert committed > TRANSACTIONAL_SCHEDULES
        assert unknown > 0


def test_schedule_depends_on_its_seed_alone(simulator: Callable[[Rules], Simulator]) -> None:
    """It does not depend on earlier schedules or on the process."""
    first, second = simulator(Rules()), simulator(Rules())
    for seed in (3, 4):
        outcome = first.run(seed)
        second.run(seed + 50)
        assert second.run(seed) == outcome
        assert len(outcome.trace) > 50


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_schedules_find_planted_defects(
    defect: Defect, simulator: Callable[[Rules], Simulator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that, schedules without violations would prove nothing."""
    defect.plant(monkeypatch)
    running = simulator(defect.rules)
    seeds = range(defect.first_seed, defect.first_seed + MAX_SCHEDULES)
    found = (each for seed in seeds for each in running.run(seed).violations)
    assert any(defect.expected in each for each in found), f"not found in {MAX_SCHEDULES} schedules"
