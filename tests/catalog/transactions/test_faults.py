"""Transactions while responses are lost, commits are late, and many producers run at once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import psycopg
import pytest
from typing_extensions import override

from catalog.database.connection import connection_string
from catalog.database.limits import DatabaseLimits
from catalog.errors import CatalogTimeoutError, TransactionRefusal, TransactionRefusedError
from catalog.groups.offsets import CommittedOffset
from catalog.model import ControlBatch, PartitionId, RunRefusal
from catalog.open import open_catalog
from catalog.transactions.local_partitions import FirstBatch
from catalog.transactions.repository import EndedTransaction
from core.clock import SystemClock
from tests.catalog.checks import InvariantChecker
from tests.catalog.committer import retry_while_unavailable
from tests.catalog.database.wire import WireProxy
from tests.catalog.scene import Scene, run_of
from tests.fixtures.postgres import PATIENT

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future
    from pathlib import Path

    from catalog.model import Topic
    from catalog.transactions.rules import ProducerIdentity
    from core.clock import Clock
    from core.ids import Ids

_TIMEOUT_MS = 600_000
_PARTITIONS = 3
_PRODUCERS = 4
_TRANSACTIONS = 8
_WAITING = "SELECT FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
CONCURRENT_TRANSACTIONS = TransactionRefusal.CONCURRENT_TRANSACTIONS
T = TypeVar("T")


@pytest.fixture
def clock() -> Clock:
    """Return the system clock, because these tests wait for threads."""
    return SystemClock()


def _refusal_of(result: object) -> TransactionRefusal | None:
    return result.refusal if isinstance(result, TransactionRefusedError) else None


def _keys(topic: Topic) -> list[PartitionId]:
    return [PartitionId(topic.topic_id, number) for number in range(_PARTITIONS)]


def _write(
    scene: Scene,
    topic: Topic,
    producer: ProducerIdentity,
    sequence: int,
    *,
    adds_partition: bool = True,
    name: str = "t",
) -> list[RunRefusal | None]:
    """Commit a file with one record of the producer's transaction for each partition."""
    run = run_of(
        1,
        producer=(*producer, sequence),
        in_transaction=True,
        adds_partition=adds_partition,
        transactional_id=name,
    )
    results = scene.catalog.commits.commit(scene.file({key: [run] for key in _keys(topic)}))
    return [result.runs[0].refusal for result in results]


@pytest.mark.parametrize("bumps_epoch", [False, True])
@pytest.mark.parametrize("commits", [False, True])
@pytest.mark.parametrize("delay", [None, 0.3])
def test_an_end_whose_response_is_lost_happens_once(
    catalog_url: str,
    tmp_path: Path,
    clock: Clock,
    ids: Ids,
    *,
    bumps_epoch: bool,
    commits: bool,
    delay: float | None,
) -> None:
    """With a delay, the first transaction is still open, and holds its locks, during the second attempt."""
    with WireProxy(catalog_url, tmp_path) as wire, open_catalog(wire.url, clock, ids) as catalog:
        scene = Scene.set_up(catalog, ids)
        topic = scene.topic(partitions=_PARTITIONS)
        producer = catalog.transactions.initialize("t", _TIMEOUT_MS).producer
        assert _write(scene, topic, producer, 0) == [None] * _PARTITIONS
        if delay is None:
            wire.lose_next_commit()
        else:
            wire.delay_next_commit(delay)
        ended = catalog.transactions.end("t", producer, commits=commits, bumps_epoch=bumps_epoch)
        assert ended.producer == (producer.producer_id, int(bumps_epoch))
        assert catalog.operation_counts()["transactions.end"].retries >= 1
        control = ControlBatch(producer.producer_id, int(bumps_epoch), commits)
        for partition in range(_PARTITIONS):
            assert [each.control for each in scene.extents(topic, partition)] == [None, control]
        assert InvariantChecker(catalog).violations() == []


class _NoTimePasses(SystemClock):
    """Clock by which responses take no time. After a slow one, an end reads the server's clock again."""

    @override
    def monotonic(self) -> float:
        return 0.0


