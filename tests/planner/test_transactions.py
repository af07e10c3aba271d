"""Compaction of partitions with transactions, on a real catalog with the real planner and task."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from catalog.model import PartitionId
from maintenance.fsck import fsck
from planner import transactions
from planner.planner import plan_and_submit
from planner.settings import PlannerSettings
from tests.catalog.checks import InvariantChecker
from tests.planner.transactional_log import TransactionalLog

if TYPE_CHECKING:
    from catalog.model import Job
    from tests.planner.system import System
    from tests.planner.transactional_log import Part, Producer

pytestmark = pytest.mark.integration

SMALL = PlannerSettings(max_job_files=3, merge_fan_in=2, force=True, section_floor_bytes=1024)
"""Jobs of few files: their ranges begin and end inside of transactions."""


@pytest.fixture
def log(system: System) -> TransactionalLog:
    return TransactionalLog(system)


class _Walk:
    """A random walk of producers, jobs and readers over a compacted and another topic."""

    def __init__(self, log: TransactionalLog, seed: int) -> None:
        self.log = log
        self.random = Random(seed)
        self.producers = [log.producer(f"producer-{number}") for number in range(4)]
        system = log.system
        compacted = system.topic("compacted", 2, cleanup_policy="compact", delete_retention_ms="1000")
        plain = system.topic("plain", 1, cleanup_policy="delete")
        self.keys = {
            PartitionId(compacted.topic_id, 0): True,
            PartitionId(compacted.topic_id, 1): True,
            PartitionId(plain.topic_id, 0): False,
        }
        self.running: list[Job] = []
        self.invariants = InvariantChecker(log.catalog)
        self.published = 0

    def step(self) -> None:
        step = self.random.choices(
            (self.write, self.end, self.plan, self.publish, self.check, self.wait), (8, 4, 2, 3, 2, 1)
        )[0]
        step()

    def write(self) -> None:
        keys = self.random.sample(sorted(self.keys), self.random.randint(1, 3))
        self.log.write({key: [self.batch() for _ in range(self.random.randint(1, 3))] for key in keys})

    def batch(self) -> Part:
        producer: Producer | None = self.random.choice([None, *self.producers])
        rows = [
            (
                b"%d" % self.random.randrange(8),
                self.random.choice([b"%d" % self.random.getrandbits(30), None]),
            )
            for _ in range(self.random.randint(1, 3))
        ]
        return producer, rows

    def end(self) -> None:
        ongoing = [each for each in self.producers if each.is_ongoing]
        if ongoing:
            self.log.end(self.random.choice(ongoing), commits=self.random.random() < 0.4)

    def plan(self) -> None:
        system = self.log.system
        plan_and_submit(system.catalog, system.clock, system.ids, SMALL, slots=10)
        self.running += system.catalog.jobs.claim("a test", self.random.randint(1, 4))

    def publish(self) -> None:
        """Publish a job; others that were planned before or after it may still run."""
        if self.running:
            job = self.running.pop(self.random.randrange(len(self.running)))
            self.log.catalog.jobs.complete(self.log.result_of(job))
            self.published += 1

    def wait(self) -> None:
        self.log.system.clock.advance(self.random.choice((0.1, 5)))

    def check(self) -> None:
        for key, is_compacted in self.keys.items():
            end = self.log.state(key).log_end_offset
            offset = self.random.choice((0, self.random.randint(0, end)))
            self.log.check(
                key, is_compacted=is_compacted, offset=offset, batches_each=self.random.choice((1, 3, 1000))
            )
        assert self.invariants.violations() == []
        system = self.log.system
        assert fsck(system.catalog, system.store, system.clock, deep=True).differences == ()

    def finish(self) -> None:
        """End all transactions, and compact until nothing is left to do."""
        for producer in self.producers:
            if producer.is_ongoing:
                self.log.end(producer, commits=False)
        for _ in range(50):
            while self.running:
                self.publish()
            before = self.published
            self.plan()
            if not self.running:
                break
            while self.running:
                self.publish()
            assert self.published > before
        self.check()


@pytest.mark.parametrize("seed", range(4))
def test_readers_of_both_isolation_levels_agree_with_a_model(log: TransactionalLog, seed: int) -> None:
    walk = _Walk(log, seed)
    for _ in range(60):
        walk.step()
    walk.finish()
    assert walk.published > 5
    for key in walk.keys:
        end = log.state(key).log_end_offset
        assert log.catalog.transaction_lookups.aborted({key: (0, end)})[key] == []


def _plain_topic(log: TransactionalLog) -> PartitionId:
    return PartitionId(log.system.topic("plain", cleanup_policy="delete").topic_id, 0)


def _submit(log: TransactionalLog) -> list[tuple[int, int]]:
    """Plan and submit once; return the ranges of the jobs."""
    system = log.system
    done = plan_and_submit(system.catalog, system.clock, system.ids, PlannerSettings())
    return [(each.base_offset, each.upper_offset) for job in done.jobs for each in job.partitions]


def test_a_job_ends_at_the_last_stable_offset(log: TransactionalLog) -> None:
    key, producer = _plain_topic(log), log.producer("t")
    log.write({key: [(None, [(b"k", b"v")])]})
    log.write({key: [(producer, [(b"k", b"v")])]})
    log.write({key: [(None, [(b"k", b"v")])]})
    assert _submit(log) == [(0, 1)]
    assert _submit(log) == []
    log.end(producer, commits=True)
    assert _submit(log) == [(1, 4)]


def test_a_job_knows_a_bounded_number_of_aborted_transactions_and_the_next_one_continues(
    log: TransactionalLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transactions, "ABORTED_OF_ONE", 2)
    monkeypatch.setattr(transactions, "MIN_ABORTED_OF_ONE", 1)
    key, producer = _plain_topic(log), log.producer("t")
    for _ in range(4):
        log.write({key: [(producer, [(b"k", b"v")])]})
        log.end(producer, commits=False)
    # Offsets of records: 0, 2, 4, 6. Nothing is known of what begins after the second transaction did.
    for expected in ((0, 2), (2, 4), (4, 6), (6, 8)):
        assert _submit(log) == [expected]
        (job,) = log.catalog.jobs.claim("a test", 10)
        assert len(job.spec.partitions[0].aborted) <= 2
        log.catalog.jobs.complete(log.result_of(job))
    assert log.committed(key, 0, batches_each=10) == {}
    assert [each.control for each in log.batches(key, 0, 8)[1]] == [None] * 4


def test_a_job_ends_before_the_control_batch_of_records_that_another_job_has(log: TransactionalLog) -> None:
    key, producer = _plain_topic(log), log.producer("t")
    for _ in range(2):
        log.write({key: [(producer, [(b"k", b"v")])]})
    system = log.system
    one_file = PlannerSettings(max_job_files=1)
    log.end(producer, commits=False)
    log.write({key: [(None, [(b"k", b"w")])]})
    done = plan_and_submit(system.catalog, system.clock, system.ids, one_file)
    ranges = [(each.base_offset, each.upper_offset) for job in done.jobs for each in job.partitions]
    assert sorted(ranges) == [(0, 1), (1, 2), (3, 4)]
    for job in reversed(system.catalog.jobs.claim("a test", 10)):
        log.catalog.jobs.complete(log.result_of(job))
        log.check(key, is_compacted=False, offset=0, batches_each=1)
    assert log.catalog.transaction_lookups.aborted({key: (0, 4)})[key] == []
    assert InvariantChecker(log.catalog).violations() == []
