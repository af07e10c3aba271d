"""Two agents, real clients, and a primary whose standby lacks its last commits."""

from __future__ import annotations

import shutil
import threading
import time
from collections import defaultdict
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, Producer, TopicPartition

from catalog.model import PartitionId
from catalog.open import open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from maintenance.fsck import fsck
from maintenance.garbage_collection import collect_garbage
from maintenance.readopt import Outcome, readopt
from maintenance.report import MaintenanceReport
from maintenance.settings import MaintenanceSettings
from maintenance.transaction_timeouts import abort_timed_out
from object_store.binding import verify_binding
from object_store.local.store import LocalStore
from tests.agent.faulty_store import FaultyStore
from tests.agent.kafka.brokers import BrokerThread
from tests.agent.kafka.in_process_clients import log_end_offset
from tests.fixtures.postgres import PATIENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path
    from uuid import UUID

    from confluent_kafka import KafkaError, Message

    from catalog.open import Catalog
    from tests.fixtures.postgres_pair import PostgresPair

_TOPIC, _PARTITIONS = "ledger", 2
_DEADLINE_SECONDS = 120.0
_AT_ONCE = MaintenanceSettings(grace_ms=0)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fail after a generous time."""
    until = time.monotonic() + _DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < until, "the condition did not come true"
        time.sleep(0.02)


@dataclass
class Ledger:
    """A producer, and every acknowledgement that it got."""

    producer: Producer
    sent: int = 0
    acknowledged: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def send(self, name: str, count: int) -> list[bytes]:
        """Send records and return their values; responses arrive during `flush`."""
        values = [f"{name}-{self.sent + number}".encode() for number in range(count)]
        for number, value in enumerate(values):
            self.producer.produce(
                _TOPIC, value, partition=(self.sent + number) % _PARTITIONS, on_delivery=self._delivered
            )
        self.sent += count
        return values

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            value, partition, offset = message.value(), message.partition(), message.offset()
            assert value is not None
            assert partition is not None
            assert offset is not None
            with self.lock:
                self.acknowledged[value] = (partition, offset)


class Cluster:
    """Agents over one pair of servers and one store."""

    def __init__(self, pair: PostgresPair, store: FaultyStore, stack: ExitStack) -> None:
        self.pair = pair
        self.store = store
        self.clock = SystemClock()
        self._ids = SystemIds(self.clock)
        self._stack = stack
        self.agents: list[BrokerThread] = []
        self.catalog = self.open_catalog()
        verify_binding(store, self.catalog.store_binding, self._ids)

    def open_catalog(self) -> Catalog:
        """Return a catalog with separate connections, like that of another process."""
        return self._stack.enter_context(
            closing(open_catalog(self.pair.url, self.clock, self._ids, limits=PATIENT))
        )

    def start_agent(self, **changes: object) -> BrokerThread:
        """Start one agent."""
        settings = {"heartbeat_interval_ms": 200, "flush_interval_ms": 5, **changes}
        agent = BrokerThread(self.open_catalog(), self.store, self.clock, self._ids, settings)
        agent.start()
        self._stack.callback(agent.stop)
        self.agents.append(agent)
        return agent

    def ledger(self, agent: BrokerThread, *, idempotent: bool) -> Ledger:
        """Return a producer that knows only one agent at first."""
        return Ledger(
            Producer(
                {
                    "bootstrap.servers": agent.address,
                    "enable.idempotence": idempotent,
                    "linger.ms": 1,
                    "acks": "all",
                    "message.timeout.ms": 300_000,
                    "retry.backoff.ms": 20,
                }
            )
        )

    def lose_commits(self, commit: Callable[[], None]) -> None:
        """Fail over to the standby, which receives nothing that `commit` commits."""
        self.pair.wait_for_standby()
        self.pair.pause_receiving()
        commit()
        self.pair.primary.kill()
        self.pair.standby.promote()

    def read_log(self) -> dict[int, list[tuple[int, int | None, bytes]]]:
        """Return offset, leader epoch and value of every record, by partition."""
        found: dict[int, list[tuple[int, int | None, bytes]]] = defaultdict(list)
        consumer = Consumer(
            {"bootstrap.servers": self.agents[0].address, "group.id": "audit", "enable.auto.commit": False}
        )
        with closing(consumer):
            partitions = [TopicPartition(_TOPIC, number, OFFSET_BEGINNING) for number in range(_PARTITIONS)]
            ends = {each.partition: log_end_offset(consumer, each) for each in partitions}
            consumer.assign(partitions)

            def is_done() -> bool:
                for message in consumer.consume(500, timeout=0.2):
                    assert message.error() is None, message.error()
                    partition, offset, value = message.partition(), message.offset(), message.value()
                    assert partition is not None
                    assert offset is not None
                    assert value is not None
                    found[partition].append((offset, message.leader_epoch(), value))
                return all(
                    not end or (found[key] and found[key][-1][0] == end - 1) for key, end in ends.items()
                )

            wait_until(is_done)
        return found


@contextmanager
def open_cluster(pair: PostgresPair, directory: Path) -> Iterator[Cluster]:
    """Open a cluster with an empty topic and no agent."""
    with ExitStack() as stack:
        clock = SystemClock()
        store = FaultyStore(LocalStore(directory / "objects", SystemIds(clock)))
        cluster = Cluster(pair, store, stack)
        cluster.catalog.topics.create(_TOPIC, _PARTITIONS, {})
        yield cluster


@pytest.fixture
def cluster(postgres_pair: PostgresPair, tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster with an empty topic and no agent."""
    with open_cluster(postgres_pair, tmp_path) as cluster:
        yield cluster