def test_an_end_takes_two_round_trips(catalog_url: str, tmp_path: Path, ids: Ids) -> None:
    with WireProxy(catalog_url, tmp_path) as wire, open_catalog(wire.url, _NoTimePasses(), ids) as catalog:
        scene = Scene.set_up(catalog, ids)
        topic = scene.topic(partitions=_PARTITIONS)
        producer = catalog.transactions.initialize("t", _TIMEOUT_MS).producer
        waits = []
        for number in range(8):  # psycopg prepares a statement after some executions
            _write(scene, topic, producer, number)
            before = wire.waits
            catalog.transactions.end("t", producer, commits=True)
            waits.append(wire.waits - before)
    assert waits == [2] * 8


def test_an_end_waits_for_a_commit_under_way_and_refuses_a_later_one(
    catalog_url: str, tmp_path: Path, clock: Clock, ids: Ids, scene: Scene
) -> None:
    """The COMMIT of a frozen agent arrives late. The control batch follows its records."""
    topic = scene.topic(partitions=_PARTITIONS)
    producer = scene.catalog.transactions.initialize("t", _TIMEOUT_MS).producer
    with WireProxy(catalog_url, tmp_path) as wire, open_catalog(wire.url, clock, ids) as catalog:
        slow = Scene.set_up(catalog, ids)
        scene.catalog.transactions.add_partitions("t", producer, _keys(topic))
        begun = threading.Event()
        wire.delay_next_commit(0.5)
        with ThreadPoolExecutor(1) as pool:
            writing = pool.submit(_write, slow, topic, producer, 0)
            begun.wait(0.2)
            ended = scene.catalog.transactions.end("t", producer, commits=True, bumps_epoch=True)
            refusals = writing.result()
        late = _write(slow, topic, producer, 1)
    assert ended.producer.producer_epoch == producer.producer_epoch + 1
    assert late == [RunRefusal.INVALID_PRODUCER_EPOCH] * _PARTITIONS
    for partition, refusal in enumerate(refusals):
        *records, control = scene.extents(topic, partition)
        assert control.control is not None
        assert len(records) == (refusal is None)
    assert InvariantChecker(scene.catalog).violations() == []


def test_a_batch_opens_its_transaction_again_in_a_partition_where_it_was_ended(
    catalog_url: str, scene: Scene
) -> None:
    """An undelete ends transactions in the partitions of a topic while a commit waits for these."""
    topic = scene.topic(partitions=_PARTITIONS)
    producer = scene.catalog.transactions.initialize("t", _TIMEOUT_MS).producer
    _write(scene, topic, producer, 0)
    url = connection_string(catalog_url, DatabaseLimits())
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("UPDATE partitions SET unstable_offset = NULL")
        other.execute("UPDATE transaction_partitions SET first_offset = NULL")
        writing = pool.submit(_write, scene, topic, producer, 1)
        with psycopg.connect(url, autocommit=True) as observer:
            while not observer.execute(_WAITING).fetchall():
                assert not writing.done()
        other.commit()
        assert writing.result() == [None] * _PARTITIONS
    opened = scene.catalog.transaction_lookups.open_in(_keys(topic))
    assert opened == {(key, producer.producer_id): 1 for key in _keys(topic)}


def test_an_end_waits_for_a_group_that_is_deleted(catalog_url: str, scene: Scene) -> None:
    """Both lock the group before its offsets, so there is no deadlock."""
    topic, catalog, claim = scene.topic(partitions=_PARTITIONS), scene.catalog, scene.ids.new_uuid()
    catalog.groups.claim("g", claim, create=True)
    producer = catalog.transactions.initialize("t", _TIMEOUT_MS).producer
    offsets = [CommittedOffset(topic_id=topic.topic_id, partition=0, offset=5)]
    catalog.transactions.add_offsets("t", producer, ("g", claim, None), offsets, adds_group=True)
    url = connection_string(catalog_url, DatabaseLimits())
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SELECT FROM consumer_groups WHERE group_id = 'g' FOR UPDATE")
        ending = pool.submit(catalog.transactions.end, "t", producer, commits=True)
        with psycopg.connect(url, autocommit=True) as observer:
            while not observer.execute(_WAITING).fetchall():
                assert not ending.done()
        other.execute("DELETE FROM consumer_groups WHERE group_id = 'g'")
        other.commit()
        assert ending.result().producer == producer
    assert catalog.operation_counts()["transactions.end"].retries == 0


