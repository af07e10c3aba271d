"""Transactions in the catalog: what commits may write, and what an end changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg
import pytest

from catalog.database.pool import Transaction
from catalog.errors import (
    CatalogUnavailableError,
    TransactionRefusal,
    TransactionRefusedError,
    UnstorableValueError,
)
from catalog.groups.offsets import CommitOutcome, CommittedOffset
from catalog.model import AbortedTransaction, ControlBatch, FileKind, PartitionId, RunRefusal
from catalog.transactions.repository import EndedTransaction
from catalog.transactions.rules import ProducerIdentity, TransactionState
from tests.catalog.checks import InvariantChecker
from tests.catalog.scene import Scene, advance_log_start, run_of, runs_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from catalog.model import PartitionState, RunResult, Topic
    from core.clock import ManualClock

_TIMEOUT_MS = 60_000


def _partitions(topic: Topic, *numbers: int) -> list[PartitionId]:
    return [PartitionId(topic.topic_id, number) for number in numbers]


def _state(scene: Scene, topic: Topic, partition: int = 0) -> PartitionState:
    (state,) = scene.catalog.topics.states([PartitionId(topic.topic_id, partition)])
    return state


def _begin(scene: Scene, name: str, topic: Topic, *partitions: int) -> ProducerIdentity:
    producer = scene.catalog.transactions.initialize(name, _TIMEOUT_MS).producer
    scene.catalog.transactions.add_partitions(name, producer, _partitions(topic, *(partitions or (0,))))
    return producer


def _write(
    scene: Scene,
    topic: Topic,
    producer: ProducerIdentity,
    sequence: int = 0,
    *,
    count: int = 3,
    partition: int = 0,
    name: str = "t",
) -> RunResult:
    run = run_of(count, producer=(*producer, sequence), in_transaction=True, transactional_id=name)
    return scene.commit(topic, run, partition=partition).runs[0]


def _refusal(error: pytest.ExceptionInfo[TransactionRefusedError]) -> TransactionRefusal:
    return error.value.refusal


def test_a_commit_writes_a_control_batch_into_every_partition(scene: Scene) -> None:
    topic = scene.topic(partitions=3)
    producer = _begin(scene, "t", topic, 0, 1, 2)
    assert _write(scene, topic, producer).base_offset == 0
    assert _write(scene, topic, producer, partition=1).base_offset == 0
    assert _state(scene, topic).last_stable_offset == 0
    ended = scene.catalog.transactions.end("t", producer, commits=True)
    assert (ended.producer, list(ended.partitions)) == (producer, _partitions(topic, 0, 1, 2))
    for partition, end in ((0, 4), (1, 4), (2, 1)):
        state = _state(scene, topic, partition)
        assert (state.last_stable_offset, state.high_watermark, state.log_end_offset) == (end, end, end)
        *_, control = scene.extents(topic, partition)
        assert control == ended.controls[partition]
        assert (control.base_offset, control.last_offset) == (end - 1, end - 1)
        assert control.control == ControlBatch(*producer, commits=True)
        assert (control.file_kind, control.record_count, control.length) == (FileKind.CONTROL, 0, 0)
    assert InvariantChecker(scene.catalog).violations() == []


def test_an_abort_records_the_offsets_that_readers_skip(scene: Scene) -> None:
    topic = scene.topic()
    scene.commit(topic, run_of(2))
    first, second = _begin(scene, "a", topic), _begin(scene, "b", topic)
    _write(scene, topic, first, name="a")
    _write(scene, topic, second, name="b")
    scene.catalog.transactions.end("b", second, commits=False)
    state = _state(scene, topic)
    assert (state.last_stable_offset, state.high_watermark, state.has_transactions) == (2, 9, True)
    scene.catalog.transactions.end("a", first, commits=False)
    assert _state(scene, topic).last_stable_offset == 10
    (key,) = _partitions(topic, 0)
    of_first = AbortedTransaction(first.producer_id, 2, 9)
    of_second = AbortedTransaction(second.producer_id, 5, 8)
    aborted = scene.catalog.transaction_lookups.aborted
    assert aborted({key: (0, 10)})[key] == [of_second, of_first]
    assert aborted({key: (0, 2)})[key] == []
    assert aborted({key: (2, 5)})[key] == [of_first]
    assert aborted({key: (9, 10)})[key] == [of_first]
    assert aborted({key: (10, 12)})[key] == []


def test_records_outside_of_transactions_wait_for_the_open_transactions_before_them(scene: Scene) -> None:
    topic = scene.topic()
    producer = _begin(scene, "t", topic)
    assert scene.commit(topic, run_of(2)).has_transactions is False
    _write(scene, topic, producer)
    result = scene.commit(topic, run_of(2))
    assert (result.high_watermark, result.has_transactions) == (7, True)
    assert _state(scene, topic).last_stable_offset == 2
    scene.catalog.transactions.end("t", producer, commits=True)
    assert _state(scene, topic).last_stable_offset == 8


def test_the_last_stable_offset_stays_although_the_log_start_passes_it(scene: Scene) -> None:
    topic = scene.topic()
    producer = _begin(scene, "t", topic)
    _write(scene, topic, producer)
    advance_log_start(scene.catalog.retention, topic.topic_id, 0, 3)
    _write(scene, topic, producer, 3)
    state = _state(scene, topic)
    assert (state.log_start_offset, state.last_stable_offset, state.high_watermark) == (3, 3, 6)
    scene.catalog.transactions.end("t", producer, commits=True)
    assert _state(scene, topic).last_stable_offset == 7


def test_a_producer_without_an_ongoing_transaction_writes_nothing(scene: Scene) -> None:
    topic = scene.topic(partitions=2)
    producer = _begin(scene, "t", topic)
    assert _write(scene, topic, producer, partition=1).refusal is RunRefusal.INVALID_TXN_STATE
    unknown = ProducerIdentity(producer.producer_id + 1, 0)
    assert _write(scene, topic, unknown).refusal is RunRefusal.INVALID_PRODUCER_ID_MAPPING
    scene.catalog.transactions.end("t", producer, commits=False)
    assert _write(scene, topic, producer).refusal is RunRefusal.INVALID_TXN_STATE
    newer = scene.catalog.transactions.initialize("t", _TIMEOUT_MS).producer
    assert newer == (producer.producer_id, producer.producer_epoch + 1)
    assert _write(scene, topic, producer).refusal is RunRefusal.INVALID_PRODUCER_EPOCH
    assert scene.extents(topic)[-1].last_offset == 0


def test_a_batch_may_begin_the_transaction_and_add_its_partition(scene: Scene) -> None:
    topic = scene.topic(partitions=2)
    transactions = scene.catalog.transactions
    producer = transactions.initialize("t", _TIMEOUT_MS).producer
    commit = scene.file(
        {key: [run_of(1, producer=(*producer, 0), adds_partition=True)] for key in _partitions(topic, 0, 1)}
    )
    for _ in range(2):  # the second time, the response was lost
        results = scene.catalog.commits.commit(commit)
        assert [result.runs[0].base_offset for result in results] == [0, 0]
    assert scene.catalog.transaction_lookups.find(["t"])["t"].state is TransactionState.ONGOING
    ended = transactions.end("t", producer, commits=True, bumps_epoch=True)
    assert ended.producer == (producer.producer_id, 1)
    assert scene.extents(topic)[-1].control == ControlBatch(producer.producer_id, 1, commits=True)
    late = run_of(1, producer=(*producer, 1), adds_partition=True)
    assert scene.commit(topic, late).runs[0].refusal is RunRefusal.INVALID_PRODUCER_EPOCH


def test_batches_of_another_transactional_id_are_refused_alone(scene: Scene) -> None:
    """The producers of several requests share a file; one of them writes with the identity of another."""
    topic, transactions = scene.topic(partitions=2), scene.catalog.transactions
    first, second = _begin(scene, "a", topic), _begin(scene, "b", topic)
    silent = transactions.initialize("c", _TIMEOUT_MS).producer
    written = [(first, 0, "a"), (first, 1, "b"), (second, 0, "b"), (silent, 0, "a")]
    runs = [
        run_of(1, producer=(*producer, sequence), adds_partition=True, transactional_id=name)
        for producer, sequence, name in written
    ]
    (key, other) = _partitions(topic, 0, 1)
    results = scene.catalog.commits.commit(scene.file({key: runs_of(*runs), other: runs[1:2]}))
    refused = RunRefusal.INVALID_PRODUCER_ID_MAPPING
    assert [run.refusal for run in results[0].runs] == [None, refused, None, refused]
    assert [run.refusal for run in results[1].runs] == [refused]
    assert scene.catalog.transaction_lookups.find(["c"])["c"].state is not TransactionState.ONGOING
    assert transactions.end("a", first, commits=True).partitions == (key,)
    assert transactions.end("b", second, commits=True).partitions == (key,)


@pytest.mark.parametrize("bumps_epoch", [False, True])
def test_a_repeated_end_has_no_further_effect(scene: Scene, *, bumps_epoch: bool) -> None:
    topic, transactions = scene.topic(), scene.catalog.transactions
    producer = _begin(scene, "t", topic)
    _write(scene, topic, producer)
    ends = [transactions.end("t", producer, commits=True, bumps_epoch=bumps_epoch).producer for _ in range(3)]
    assert ends == [ProducerIdentity(producer.producer_id, int(bumps_epoch))] * 3
    assert _state(scene, topic).log_end_offset == 4
    with pytest.raises(TransactionRefusedError) as error:
        transactions.end("t", producer, commits=False, bumps_epoch=bumps_epoch)
    assert _refusal(error) is TransactionRefusal.INVALID_TXN_STATE


def test_a_new_producer_aborts_the_transaction_of_the_one_before(scene: Scene) -> None:
    topic, transactions = scene.topic(), scene.catalog.transactions
    zombie = _begin(scene, "t", topic)
    _write(scene, topic, zombie)
    begun = transactions.initialize("t", _TIMEOUT_MS)
    assert begun.producer == (zombie.producer_id, zombie.producer_epoch + 2)
    assert list(begun.partitions) == _partitions(topic, 0)
    (key,) = _partitions(topic, 0)
    assert scene.catalog.transaction_lookups.aborted({key: (0, 9)})[key] == [
        AbortedTransaction(zombie.producer_id, 0, 3)
    ]
    for call in (
        lambda: transactions.end("t", zombie, commits=True),
        lambda: transactions.add_partitions("t", zombie, [key]),
        lambda: transactions.add_group("t", zombie, "g"),
        lambda: transactions.initialize("t", _TIMEOUT_MS, zombie),
    ):
        with pytest.raises(TransactionRefusedError) as error:
            call()
        assert _refusal(error) is TransactionRefusal.PRODUCER_FENCED


def test_a_transaction_that_lasts_too_long_is_aborted_and_its_producer_fenced(
    scene: Scene, clock: ManualClock
) -> None:
    topic, transactions = scene.topic(), scene.catalog.transactions
    producer = _begin(scene, "t", topic)
    _write(scene, topic, producer)
    clock.advance(_TIMEOUT_MS / 1000)
    assert scene.catalog.transaction_lookups.timed_out() == []
    clock.advance(1)
    (found,) = scene.catalog.transaction_lookups.timed_out()
    assert (found.transactional_id, found.producer) == ("t", producer)
    assert list(transactions.abort("t", producer).partitions) == _partitions(topic, 0)
    assert transactions.abort("t", producer).partitions == ()
    assert scene.catalog.transaction_lookups.timed_out() == []
    assert _write(scene, topic, producer, 3).refusal is RunRefusal.INVALID_PRODUCER_EPOCH
    with pytest.raises(TransactionRefusedError):
        transactions.end("t", producer, commits=True)
    assert _state(scene, topic).last_stable_offset == 4


def test_the_next_transaction_of_a_producer_does_not_end_in_place_of_one_that_has_timed_out(
    scene: Scene, clock: ManualClock
) -> None:
    """Without KIP-890 both have the same epoch. The producer ends the first one before maintenance does."""
    topic, transactions = scene.topic(), scene.catalog.transactions
    producer = _begin(scene, "t", topic)
    _write(scene, topic, producer)
    clock.advance(_TIMEOUT_MS / 1000 + 1)
    (found,) = scene.catalog.transaction_lookups.timed_out()
    transactions.end("t", producer, commits=True)
    transactions.add_partitions("t", producer, _partitions(topic, 0))
    ended = transactions.abort(found.transactional_id, found.producer, started_ms=found.started_ms)
    assert ended.partitions == ()
    assert _write(scene, topic, producer, 3).refusal is None
    assert transactions.end("t", producer, commits=True).producer == producer


def test_a_late_attempt_does_not_end_the_transaction_after_the_one_that_it_was_for(
    scene: Scene, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While an agent repeats a request in an outage, its client repeats it at another agent."""
    topic, transactions = scene.topic(), scene.catalog.transactions
    producer = _begin(scene, "t", topic)
    _write(scene, topic, producer)
    transact = transactions._database.transact

    def delayed(operation: str, work: Callable[[Transaction], object], *, repeats_lock_waits: bool) -> object:
        monkeypatch.setattr(transactions._database, "transact", transact)
        clock.advance(5)
        transactions.end("t", producer, commits=True)
        transactions.add_partitions("t", producer, _partitions(topic, 0))
        assert _write(scene, topic, producer, 3).refusal is None
        clock.advance(5)
        return transact(operation, work, repeats_lock_waits=repeats_lock_waits)

    monkeypatch.setattr(transactions._database, "transact", delayed)
    with pytest.raises(TransactionRefusedError) as error:
        transactions.end("t", producer, commits=True)
    assert _refusal(error) is TransactionRefusal.CONCURRENT_TRANSACTIONS
    assert _write(scene, topic, producer, 6).refusal is None
    clock.advance(5)
    assert len(transactions.end("t", producer, commits=False).controls) == 1