def check_nothing_is_missing(cluster: Cluster, *ledgers: Ledger) -> dict[int, list[bytes]]:
    """Check that each acknowledged record is in the log; return the values of each partition."""
    log = cluster.read_log()
    values = {partition: [value for *_, value in records] for partition, records in log.items()}
    for ledger in ledgers:
        for value, (partition, _) in ledger.acknowledged.items():
            assert value in values[partition], f"{value!r} was acknowledged"
    for records in log.values():
        epochs = [epoch for _, epoch, _ in records]
        assert epochs == sorted(epochs, key=lambda epoch: -1 if epoch is None else epoch)
    return values


def test_acknowledged_records_survive_a_failover_that_loses_their_commits(cluster: Cluster) -> None:
    """Agents commit the lost files again by themselves; a consumer past the loss notices the truncation."""
    agents = [cluster.start_agent() for _ in range(2)]
    ledgers = [cluster.ledger(agents[0], idempotent=True), cluster.ledger(agents[1], idempotent=False)]
    names = ("idempotent", "plain")

    def send(count: int) -> None:
        for ledger, name in zip(ledgers, names, strict=True):
            ledger.send(name, count)
        for ledger in ledgers:
            assert ledger.producer.flush(_DEADLINE_SECONDS) == 0

    seen: dict[tuple[int, int, int | None], bytes] = {}
    consumed: set[bytes] = set()
    consumer = Consumer(
        {
            "bootstrap.servers": agents[0].address,
            "group.id": "reader",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(_TOPIC, number, OFFSET_BEGINNING) for number in range(_PARTITIONS)])

    def consume_all() -> bool:
        for message in consumer.consume(100, timeout=0.1):
            value, partition, offset = message.value(), message.partition(), message.offset()
            if message.error() is not None or value is None or partition is None or offset is None:
                continue  # the truncation is reported as an error
            key = (partition, offset, message.leader_epoch())
            assert seen.setdefault(key, value) == value, f"two records at {key}"
            consumed.add(value)
        return consumed >= set().union(*(ledger.acknowledged for ledger in ledgers))

    with closing(consumer):
        send(40)
        wait_until(consume_all)

        def lose() -> None:
            send(30)
            wait_until(consume_all)  # the consumer is past the point of the loss

        cluster.lose_commits(lose)
        send(30)
        log = cluster.read_log()
        final = {
            (partition, offset, epoch): value
            for partition, records in log.items()
            for offset, epoch, value in records
        }
        # The consumer goes back to the loss, and reads what the log has now at the offsets that it knew.
        wait_until(lambda: consume_all() and seen.items() >= final.items())
    epoch = cluster.catalog.incarnations.current().epoch
    assert {agent.agent.resources.epoch.current for agent in agents} == {epoch} != {0}
    values = check_nothing_is_missing(cluster, *ledgers)
    for number in range(_PARTITIONS):
        mine = [value for value in values[number] if value.startswith(b"idempotent")]
        assert mine == sorted(set(mine), key=lambda value: int(value.split(b"-")[1])), "in order, once each"
    lost = list(cluster.catalog.lost_commits.list())
    assert lost
    assert {(each.outcome, each.acknowledged) for each in lost} == {("readopted", True)}
    assert all(each.old_offsets and each.new_offsets for each in lost)
    assert not list(cluster.catalog.lost_commits.unsettled_sessions())
    collect_garbage(cluster.catalog, cluster.store, cluster.clock, _AT_ONCE)
    check_nothing_is_missing(cluster, *ledgers)
    assert not fsck(cluster.catalog, cluster.store, cluster.clock, deep=True).differences_total


