"""Jobs whose range has transactions: accepted outputs, and the rows that publication removes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import psycopg
import pytest

from catalog.errors import ExtentsUnavailableError, JobInputsChangedError
from catalog.jobs import repository
from catalog.model import AbortedTransaction, PartitionId
from tests.catalog.checks import InvariantChecker
from tests.catalog.scene import advance_log_start, run_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import Extent, JobSpec, PartitionState, Topic
    from catalog.transactions.rules import ProducerIdentity
    from core.clock import ManualClock
    from tests.catalog.scene import Scene

_TIMEOUT_MS = 60_000
_GRACE_MS = 60_000


class _Log:
    """One partition, whose files have one batch each."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.topic: Topic = scene.topic()
        self.key = PartitionId(self.topic.topic_id, 0)
        self.transactions = scene.catalog.transactions
        self.lookups = scene.catalog.transaction_lookups
        self.producer: ProducerIdentity = self.transactions.initialize("t", _TIMEOUT_MS).producer
        self.sequence = 0

    def write(self, *, count: int = 2) -> None:
        """Append transactional records; the first ones begin a transaction."""
        stamp = (*self.producer, self.sequence)
        self.scene.commit(self.topic, run_of(count, producer=stamp, adds_partition=True))
        self.sequence += count

    def write_plain(self, *, count: int = 2) -> None:
        self.scene.commit(self.topic, run_of(count))

    def end(self, *, commits: bool) -> None:
        self.transactions.end("t", self.producer, commits=commits)

    @property
    def state(self) -> PartitionState:
        (state,) = self.scene.catalog.topics.states([self.key])
        return state

    @property
    def offsets(self) -> list[tuple[int, int]]:
        return [(each.base_offset, each.last_offset) for each in self.scene.extents(self.topic)]

    @property
    def aborted(self) -> list[tuple[int, int]]:
        found = self.lookups.aborted({self.key: (0, 1000)})[self.key]
        return [(each.first_offset, each.last_offset) for each in found]

    def spec(self, first: int, end: int, *, aborted: Sequence[tuple[int, int]] | None = None) -> JobSpec:
        """Return a job over the extents in [first, end); by default it knows all aborted transactions."""
        inside = [each for each in self.scene.extents(self.topic) if first <= each.base_offset < end]
        spec = self.scene.spec([each for each in inside if each.control is None])
        controls = tuple((each.base_offset,) * 2 for each in inside if each.control is not None)
        known = [
            AbortedTransaction(self.producer.producer_id, *each)
            for each in (self.aborted if aborted is None else aborted)
        ]
        (partition,) = spec.partitions
        planned = replace(
            partition,
            upper_offset=max(partition.upper_offset, *(last + 1 for _, last in controls), 0),
            controls=tuple((offset, last) for offset, last in controls),
            aborted=tuple(known),
        )
        return replace(spec, partitions=(planned,))

    def start(self, spec: JobSpec) -> None:
        self.scene.catalog.jobs.submit(spec)

    def publish(self, spec: JobSpec) -> None:
        """Claim and publish a submitted job."""
        jobs = self.scene.catalog.jobs
        (job,) = jobs.claim("a test", 1)
        assert job.spec == spec
        jobs.complete(self.scene.result(job))
        assert InvariantChecker(self.scene.catalog).violations() == []

    def extents(self) -> list[Extent]:
        return self.scene.extents(self.topic)


@pytest.fixture
def log(scene: Scene) -> _Log:
    return _Log(scene)


def test_a_job_removes_the_control_batches_and_aborted_transactions_of_its_range(log: _Log) -> None:
    log.write()
    log.end(commits=False)
    log.write()
    log.end(commits=True)
    log.write_plain()
    assert log.offsets == [(0, 1), (2, 2), (3, 4), (5, 5), (6, 7)]
    assert log.aborted == [(0, 2)]
    spec = log.spec(0, 6)
    log.start(spec)
    log.publish(spec)
    assert log.offsets == [(0, 5), (6, 7)]
    assert log.aborted == []


def test_a_range_that_ends_inside_an_aborted_transaction_leaves_the_rest_of_it(log: _Log) -> None:
    log.write()
    log.write()
    log.end(commits=False)
    spec = log.spec(0, 2)
    log.start(spec)
    log.publish(spec)
    assert log.offsets == [(0, 1), (2, 3), (4, 4)]
    assert log.aborted == [(2, 4)]
    spec = log.spec(2, 5)
    log.start(spec)
    log.publish(spec)
    assert log.offsets == [(0, 1), (2, 4)]
    assert log.aborted == []


def test_a_control_batch_stays_while_records_of_its_transaction_are_before_the_range(log: _Log) -> None:
    log.write()
    log.write()
    log.end(commits=False)
    with pytest.raises(ExtentsUnavailableError, match="transactions of topic t, partition 0 have changed"):
        log.start(log.spec(2, 5))
    second = log.spec(2, 4)
    log.start(second)
    log.publish(second)
    assert log.aborted == [(0, 4)]
    first = log.spec(0, 2)
    log.start(first)
    log.publish(first)
    assert log.aborted == []
    assert log.offsets == [(0, 1), (2, 3), (4, 4)]
    assert log.state.has_transactions