def _produce(scene: Scene, topic: Topic, name: str, seed: int) -> dict[tuple[int, int], bool]:
    """Run transactions one after another; return the outcome of each by producer id and epoch."""
    transactions = scene.catalog.transactions
    outcomes: dict[tuple[int, int], bool] = {}
    producer = transactions.initialize(name, _TIMEOUT_MS).producer
    for number in range(_TRANSACTIONS):
        assert _write(scene, topic, producer, 0, name=name) == [None] * _PARTITIONS
        outcomes[producer] = commits = (number + seed) % 3 > 0
        if number % 4 == 3:  # another producer takes over, and the transaction is aborted
            outcomes[producer] = False
            zombie, producer = producer, transactions.initialize(name, _TIMEOUT_MS).producer
            with pytest.raises(TransactionRefusedError):
                transactions.end(name, zombie, commits=True, bumps_epoch=True)
        else:
            producer = transactions.end(name, producer, commits=commits, bumps_epoch=True).producer
    return outcomes


def test_concurrent_transactions_end_completely_and_without_deadlocks(scene: Scene) -> None:
    topic = scene.topic(partitions=_PARTITIONS)

    def run(seed: int) -> dict[tuple[int, int], bool]:
        return _produce(scene, topic, f"t-{seed}", seed)

    with ThreadPoolExecutor(_PRODUCERS) as pool:
        outcomes = {key: each for found in pool.map(run, range(_PRODUCERS)) for key, each in found.items()}
    assert len(outcomes) == _PRODUCERS * _TRANSACTIONS
    for operation, count in scene.catalog.operation_counts().items():
        assert (operation, count.retries) == (operation, 0)
    commits = {each: outcome for each, outcome in outcomes.items() if outcome}
    for key in _keys(topic):
        (state,) = scene.catalog.topics.states([key])
        assert state.last_stable_offset == state.log_end_offset == 2 * len(outcomes)
        extents = scene.extents(topic, key.partition)
        ended = [each.control for each in extents if each.control is not None]
        assert sum(each.commits for each in ended) == len(commits)
        aborted = scene.catalog.transaction_lookups.aborted({key: (0, state.log_end_offset)})[key]
        assert len(aborted) == len(outcomes) - len(commits)
    assert InvariantChecker(scene.catalog).violations() == []


def test_transactions_of_two_agents_end_together_without_deadlocks(scene: Scene) -> None:
    """Their ids and partitions are locked in one order, for any order of the requests."""
    topic, transactions = scene.topic(partitions=_PARTITIONS), scene.catalog.transactions
    names = [f"t-{number}" for number in range(_PRODUCERS)]

    def run(agent: int) -> None:
        own = [f"{name}-{agent}" for name in (names if agent else reversed(names))]
        producers = {name: transactions.initialize(name, _TIMEOUT_MS).producer for name in own}
        for _ in range(_TRANSACTIONS):
            for name, producer in producers.items():
                keys = _keys(topic)
                transactions.add_partitions(name, producer, keys if agent else keys[::-1])
            waiting = dict(producers)
            for _ in range(100):
                ended = transactions.end_all([scene.end_request(*each) for each in waiting.items()])
                # On a busy machine, a transaction may seem to have begun after the request that ends it.
                assert {_refusal_of(each) for each in ended} <= {None, CONCURRENT_TRANSACTIONS}
                refused = [name for name, each in zip(waiting, ended, strict=True) if _refusal_of(each)]
                waiting = {name: producers[name] for name in refused}
                if not waiting:
                    break
            assert not waiting

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    for operation, count in scene.catalog.operation_counts().items():
        assert (operation, count.retries) == (operation, 0)
    (state, *_) = scene.catalog.topics.states(_keys(topic))
    assert state.last_stable_offset == state.log_end_offset == 2 * _PRODUCERS * _TRANSACTIONS


def test_an_end_that_waits_for_locks_ends_the_transaction_before_it(catalog_url: str, scene: Scene) -> None:
    """The server reads its clock before it waits. By that time, the transactions seem to be younger."""
    topic, transactions = scene.topic(partitions=_PARTITIONS), scene.catalog.transactions
    producers = {name: transactions.initialize(name, _TIMEOUT_MS).producer for name in ("a", "b", "c")}
    for name, producer in producers.items():
        transactions.add_partitions(name, producer, _keys(topic))
    time.sleep(0.2)
    requests = [scene.end_request(name, producer) for name, producer in producers.items()]
    url = connection_string(catalog_url, DatabaseLimits())
    counts = scene.catalog.operation_counts
    with psycopg.connect(url) as other, ThreadPoolExecutor(1) as pool:
        other.execute("SELECT FROM transactional_ids WHERE transactional_id = 'a' FOR UPDATE")
        ending = pool.submit(transactions.end_all, requests)
        with psycopg.connect(url, autocommit=True) as observer:
            while not observer.execute(_WAITING).fetchall():
                assert not ending.done()
        time.sleep(0.3)
        other.rollback()
        assert [type(each) for each in ending.result()] == [EndedTransaction] * 3
    assert counts()["transactions.end"].statements == 2 + 1 + 3  # one look at the clock for all


