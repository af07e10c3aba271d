"""When a watcher looks for further jobs while others run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import pytest

from core.clock import ManualClock
from core.errors import RetryableError
from siltstone.compaction import job_supply
from siltstone.compaction.job_supply import FoundJobs, JobSupply

if TYPE_CHECKING:
    from catalog.model import Job

REST_SECONDS = 10.0


@dataclass
class Queue:
    """Queue of the catalog with `jobs` jobs; `searches` has the number of free slots of each search."""

    slots: int = 3
    jobs: int = 0
    searches: list[int] = field(default_factory=list)
    clock: ManualClock = field(default_factory=ManualClock)

    def find(self, free: int) -> FoundJobs:
        self.searches.append(free)
        taken = min(free, self.jobs)
        self.jobs -= taken
        return FoundJobs(cast("list[Job]", [None] * taken), self.jobs)

    def supply(self) -> JobSupply:
        return JobSupply(self.find, lambda: self.slots, self.clock, lambda: REST_SECONDS)


def test_each_free_slot_gets_a_job_and_one_more_is_planned_ahead() -> None:
    queue = Queue(jobs=2)
    supply = queue.supply()

    assert [len(supply.more(running)) for running in (3, 3, 2, 1, 2)] == [0, 0, 1, 1, 0]
    assert queue.searches == [0, 1, 2, 1]


def test_a_search_that_found_nothing_is_repeated_after_a_rest() -> None:
    queue = Queue()
    supply = queue.supply()
    assert not supply.more(1)
    queue.jobs = 5

    assert not supply.more(1)
    queue.clock.advance(REST_SECONDS)
    assert len(supply.more(1)) == 2
    assert queue.searches == [2, 2]


def test_a_search_that_may_claim_no_waiting_job_is_repeated_after_a_rest() -> None:
    """Jobs that killed a driver wait until no other job runs."""
    queue = Queue()
    supply = queue.supply()
    supply._find = lambda free: FoundJobs((), queue.find(free).waiting + 1)

    assert [len(supply.more(running)) for running in (1, 1, 1)] == [0, 0, 0]
    queue.clock.advance(REST_SECONDS)
    assert not supply.more(2)
    assert queue.searches == [2, 1]


def test_a_session_that_grows_gets_more_jobs_and_one_that_shrinks_none() -> None:
    queue = Queue(jobs=100)
    supply = queue.supply()
    assert len(supply.more(2)) == 1
    queue.slots = 9
    assert len(supply.more(3)) == 6
    queue.slots = 2
    assert not supply.more(9)


def test_an_error_ends_the_supply_and_is_raised_by_the_check() -> None:
    queue = Queue(jobs=9)
    supply = queue.supply()
    supply.check()

    def fail(_free: int) -> FoundJobs:
        raise RetryableError("no response")

    supply._find = fail
    assert not supply.more(0)
    supply._find = queue.find
    assert not supply.more(0)
    assert not queue.searches
    with pytest.raises(RetryableError, match="no response"):
        supply.check()


def test_a_round_ends_after_many_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_supply, "MAX_JOBS", 4)
    queue = Queue(jobs=100)
    supply = queue.supply()

    assert [len(supply.more(0)) for _ in range(3)] == [3, 3, 0]