def _moves_on(scene: Scene, clock: ManualClock, topic: Topic, producer: ProducerIdentity) -> None:
    """Let the client of `t` end its transaction at another agent, and begin the next one."""
    clock.advance(5)
    scene.catalog.transactions.end("t", producer, commits=True)
    scene.catalog.transactions.add_partitions("t", producer, _partitions(topic, 0))
    clock.advance(5)


def test_an_end_that_waited_does_not_end_the_next_transaction(scene: Scene, clock: ManualClock) -> None:
    """It waits in its agent behind another end, while the client moves on."""
    topic, transactions = scene.topic(), scene.catalog.transactions
    producer = _begin(scene, "t", topic)
    request = scene.end_request("t", producer)
    _moves_on(scene, clock, topic, producer)
    (late,) = transactions.end_all([request])
    assert isinstance(late, TransactionRefusedError)
    assert late.refusal is TransactionRefusal.CONCURRENT_TRANSACTIONS
    assert _write(scene, topic, producer).refusal is None


def test_an_end_whose_statements_are_delayed_does_not_end_the_next_transaction(
    scene: Scene, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client moves on between the begin of an attempt and its first statement."""
    topic, transactions = scene.topic(), scene.catalog.transactions
    producer = _begin(scene, "t", topic)
    lock_params = transactions._lock_params

    def delayed(*names: str) -> dict[str, object]:
        monkeypatch.setattr(transactions, "_lock_params", lock_params)
        _moves_on(scene, clock, topic, producer)
        return lock_params(*names)

    monkeypatch.setattr(transactions, "_lock_params", delayed)
    with pytest.raises(TransactionRefusedError) as error:
        transactions.end("t", producer, commits=True)
    assert _refusal(error) is TransactionRefusal.CONCURRENT_TRANSACTIONS
    assert _write(scene, topic, producer).refusal is None


def test_an_end_soon_after_the_begin_is_dated_by_the_fastest_reading_of_the_clock(
    scene: Scene, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each response takes some time, and the server has read its clock before."""
    topic, transactions = scene.topic(), scene.catalog.transactions
    producer = _begin(scene, "t", topic)
    clock.advance(0.005)
    request = scene.end_request("t", producer)
    wait, now_ms, delays = Transaction.wait, Transaction.now_ms, [0.01, 0.004, 0.01]

    def slow_wait(transaction: Transaction) -> None:
        wait(transaction)
        clock.advance(0.01)

    def slow_now(transaction: Transaction) -> int:
        found = now_ms(transaction)
        clock.advance(delays.pop(0))
        return found

    monkeypatch.setattr(Transaction, "wait", slow_wait)
    monkeypatch.setattr(Transaction, "now_ms", slow_now)
    (ended,) = transactions.end_all([request])
    assert isinstance(ended, EndedTransaction)
    assert delays == [0.01]


def test_a_late_end_of_a_fenced_producer_is_fenced(scene: Scene, clock: ManualClock) -> None:
    topic, transactions = scene.topic(), scene.catalog.transactions
    fenced = _begin(scene, "t", topic)
    request = scene.end_request("t", fenced)
    clock.advance(5)
    successor = transactions.initialize("t", _TIMEOUT_MS).producer
    transactions.add_partitions("t", successor, _partitions(topic, 0))
    (late,) = transactions.end_all([request])
    assert isinstance(late, TransactionRefusedError)
    assert late.refusal is TransactionRefusal.PRODUCER_FENCED


def test_an_end_that_began_an_epoch_needs_no_time(scene: Scene, clock: ManualClock) -> None:
    """With KIP-890, the epoch says which transaction a request ends."""
    topic, transactions = scene.topic(), scene.catalog.transactions
    producer = transactions.initialize("t", _TIMEOUT_MS).producer
    request = scene.end_request("t", producer, bumps_epoch=True)
    clock.advance(5)
    transactions.add_partitions("t", producer, _partitions(topic, 0))
    (ended,) = transactions.end_all([request])
    assert isinstance(ended, EndedTransaction)


def test_a_transaction_ends_after_the_clock_of_the_server_has_gone_back(
    scene: Scene, clock: ManualClock
) -> None:
    topic, transactions = scene.topic(), scene.catalog.transactions
    clock.advance(60)
    producer = _begin(scene, "t", topic)
    clock._start_ms -= 30_000
    request = scene.end_request("t", producer)
    clock.advance(5)
    (ended,) = transactions.end_all([request])
    assert isinstance(ended, EndedTransaction)


def test_an_end_that_cannot_be_stored_fails_alone(scene: Scene) -> None:
    """PostgreSQL stores no NUL, so one request makes the statement of all of them fail."""
    topic, transactions = scene.topic(), scene.catalog.transactions
    first, second = _begin(scene, "a", topic), _begin(scene, "b", topic)
    requests = [
        scene.end_request("a", first),
        scene.end_request("x\0", first),
        scene.end_request("b", second, commits=False),
    ]
    results = transactions.end_all(requests)
    assert [type(each) for each in results] == [EndedTransaction, UnstorableValueError, EndedTransaction]
    (committed, aborted) = (each for each in results if isinstance(each, EndedTransaction))
    assert [each.control for each in committed.controls] == [ControlBatch(*first, commits=True)]
    assert [each.control for each in aborted.controls] == [ControlBatch(*second, commits=False)]


def test_ends_that_are_repeated_one_by_one_take_effect_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error after the commit of their transaction, such as one of memory, hides that it has happened."""
    topic, transactions = scene.topic(), scene.catalog.transactions
    requests = [
        scene.end_request(name, _begin(scene, name, topic), commits=commits, bumps_epoch=bumps_epoch)
        for name, commits, bumps_epoch in (("a", True, False), ("b", False, False), ("c", True, True))
    ]
    transact = transactions._database.transact

    def failing(operation: str, work: Callable[[Transaction], object], *, repeats_lock_waits: bool) -> object:
        monkeypatch.setattr(transactions._database, "transact", transact)
        transact(operation, work, repeats_lock_waits=repeats_lock_waits)
        raise MemoryError

    monkeypatch.setattr(transactions._database, "transact", failing)
    results = transactions.end_all(requests)
    identities = [each.producer for each in results if isinstance(each, EndedTransaction)]
    bumped = ProducerIdentity(requests[2].producer.producer_id, 1)
    assert identities == [requests[0].producer, requests[1].producer, bumped]
    assert [each.control and each.control.producer_id for each in scene.extents(topic)] == [
        each.producer.producer_id for each in requests
    ]


def test_ends_that_are_repeated_one_by_one_do_not_end_the_next_transactions(
    scene: Scene, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client has repeated its request at another agent, and has begun the next one with the same epoch."""
    topic, transactions = scene.topic(), scene.catalog.transactions
    producer, other = _begin(scene, "t", topic), _begin(scene, "u", topic)
    transact = transactions._database.transact

    def failing(operation: str, work: Callable[[Transaction], object], *, repeats_lock_waits: bool) -> object:
        monkeypatch.setattr(transactions._database, "transact", transact)
        clock.advance(5)
        transactions.end("t", producer, commits=True)
        transactions.add_partitions("t", producer, _partitions(topic, 0))
        clock.advance(5)
        return transact(operation, work, repeats_lock_waits=repeats_lock_waits)

    monkeypatch.setattr(transactions._database, "transact", failing)
    poison = scene.end_request("x\0", producer)
    results = transactions.end_all([scene.end_request("t", producer), scene.end_request("u", other), poison])
    assert isinstance(results[0], TransactionRefusedError)
    assert results[0].refusal is TransactionRefusal.CONCURRENT_TRANSACTIONS
    assert [type(each) for each in results[1:]] == [EndedTransaction, UnstorableValueError]
    assert _write(scene, topic, producer).refusal is None


def test_an_outage_while_ends_are_repeated_one_by_one_is_waited_for_once(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic, transactions = scene.topic(), scene.catalog.transactions
    names = ["a", "b", "c", "d"]
    requests = [scene.end_request(name, _begin(scene, name, topic)) for name in names]
    transact, calls = transactions._database.transact, 0

    def failing(operation: str, work: Callable[[Transaction], object], *, repeats_lock_waits: bool) -> object:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise MemoryError
        if calls == 3:
            raise CatalogUnavailableError("no catalog", remedy="wait", retry_after_seconds=1)
        return transact(operation, work, repeats_lock_waits=repeats_lock_waits)

    monkeypatch.setattr(transactions._database, "transact", failing)
    results = transactions.end_all(requests)
    assert [type(each) for each in results] == [EndedTransaction, *[CatalogUnavailableError] * 3]
    assert calls == 3


def test_offsets_of_a_transaction_are_committed_with_it_or_not_at_all(scene: Scene) -> None:
    topic, catalog = scene.topic(), scene.catalog
    claim = scene.ids.new_uuid()
    catalog.groups.claim("g", claim, create=True)
    key = PartitionId(topic.topic_id, 0)
    producer = catalog.transactions.initialize("t", _TIMEOUT_MS).producer

    def add(offset: int, *, adds_group: bool = False) -> CommitOutcome:
        offsets = [CommittedOffset(topic_id=topic.topic_id, partition=0, offset=offset)]
        return catalog.transactions.add_offsets(
            "t", producer, ("g", claim, None), offsets, adds_group=adds_group
        ).outcome

    with pytest.raises(TransactionRefusedError):
        add(1)
    for offset, commits in ((5, True), (7, False)):
        catalog.transactions.add_group("t", producer, "g")
        assert add(offset) is CommitOutcome.COMMITTED
        ((_, before),) = catalog.group_offsets.fetch([("g", key)])
        assert (before.offset, before.is_unstable) == (-1 if commits else 5, True)
        catalog.transactions.end("t", producer, commits=commits)
    assert [each.offset for _, each in catalog.group_offsets.fetch([("g", key)])] == [5]
    assert add(9, adds_group=True) is CommitOutcome.COMMITTED
    catalog.groups.delete("g", claim)
    catalog.transactions.end("t", producer, commits=True)
    assert catalog.group_offsets.fetch([("g", key)]) == []


def _group(scene: Scene) -> UUID:
    claim = scene.ids.new_uuid()
    scene.catalog.groups.claim("g", claim, create=True)
    return claim


def test_late_offsets_are_not_those_of_the_next_transaction(scene: Scene, clock: ManualClock) -> None:
    """With the epochs of KIP-890, they need no time."""
    topic, catalog, claim = scene.topic(), scene.catalog, _group(scene)
    producer = catalog.transactions.initialize("t", _TIMEOUT_MS).producer
    late = catalog.transactions._database.monotonic()

    def add(offset: int, arrived_at: float, *, adds_group: bool = False) -> None:
        offsets = [CommittedOffset(topic_id=topic.topic_id, partition=0, offset=offset)]
        catalog.transactions.add_offsets(
            "t", producer, ("g", claim, None), offsets, adds_group=adds_group, arrived_at=arrived_at
        )

    clock.advance(5)
    catalog.transactions.add_group("t", producer, "g")
    clock.advance(5)
    add(9, catalog.transactions._database.monotonic())
    with pytest.raises(TransactionRefusedError) as error:
        add(5, late)
    assert _refusal(error) is TransactionRefusal.CONCURRENT_TRANSACTIONS
    catalog.transactions.end("t", producer, commits=True)
    assert _offsets(scene, topic) == [9]
    add(12, late, adds_group=True)
    clock.advance(5)
    catalog.transactions.end("t", producer, commits=True)
    assert _offsets(scene, topic) == [12]


def _add_offset(scene: Scene, topic: Topic, name: str, claim: UUID, offset: int) -> ProducerIdentity:
    producer = scene.catalog.transactions.initialize(name, _TIMEOUT_MS).producer
    offsets = [CommittedOffset(topic_id=topic.topic_id, partition=0, offset=offset)]
    scene.catalog.transactions.add_offsets(name, producer, ("g", claim, None), offsets, adds_group=True)
    return producer


def _offsets(scene: Scene, topic: Topic) -> list[int]:
    found = scene.catalog.group_offsets.fetch([("g", PartitionId(topic.topic_id, 0))])
    return [each.offset for _, each in found]


def test_an_offset_that_was_committed_after_that_of_a_transaction_stays(scene: Scene) -> None:
    topic, catalog = scene.topic(), scene.catalog
    claim = _group(scene)
    producer = _add_offset(scene, topic, "a", claim, 20)
    reset = CommittedOffset(topic_id=topic.topic_id, partition=0, offset=5)
    catalog.group_offsets.commit("g", claim, None, [reset])
    catalog.transactions.end("a", producer, commits=True)
    assert _offsets(scene, topic) == [5]
    first, second = _add_offset(scene, topic, "a", claim, 20), _add_offset(scene, topic, "b", claim, 30)
    catalog.transactions.end("b", second, commits=True)
    catalog.transactions.end("a", first, commits=True)
    assert _offsets(scene, topic) == [30]


def test_an_offset_that_was_stored_without_an_order_is_committed(scene: Scene, catalog_url: str) -> None:
    """An agent of the release before the order was introduced has stored it."""
    topic, claim = scene.topic(), _group(scene)
    reset = CommittedOffset(topic_id=topic.topic_id, partition=0, offset=5)
    scene.catalog.group_offsets.commit("g", claim, None, [reset])
    producer = _add_offset(scene, topic, "a", claim, 20)
    with psycopg.connect(catalog_url) as connection:
        connection.execute("UPDATE siltstone.pending_offsets SET commit_number = 0")
    scene.catalog.transactions.end("a", producer, commits=True)
    assert _offsets(scene, topic) == [20]


def test_offsets_that_are_deleted_are_not_committed_by_a_transaction(scene: Scene) -> None:
    topic, claim = scene.topic(), _group(scene)
    producer = _add_offset(scene, topic, "a", claim, 20)
    assert scene.catalog.group_offsets.delete("g", claim, _partitions(topic, 0))
    scene.catalog.transactions.end("a", producer, commits=True)
    assert _offsets(scene, topic) == []


def test_an_offset_that_a_transaction_may_change_does_not_expire(scene: Scene, clock: ManualClock) -> None:
    topic, claim = scene.topic(), _group(scene)
    old = CommittedOffset(topic_id=topic.topic_id, partition=0, offset=5)
    scene.catalog.group_offsets.commit("g", claim, None, [old])
    producer = _add_offset(scene, topic, "a", claim, 20)
    clock.advance(100)
    assert scene.catalog.group_offsets.expire(["g"], 1000) == []
    assert _offsets(scene, topic) == [5]
    scene.catalog.transactions.end("a", producer, commits=False)
    assert scene.catalog.group_offsets.expire(["g"], 1000) == ["g"]


def test_an_end_takes_three_statements_for_any_number_of_partitions(scene: Scene) -> None:
    topic = scene.topic(partitions=20)
    producer = _begin(scene, "t", topic, *range(20))
    counts = scene.catalog.operation_counts
    before = counts()["transactions.end"].statements if "transactions.end" in counts() else 0
    scene.catalog.transactions.end("t", producer, commits=True)
    assert counts()["transactions.end"].statements - before == 3


def test_transactions_that_end_together_share_locks_and_not_refusals(scene: Scene) -> None:
    topic, transactions = scene.topic(partitions=2), scene.catalog.transactions
    first, zombie = _begin(scene, "a", topic, 0, 1), _begin(scene, "b", topic)
    second, third = transactions.initialize("b", _TIMEOUT_MS).producer, _begin(scene, "c", topic)
    _write(scene, topic, first, name="a")
    _write(scene, topic, third, name="c")
    before = _state(scene, topic).log_end_offset
    transactions.add_partitions("b", second, _partitions(topic, 1))
    counts = scene.catalog.operation_counts
    statements = counts()["transactions.end"].statements if "transactions.end" in counts() else 0
    unknown = ProducerIdentity(10_000, 0)
    requests = [
        scene.end_request("a", first),
        scene.end_request("b", zombie),
        scene.end_request("c", third, commits=False),
        scene.end_request("d", unknown),
    ]
    ended, fenced, aborted, missing = transactions.end_all(requests)
    assert counts()["transactions.end"].statements - statements == 2 + 2
    assert isinstance(ended, EndedTransaction)
    assert isinstance(aborted, EndedTransaction)
    assert isinstance(fenced, TransactionRefusedError)
    assert isinstance(missing, TransactionRefusedError)
    assert fenced.refusal is TransactionRefusal.PRODUCER_FENCED
    assert missing.refusal is TransactionRefusal.INVALID_PRODUCER_ID_MAPPING
    assert list(ended.partitions) == _partitions(topic, 0, 1)
    assert [each.base_offset for each in (ended.controls[0], *aborted.controls)] == [before, before + 1]
    assert scene.catalog.transaction_lookups.find(["b"])["b"].state is TransactionState.ONGOING
    assert transactions.end("b", second, commits=True).partitions == tuple(_partitions(topic, 1))
    assert InvariantChecker(scene.catalog).violations() == []


def test_retention_removes_control_batches_and_stops_at_an_open_transaction(
    scene: Scene, clock: ManualClock
) -> None:
    topic, transactions = scene.topic(retention_ms="1000"), scene.catalog.transactions
    key = PartitionId(topic.topic_id, 0)
    producer = _begin(scene, "t", topic)
    _write(scene, topic, producer)
    transactions.end("t", producer, commits=True)
    transactions.add_partitions("t", producer, [key])
    _write(scene, topic, producer, 3)
    clock.advance(10)
    scene.catalog.retention.expire([key])
    assert _state(scene, topic).log_start_offset == 4
    assert [each.base_offset for each in scene.extents(topic)] == [4]
    assert InvariantChecker(scene.catalog).violations() == []


def test_a_transaction_that_was_open_when_its_topic_was_deleted_is_aborted_in_it(scene: Scene) -> None:
    topic, transactions = scene.topic(partitions=2), scene.catalog.transactions
    first, second = _begin(scene, "a", topic, 0, 1), _begin(scene, "b", topic)
    _write(scene, topic, first, name="a")
    _write(scene, topic, second, name="b")
    scene.catalog.topics.delete(topic.name)
    assert transactions.end("a", first, commits=True).partitions == ()
    scene.catalog.topics.deleted.undelete(topic.name)
    # The second transaction is still ongoing. If it could commit, readers would see only what it writes now.
    assert _write(scene, topic, second, 3, name="b").refusal is RunRefusal.INVALID_PRODUCER_EPOCH
    with pytest.raises(TransactionRefusedError) as error:
        transactions.end("b", second, commits=True)
    assert _refusal(error) is TransactionRefusal.PRODUCER_FENCED
    (timed_out,) = scene.catalog.transaction_lookups.timed_out()
    assert transactions.abort("b", timed_out.producer).partitions == tuple(_partitions(topic, 0))
    states = [_state(scene, topic, partition) for partition in (0, 1)]
    assert [each.last_stable_offset for each in states] == [each.log_end_offset for each in states] == [9, 0]
    (key,) = _partitions(topic, 0)
    found = scene.catalog.transaction_lookups.aborted({key: (0, 9)})[key]
    assert found == [
        AbortedTransaction(first.producer_id, 0, 6),
        AbortedTransaction(second.producer_id, 3, 7),
    ]
    assert InvariantChecker(scene.catalog).violations() == []