def test_an_end_that_gets_no_lock_has_another_error_than_an_outage(
    catalog_url: str, scene: Scene, clock: Clock, ids: Ids
) -> None:
    """The caller then ends the transactions apart, and only the one that waits for the lock fails."""
    topic, transactions = scene.topic(partitions=_PARTITIONS), scene.catalog.transactions
    producers = {name: transactions.initialize(name, _TIMEOUT_MS).producer for name in "ab"}
    for name, producer in producers.items():
        transactions.add_partitions(name, producer, _keys(topic))
    limits = replace(PATIENT, lock_seconds=1)
    with (
        psycopg.connect(connection_string(catalog_url, PATIENT)) as other,
        open_catalog(catalog_url, clock, ids, limits=limits) as catalog,
    ):
        other.execute("SELECT FROM transactional_ids WHERE transactional_id = 'a' FOR UPDATE")
        requests = [scene.end_request(*each, bumps_epoch=True) for each in producers.items()]
        for some in (requests, requests[:1]):
            with pytest.raises(CatalogTimeoutError):
                catalog.transactions.end_all(some)
        assert [type(each) for each in catalog.transactions.end_all(requests[1:])] == [EndedTransaction]


def test_an_end_that_waits_briefly_tries_a_lock_once(
    catalog_url: str, scene: Scene, clock: Clock, ids: Ids
) -> None:
    """An agent ends slow transactions so. Those that wait for their turn do not wait for every lock limit."""
    transactions = scene.catalog.transactions
    producer = transactions.initialize("a", _TIMEOUT_MS).producer
    transactions.add_partitions("a", producer, _keys(scene.topic(partitions=_PARTITIONS)))
    request = scene.end_request("a", producer, bumps_epoch=True)
    limits = replace(PATIENT, silent_client_seconds=DatabaseLimits().silent_client_seconds)
    with (
        psycopg.connect(connection_string(catalog_url, PATIENT)) as other,
        open_catalog(catalog_url, clock, ids, limits=limits) as catalog,
    ):
        other.execute("SELECT FROM transactional_ids WHERE transactional_id = 'a' FOR UPDATE")
        with pytest.raises(CatalogTimeoutError):
            catalog.transactions.end_all([request], waits_briefly=True)
        assert catalog.operation_counts()["transactions.end"].retries == 0
        other.rollback()
        (ended,) = catalog.transactions.end_all([request], waits_briefly=True)
        assert isinstance(ended, EndedTransaction)


def test_a_commit_and_an_end_lock_the_same_transactions_in_one_order(catalog_url: str, scene: Scene) -> None:
    """The order of producer ids is the reverse of that of names. Another client holds up the end first."""
    topic, transactions = scene.topic(partitions=_PARTITIONS), scene.catalog.transactions
    producers = {name: transactions.initialize(name, _TIMEOUT_MS).producer for name in ("b", "a")}
    assert producers["b"] < producers["a"]
    for name, producer in producers.items():
        assert _write(scene, topic, producer, 0, name=name) == [None] * _PARTITIONS
    runs = [
        run_of(1, producer=(*producer, 1), in_transaction=True, transactional_id=name)
        for name, producer in producers.items()
    ]
    commit = scene.file(dict.fromkeys(_keys(topic), runs))
    requests = [
        scene.end_request(name, producers[name], commits=False, bumps_epoch=True) for name in ("a", "b")
    ]
    url = connection_string(catalog_url, DatabaseLimits())
    with psycopg.connect(url) as other, ThreadPoolExecutor(2) as pool:
        other.execute("SELECT FROM transactional_ids WHERE transactional_id = 'a' FOR UPDATE")
        ending = pool.submit(transactions.end_all, requests)
        with psycopg.connect(url, autocommit=True) as observer:
            while len(observer.execute(_WAITING).fetchall()) < 1:
                assert not ending.done()
            writing = pool.submit(scene.catalog.commits.commit, commit)
            while len(observer.execute(_WAITING).fetchall()) < 2:
                assert not writing.done()
        other.rollback()
        assert all(isinstance(each, EndedTransaction) for each in ending.result())
        writing.result()
    for operation, count in scene.catalog.operation_counts().items():
        assert (operation, count.retries) == (operation, 0)