def test_a_failover_without_loss_ends_clean(cluster: Cluster) -> None:
    """With a synchronous standby nothing is missing, and the deletion of orphans resumes by itself."""
    cluster.pair.set_synchronous()
    agent = cluster.start_agent()
    ledger = cluster.ledger(agent, idempotent=True)
    ledger.send("a", 50)
    assert ledger.producer.flush(_DEADLINE_SECONDS) == 0
    cluster.pair.primary.kill()
    cluster.pair.standby.promote()
    cluster.pair.standby.set("synchronous_standby_names", None)
    ledger.send("a", 50)
    assert ledger.producer.flush(_DEADLINE_SECONDS) == 0
    values = check_nothing_is_missing(cluster, ledger)
    assert sum(map(len, values.values())) == 100
    assert agent.agent.resources.epoch.current == cluster.catalog.incarnations.current().epoch > 0
    assert not list(cluster.catalog.lost_commits.list())
    assert not list(cluster.catalog.lost_commits.unsettled_sessions())


def test_lost_files_wait_for_the_operator_if_readoption_is_manual(cluster: Cluster) -> None:
    """They are kept, the agent reports the problem, and `readopt` commits them in order."""
    agent = cluster.start_agent(automatic_readoption=False)
    ledger = cluster.ledger(agent, idempotent=False)
    ledger.send("before", 10)
    assert ledger.producer.flush(_DEADLINE_SECONDS) == 0

    def lose() -> None:
        ledger.send("lost", 20)
        assert ledger.producer.flush(_DEADLINE_SECONDS) == 0

    cluster.lose_commits(lose)
    ledger.send("after", 10)
    assert ledger.producer.flush(_DEADLINE_SECONDS) == 0
    collect_garbage(cluster.catalog, cluster.store, cluster.clock, _AT_ONCE)
    wait_until(lambda: "lost_commits" in agent.agent.monitoring.health.warnings())
    planned = readopt(cluster.catalog, cluster.store)
    assert {file.outcome for file in planned.files} == {Outcome.WAITING}
    assert sum(file.records for file in planned.files) == 20
    assert all(file.old_offsets and not file.new_offsets for file in planned.files)
    done = readopt(cluster.catalog, cluster.store, apply=True)
    assert {file.outcome for file in done.files} == {Outcome.READOPTED}
    assert done.records == 20
    check_nothing_is_missing(cluster, ledger)
    wait_until(lambda: "lost_commits" not in agent.agent.monitoring.health.warnings())
    assert not readopt(cluster.catalog, cluster.store, apply=True).files