def test_a_job_must_know_all_aborted_transactions_of_its_range(log: _Log) -> None:
    log.write()
    log.end(commits=False)
    with pytest.raises(ExtentsUnavailableError):
        log.start(log.spec(0, 3, aborted=[]))
    with pytest.raises(ExtentsUnavailableError):
        log.start(log.spec(0, 3, aborted=[(0, 1)]))
    assert [each.claimed_by for each in log.scene.catalog.planning.extents_of(log.key, 0, 10)] == [None, None]


def test_a_job_keeps_to_the_last_stable_offset(log: _Log) -> None:
    log.write_plain()
    log.write()
    assert log.state.last_stable_offset == 2
    with pytest.raises(ExtentsUnavailableError):
        log.start(log.spec(0, 4))
    log.start(log.spec(0, 2))


def test_a_driver_of_the_older_version_claims_only_jobs_without_transactions(
    log: _Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.write()
    log.end(commits=True)
    spec = log.spec(0, 3)
    log.start(spec)
    monkeypatch.setattr(repository, "SPEC_VERSION", 1)
    assert log.scene.catalog.jobs.claim("an older driver", 1) == []
    monkeypatch.undo()
    log.publish(spec)


def test_a_reader_of_extents_that_a_job_has_replaced_gets_no_aborted_transactions(log: _Log) -> None:
    """Otherwise it would take aborted records for committed ones."""
    log.write()
    log.end(commits=False)
    before = log.extents()
    assert log.lookups.aborted({log.key: (0, 3)}, before)[log.key] != []
    spec = log.spec(0, 3)
    log.start(spec)
    log.publish(spec)
    assert log.lookups.aborted({log.key: (0, 3)}, before) == {}
    assert log.lookups.aborted({log.key: (0, 3)}, log.extents()) == {log.key: []}


def test_a_reader_of_a_lost_history_gets_no_aborted_transactions(log: _Log) -> None:
    """The catalog may have lost the abort before which it took the last stable offset."""
    log.write()
    log.end(commits=False)
    (state,) = log.scene.catalog.topics.states([log.key])
    arguments = {log.key: (0, 3)}, log.extents(), [state.leader_epoch]
    assert log.lookups.aborted(*arguments)[log.key] != []
    log.scene.catalog.incarnations.declare_restore("a test")
    assert log.lookups.aborted(*arguments) == {}


def test_a_partition_has_no_transactions_some_time_after_a_job_has_removed_all(
    log: _Log, clock: ManualClock
) -> None:
    log.write()
    log.end(commits=False)
    assert log.transactions.settle(_GRACE_MS) == 0
    spec = log.spec(0, 3)
    log.start(spec)
    log.publish(spec)
    assert log.transactions.settle(_GRACE_MS) == 0
    clock.advance(_GRACE_MS / 1000)
    log.write()
    assert log.transactions.settle(_GRACE_MS) == 0
    log.end(commits=True)
    assert log.transactions.settle(_GRACE_MS) == 0
    spec = log.spec(3, 6)
    log.start(spec)
    log.publish(spec)
    clock.advance(_GRACE_MS / 1000)
    assert log.transactions.settle(_GRACE_MS) == 1
    assert log.scene.commit(log.topic, run_of(1)).has_transactions is False
    assert InvariantChecker(log.scene.catalog).violations() == []


def test_a_publication_fails_if_records_of_a_transaction_without_its_control_batch_are_left(
    log: _Log, catalog_url: str
) -> None:
    """The submission has checked this already; here the catalog changes afterwards."""
    log.write_plain()
    log.write()
    log.end(commits=False)
    spec = log.spec(2, 5)
    log.start(spec)
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE siltstone.aborted_transactions SET first_offset = 0")
    with pytest.raises(JobInputsChangedError, match="records of its transaction are left"):
        log.publish(spec)
    assert log.offsets == [(0, 1), (2, 3), (4, 4)]


def test_a_job_is_published_although_retention_has_removed_all_but_its_control_batches(
    log: _Log, clock: ManualClock
) -> None:
    """Its output then counts as committed at that time, as there is no older data."""
    log.write()
    log.end(commits=False)
    log.write_plain()
    spec = log.spec(0, 3)
    log.start(spec)
    retention = log.scene.catalog.retention
    advance_log_start(retention, log.key.topic_id, 0, 2)
    retention.remove_expired(log.key.topic_id, 0)
    assert log.offsets == [(2, 2), (3, 4)]
    clock.advance(9)
    log.publish(spec)
    assert log.offsets == [(0, 2), (3, 4)]
    assert log.extents()[0].committed_ms == clock.now_ms()