def test_two_requests_that_end_the_same_transaction_agree(scene: Scene) -> None:
    topic = scene.topic(partitions=_PARTITIONS)
    transactions = scene.catalog.transactions
    producer = transactions.initialize("t", _TIMEOUT_MS).producer
    for number in range(5):
        before = producer
        _write(scene, topic, before, 0)
        with ThreadPoolExecutor(2) as pool:
            calls = [
                pool.submit(transactions.end, "t", before, commits=True, bumps_epoch=True) for _ in range(2)
            ]
        (producer,) = {call.result().producer for call in calls}
        assert sorted(len(call.result().partitions) for call in calls) == [0, _PARTITIONS]
        (state,) = scene.catalog.topics.states(_keys(topic)[:1])
        assert state.log_end_offset == 2 * (number + 1)


def test_broken_connections_neither_lose_nor_repeat_the_end_of_a_transaction(
    scene: Scene, breaking_connections: Callable[[], None]
) -> None:
    topic = retry_while_unavailable(lambda: scene.topic(partitions=_PARTITIONS))
    transactions = scene.catalog.transactions

    def run(seed: int) -> list[bool]:
        name, outcomes = f"t-{seed}", []
        producer = retry_while_unavailable(lambda: transactions.initialize(name, _TIMEOUT_MS)).producer
        for number in range(_TRANSACTIONS):
            run = run_of(1, producer=(*producer, 0), adds_partition=True, transactional_id=name)
            commit = scene.file({key: [run] for key in _keys(topic)})
            retry_while_unavailable(partial(scene.catalog.commits.commit, commit))
            outcomes.append((number + seed) % 2 == 0)
            end = partial(transactions.end, name, producer, commits=outcomes[-1], bumps_epoch=True)
            producer = retry_while_unavailable(end).producer
        return outcomes

    with ThreadPoolExecutor(2) as pool:
        outcomes = [each for found in pool.map(run, range(2)) for each in found]
    breaking_connections()
    for key in _keys(topic):
        (state,) = scene.catalog.topics.states([key])
        assert state.last_stable_offset == state.log_end_offset == 2 * len(outcomes)
        extents = scene.extents(topic, key.partition)
        ends = [each.control.commits for each in extents if each.control is not None]
        assert sorted(ends) == sorted(outcomes)


def _local(scene: Scene, *names: str) -> list[PartitionId]:
    """Create local topics; return their only partitions, which node 1 leads."""
    topics = [scene.topic(name, storage_mode="local") for name in names]
    keys = [PartitionId(topic.topic_id, 0) for topic in topics]
    scene.catalog.local_leaders.claim(dict.fromkeys(keys, 1))
    return keys


def _open_local(scene: Scene, name: str, keys: Sequence[PartitionId]) -> ProducerIdentity:
    """Begin a transaction with a batch in each of these local partitions."""
    producer = scene.catalog.transactions.initialize(name, _TIMEOUT_MS).producer
    scene.catalog.transactions.add_partitions(name, producer, [], keys)
    for key in keys:
        scene.catalog.local_transactions.verify(name, producer, FirstBatch(key, 0, adds_partition=False))
    return producer


def _decisions(scene: Scene) -> dict[tuple[int, PartitionId], bool]:
    """Return the decision of each pending marker of node 1 by producer id and partition."""
    markers = scene.catalog.local_transactions.pending(1)
    return {(each.producer_id, each.partition): each.commits for each in markers}


def _wait_for_locks(observer: psycopg.Connection[tuple[object, ...]], *calls: Future[Any]) -> None:
    """Wait until each of these calls waits for a lock."""
    while len(observer.execute(_WAITING).fetchall()) < len(calls):
        assert not any(call.done() for call in calls)


_LOCK_LOCAL = "SELECT FROM local_transaction_partitions WHERE producer_id = %s AND topic_id = %s FOR UPDATE"