def test_files_of_an_agent_that_died_are_found_by_their_objects(cluster: Cluster) -> None:
    """No agent reports them, so they may never have been acknowledged; they are kept until then."""
    agent = cluster.start_agent()
    ledger = cluster.ledger(agent, idempotent=False)

    def lose() -> None:
        ledger.send("lost", 20)
        assert ledger.producer.flush(_DEADLINE_SECONDS) == 0
        heartbeats = agent.agent.session._heartbeats
        assert heartbeats is not None
        agent.agent._control._loop.call_soon_threadsafe(heartbeats.cancel)  # it dies with the server

    cluster.lose_commits(lose)
    other = cluster.start_agent()
    cluster.agents = [other]
    collect_garbage(cluster.catalog, cluster.store, cluster.clock, _AT_ONCE)
    done = readopt(cluster.catalog, cluster.store, apply=True)
    assert {(file.outcome, file.acknowledged) for file in done.files} == {(Outcome.READOPTED, None)}
    check_nothing_is_missing(cluster, ledger)


def test_a_restored_snapshot_of_the_disks_is_noticed(cluster: Cluster, tmp_path: Path) -> None:
    """The server has the same identity and timeline, but its WAL is shorter than what the agent has seen."""
    agent = cluster.start_agent()
    ledger = cluster.ledger(agent, idempotent=True)
    primary = cluster.pair.primary
    cluster.pair.standby.stop()
    ledger.send("a", 20)
    assert ledger.producer.flush(_DEADLINE_SECONDS) == 0
    primary.stop()
    shutil.copytree(primary.data, tmp_path / "snapshot")
    primary.start()
    ledger.send("a", 20)
    assert ledger.producer.flush(_DEADLINE_SECONDS) == 0
    primary.kill()
    shutil.rmtree(primary.data)
    shutil.copytree(tmp_path / "snapshot", primary.data)
    primary._own(primary.data)
    primary.start()
    ledger.send("a", 20)
    assert ledger.producer.flush(_DEADLINE_SECONDS) == 0
    values = check_nothing_is_missing(cluster, ledger)
    assert sum(map(len, values.values())) == 60
    assert agent.agent.resources.epoch.current == cluster.catalog.incarnations.current().epoch > 0
    assert {each.outcome for each in cluster.catalog.lost_commits.list()} == {"readopted"}


class TransactionalClient:
    """An application with a transactional producer, which it replaces after a fatal error."""

    def __init__(self, bootstrap: str, name: str) -> None:
        self._settings = {"bootstrap.servers": bootstrap, "transactional.id": name, "linger.ms": 0}
        self._name = name
        self._begin()

    def _begin(self) -> None:
        self._producer = Producer(self._settings)
        self._producer.init_transactions(_DEADLINE_SECONDS)

    def write(self, transaction: str, *partitions: int, begins: bool = True) -> None:
        """Write one record to each of the partitions, and wait for the acknowledgements."""
        if begins:
            self._producer.begin_transaction()
        for partition in partitions:
            self._producer.produce(_TOPIC, f"{self._name} {transaction}", partition=partition)
        assert self._producer.flush(_DEADLINE_SECONDS) == 0

    def commit(self) -> None:
        """Commit the transaction."""
        self._producer.commit_transaction(_DEADLINE_SECONDS)

    def abort(self) -> None:
        """Abort the transaction."""
        self._producer.abort_transaction(_DEADLINE_SECONDS)

    def try_to(self, transact: Callable[[], None]) -> bool:
        """Return True if `transact` commits; otherwise abort the transaction, or begin again."""
        try:
            transact()
        except KafkaException as failure:
            if failure.args[0].txn_requires_abort():
                self.abort()
            else:
                self._begin()
            return False
        return True

    def transact(self) -> None:
        """Write to all partitions, and commit."""
        self.write("after", *range(_PARTITIONS))
        self.commit()


