"""Schedules from seeds. `SILTSTONE_SEED=n` runs one again; `SILTSTONE_SCHEDULES=n` runs more than usual.

Several runs side by side, each from another `SILTSTONE_FIRST_SEED`, use all cores; so does
`python -m tests.simulation`, which says how many that was a minute.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest
import structlog

from tests.simulation.defects import DEFECTS, Defect
from tests.simulation.schedule import Simulator
from tests.simulation.world import Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ONLY = os.environ.get("SILTSTONE_SEED")
FIRST = int(ONLY or os.environ.get("SILTSTONE_FIRST_SEED", "0"))
SCHEDULES = 1 if ONLY else int(os.environ.get("SILTSTONE_SCHEDULES", "60"))
#: How many schedules may pass before a defect shows.
PATIENCE = 150


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """What dies and stands still has a lot to say."""
    with structlog.testing.capture_logs():
        yield


@pytest.fixture
def simulator(catalog_url: str) -> Iterator[Callable[[Rules], Simulator]]:
    """Makes simulators over one database."""
    made: list[Simulator] = []

    def make(rules: Rules) -> Simulator:
        made.append(Simulator(catalog_url, rules))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_every_invariant_holds_in_every_schedule(simulator: Callable[[Rules], Simulator]) -> None:
    running = simulator(Rules())
    acknowledged = jobs = troubles = 0
    for seed in range(FIRST, FIRST + SCHEDULES):
        outcome = running.run(seed)
        if ONLY:
            sys.stderr.write("\n".join((*outcome.trace, "")))
        assert not outcome.violations, f"SILTSTONE_SEED={seed}:\n" + "\n".join(outcome.violations)
        acknowledged += outcome.acknowledged
        jobs += outcome.jobs
        troubles += outcome.troubles
    if not ONLY:  # or nothing was put to the test
        assert acknowledged > 4 * SCHEDULES
        assert jobs > SCHEDULES / 2
        assert troubles > SCHEDULES


def test_a_seed_gives_the_same_schedule_again(simulator: Callable[[Rules], Simulator]) -> None:
    """Whatever ran before it, in whatever process."""
    first, second = simulator(Rules()), simulator(Rules())
    for seed in (3, 4):
        outcome = first.run(seed)
        second.run(seed + 50)
        assert second.run(seed) == outcome
        assert len(outcome.trace) > 50


@pytest.mark.parametrize("defect", DEFECTS, ids=lambda defect: defect.name)
def test_a_defect_is_found(
    defect: Defect, simulator: Callable[[Rules], Simulator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or schedules that find nothing would prove nothing."""
    defect.plant(monkeypatch)
    running = simulator(defect.rules)
    seeds = range(defect.first, defect.first + PATIENCE)
    found = (each for seed in seeds for each in running.run(seed).violations)
    assert any(defect.shows in each for each in found), f"it does not show in {PATIENCE} schedules"