@pytest.mark.parametrize("commits", [True, False])
def test_a_deletion_waits_for_the_end_of_a_transaction_and_keeps_its_decision(
    catalog_url: str, scene: Scene, *, commits: bool
) -> None:
    """The end holds the row of the deleted topic when the deletion begins."""
    gone, kept, held = _local(scene, "gone", "kept", "held")
    transactions = scene.catalog.transactions
    first, second = _open_local(scene, "a", [gone, kept]), _open_local(scene, "b", [held])
    requests = [
        scene.end_request("a", first, commits=commits),
        scene.end_request("b", second, commits=commits),
    ]
    url = connection_string(catalog_url, DatabaseLimits())
    with psycopg.connect(url) as other, ThreadPoolExecutor(2) as pool:
        other.execute(_LOCK_LOCAL, (second.producer_id, held.topic_id))
        with psycopg.connect(url, autocommit=True) as observer:
            ending = pool.submit(transactions.end_all, requests)
            _wait_for_locks(observer, ending)
            deletion = pool.submit(scene.catalog.topics.delete, "gone")
            _wait_for_locks(observer, ending, deletion)
        other.rollback()
        assert [type(each) for each in ending.result()] == [EndedTransaction] * 2
        deletion.result()
    first_id, second_id = first.producer_id, second.producer_id
    assert _decisions(scene) == {(first_id, kept): commits, (second_id, held): commits}
    scene.catalog.topics.deleted.undelete("gone")
    assert _decisions(scene)[first_id, gone] is commits
    assert scene.catalog.transaction_lookups.contradictions() == []


@pytest.mark.parametrize("commits", [True, False])
def test_a_transaction_that_ends_after_the_deletion_of_a_topic_is_aborted_in_it(
    catalog_url: str, scene: Scene, *, commits: bool
) -> None:
    """Both lock the rows in the order of the producers, not of the requests: no deadlock."""
    gone, kept = _local(scene, "gone", "kept")
    transactions = scene.catalog.transactions
    producers = {name: _open_local(scene, name, [gone, kept]) for name in ("a", "b")}
    requests = [scene.end_request(name, producers[name], commits=commits) for name in ("b", "a")]
    url = connection_string(catalog_url, DatabaseLimits())
    with psycopg.connect(url) as other, ThreadPoolExecutor(2) as pool:
        other.execute(_LOCK_LOCAL, (producers["a"].producer_id, gone.topic_id))
        with psycopg.connect(url, autocommit=True) as observer:
            deletion = pool.submit(scene.catalog.topics.delete, "gone")
            _wait_for_locks(observer, deletion)
            ending = pool.submit(transactions.end_all, requests)
            _wait_for_locks(observer, deletion, ending)
        other.rollback()
        deletion.result()
        ended = ending.result()
    assert [each.producer for each in ended if isinstance(each, EndedTransaction)] == [
        producers["b"],
        producers["a"],
    ]
    ids = [each.producer_id for each in producers.values()]
    assert _decisions(scene) == {(each, kept): commits for each in ids}
    scene.catalog.topics.deleted.undelete("gone")
    assert [_decisions(scene)[each, gone] for each in ids] == [False, False]
    assert scene.catalog.transaction_lookups.contradictions() == []
    for operation, count in scene.catalog.operation_counts().items():
        assert (operation, count.retries) == (operation, 0)


def test_a_log_directory_that_is_recorded_meanwhile_is_kept_by_a_deletion(
    catalog_url: str, scene: Scene
) -> None:
    """Its agent may acknowledge records at once, so the undeleted partition must not start elsewhere."""
    (key,) = _local(scene, "gone")
    directory_id = scene.ids.new_uuid()
    url = connection_string(catalog_url, DatabaseLimits())
    with psycopg.connect(url) as agent, ThreadPoolExecutor(1) as pool:
        agent.execute("UPDATE local_leaders SET directory_id = %s", (directory_id,))
        with psycopg.connect(url, autocommit=True) as observer:
            deletion = pool.submit(scene.catalog.topics.delete, "gone")
            _wait_for_locks(observer, deletion)
        agent.commit()
        deletion.result()
    scene.catalog.topics.deleted.undelete("gone")
    (leader,) = scene.catalog.local_leaders.of_topic(key.topic_id).values()
    assert (leader.node_id, leader.directory_id) == (1, directory_id)