def read_committed(cluster: Cluster) -> dict[str, list[int]]:
    """Return the partitions in which readers of committed records find each value."""
    found: dict[str, list[int]] = defaultdict(list)
    consumer = Consumer(
        {
            "bootstrap.servers": cluster.agents[0].address,
            "group.id": "audit",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
        }
    )
    with closing(consumer):
        consumer.assign([TopicPartition(_TOPIC, number, OFFSET_BEGINNING) for number in range(_PARTITIONS)])
        at_end: set[int] = set()

        def is_done() -> bool:
            for message in consumer.consume(500, timeout=0.2):
                partition, value = message.partition(), message.value()
                assert partition is not None
                if (error := message.error()) is not None:
                    assert error.name() == "_PARTITION_EOF", error
                    at_end.add(partition)
                elif value is not None:
                    found[value.decode()].append(partition)
            return len(at_end) == _PARTITIONS

        wait_until(is_done)
    return found


def test_no_transaction_is_shown_in_part_after_a_failover_that_loses_its_end(cluster: Cluster) -> None:
    """A transaction whose acknowledged end is lost is aborted; its producer continues, or begins again."""
    agent = cluster.start_agent()
    outcomes = ("committed", "aborted", "open", "within")
    clients = {name: TransactionalClient(agent.address, name) for name in outcomes}
    everywhere = range(_PARTITIONS)
    for client in clients.values():
        client.write("before", *everywhere)
        client.commit()
    for name in ("committed", "aborted", "open"):
        clients[name].write("lost", 0)

    def lose() -> None:
        for name in ("committed", "aborted", "open"):
            clients[name].write("lost", 1, begins=False)
        clients["committed"].commit()
        clients["aborted"].abort()
        clients["within"].write("lost", *everywhere)
        clients["within"].commit()

    cluster.lose_commits(lose)
    assert not clients["open"].try_to(clients["open"].commit)
    for client in clients.values():
        wait_until(partial(client.try_to, client.transact))
    abort_timed_out(cluster.catalog, MaintenanceReport())
    wait_until(lambda: {each.outcome for each in cluster.catalog.lost_commits.list()} == {"readopted"})
    assert not list(cluster.catalog.lost_commits.unsettled_sessions())
    expected = {f"{name} {transaction}" for name in outcomes for transaction in ("before", "after")}
    found = read_committed(cluster)
    assert {value: sorted(partitions) for value, partitions in found.items()} == {
        value: list(everywhere) for value in expected
    }
    (topic,) = cluster.catalog.topics.list()
    for state in cluster.catalog.topics.states([PartitionId(topic.topic_id, each) for each in everywhere]):
        assert state.last_stable_offset == state.high_watermark
    assert not fsck(cluster.catalog, cluster.store, cluster.clock, deep=True).differences_total


def test_a_topic_that_was_created_in_the_lost_history_keeps_its_records(cluster: Cluster) -> None:
    """The agent that acknowledged them creates the topic again before any agent commits the files."""
    agents = [cluster.start_agent() for _ in range(2)]
    acknowledged: list[bytes | None] = []

    def delivered(error: KafkaError | None, message: Message) -> None:
        assert error is None
        acknowledged.append(message.value())

    producer = Producer({"bootstrap.servers": agents[0].address, "linger.ms": 1})
    created: list[UUID] = []

    def send() -> None:
        for number in range(10):
            producer.produce("late", str(len(acknowledged) + number).encode(), on_delivery=delivered)
        assert producer.flush(_DEADLINE_SECONDS) == 0

    def lose() -> None:
        created.append(cluster.catalog.topics.create("late", 1, {"retention.ms": "86400000"}).topic_id)
        send()

    cluster.lose_commits(lose)
    send()
    topic = cluster.catalog.topics.get("late")
    assert created == [topic.topic_id]
    assert topic.config.explicit == (("retention.ms", "86400000"),)
    values: list[bytes | None] = []
    consumer = Consumer({"bootstrap.servers": agents[1].address, "group.id": "late"})
    with closing(consumer):
        consumer.assign([TopicPartition("late", 0, OFFSET_BEGINNING)])

        def consume() -> bool:
            found = consumer.consume(100, timeout=0.1)
            values.extend(message.value() for message in found if message.error() is None)
            return len(values) >= 20

        wait_until(consume)
    assert values == [str(number).encode() for number in range(20)]
