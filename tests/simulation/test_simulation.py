"""Schedules from seeds. `SILTSTONE_SEED=n` runs one again; `SILTSTONE_SCHEDULES=n` runs more than usual.

Several runs side by side, each from another `SILTSTONE_FIRST_SEED`, use all cores.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import structlog

from catalog import assignment, sequences
from catalog.jobs import Jobs
from catalog.log import _Commit
from catalog.model import JobState
from catalog.swap import Swap
from tests.simulation.schedule import Outcome, Simulator
from tests.simulation.world import Rules

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from catalog.database import Row, Transaction
    from catalog.model import JobResult, JobSpec, ProducerStamp, RunResult
    from catalog.sequences import ProducerState

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
        assert acknowledged > 5 * SCHEDULES
        assert jobs > SCHEDULES
        assert troubles > SCHEDULES


def test_a_seed_gives_the_same_schedule_again(simulator: Callable[[Rules], Simulator]) -> None:
    """Whatever ran before it, in whatever process."""
    first, second = simulator(Rules()), simulator(Rules())
    for seed in (3, 4):
        outcome = first.run(seed)
        second.run(seed + 50)
        assert second.run(seed) == outcome
        assert len(outcome.trace) > 50


def shown(running: Simulator, first: int) -> Outcome:
    """The first schedule from a seed on in which something is amiss."""
    for seed in range(first, first + PATIENCE):
        outcome = running.run(seed)
        if outcome.violations:
            return outcome
    pytest.fail(f"the defect does not show in {PATIENCE} schedules")


def test_garbage_without_grace_is_noticed(simulator: Callable[[Rules], Simulator]) -> None:
    rules = Rules(weather=(0, 0, 0))
    running = simulator(replace(rules, garbage=replace(rules.garbage, grace_ms=0)))
    assert any("grace outlives readers" in each for each in shown(running, 0).violations)


def test_a_duplicate_that_is_taken_for_new_is_noticed(
    simulator: Callable[[Rules], Simulator], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = sequences.check_sequence

    def forgetful(state: ProducerState | None, stamp: ProducerStamp, count: int) -> RunResult | None:
        verdict = real(state, stamp, count)
        return None if verdict is not None and verdict.duplicate else verdict

    monkeypatch.setattr(assignment, "check_sequence", forgetful)
    running = simulator(Rules(weather=(0.02, 0.02, 0.05)))
    assert any("there twice" in each for each in shown(running, 2).violations)


def test_a_swap_by_whoever_comes_late_is_noticed(
    simulator: Callable[[Rules], Simulator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither is the job's attempt asked for, nor whether its inputs are live."""
    lock, complete = Jobs._lock, Jobs.complete  # a defect is planted there
    late: dict[UUID, UUID] = {}

    def careless(transaction: Transaction, job_id: UUID) -> tuple[JobState, UUID | None, JobSpec]:
        state, attempt_id, spec = lock(transaction, job_id)
        return (JobState.RUNNING, late[job_id], spec) if job_id in late else (state, attempt_id, spec)

    def complete_anyway(jobs: Jobs, result: JobResult) -> None:
        late[result.job_id] = result.attempt_id
        try:
            complete(jobs, result)
        finally:
            del late[result.job_id]

    monkeypatch.setattr(Jobs, "_lock", staticmethod(careless))
    monkeypatch.setattr(Jobs, "complete", complete_anyway)
    monkeypatch.setattr(Swap, "_check_missing", lambda _swap: None)
    assert shown(simulator(Rules(weather=(0, 0.1, 0))), 20).violations


def test_a_commit_of_a_fenced_session_is_noticed(
    simulator: Callable[[Rules], Simulator], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its object may be garbage already."""

    def take_the_time_alone(commit: _Commit, rows: list[Row]) -> None:
        commit._now_ms = rows[0][1]

    monkeypatch.setattr(_Commit, "_check_session", take_the_time_alone)
    assert shown(simulator(Rules(weather=(0, 0.1, 0))), 20).violations
