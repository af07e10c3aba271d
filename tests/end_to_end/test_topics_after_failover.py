"""A failover loses the creation of a local topic, a deletion or an undeletion: no acknowledged record is."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Producer

from catalog.model import PartitionId
from catalog.topics import lost
from maintenance.fsck import fsck
from maintenance.garbage_collection import collect_garbage
from maintenance.settings import MaintenanceSettings
from tests.agent.kafka.in_process_clients import consume, produce
from tests.end_to_end.test_failover import Cluster, check_nothing_is_missing, open_cluster, wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from confluent_kafka import KafkaError

    from tests.agent.kafka.brokers import BrokerThread
    from tests.end_to_end.test_failover import Ledger
    from tests.fixtures.postgres_pair import PostgresPair

pytestmark = pytest.mark.integration
_TOPIC, _LOCAL = "ledger", "rock"
_AT_ONCE = MaintenanceSettings(grace_ms=0, topic_delete_delay_ms=0)


@pytest.fixture
def cluster(postgres_pair: PostgresPair, tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster with an empty topic and no agent."""
    with open_cluster(postgres_pair, tmp_path) as cluster:
        yield cluster


def _send(ledger: Ledger, name: str) -> None:
    ledger.send(name, 10)
    assert ledger.producer.flush(120) == 0


def _is_settled(cluster: Cluster) -> bool:
    return not cluster.catalog.lost_commits.is_any_unsettled()


def test_a_topic_whose_deletion_was_lost_is_there_with_all_of_its_records(cluster: Cluster) -> None:
    """Its extents were removed already, and its files are dead: the grace period exceeds the lag."""
    ledger = cluster.ledger(cluster.start_agent(), idempotent=True)
    _send(ledger, "a")

    def lose() -> None:
        _send(ledger, "b")
        cluster.catalog.topics.delete(_TOPIC)
        settings = MaintenanceSettings(topic_delete_delay_ms=0)
        collect_garbage(cluster.catalog, cluster.store, cluster.clock, settings)
        assert cluster.catalog.topics.deleted.list() == []
        assert cluster.catalog.garbage.dead_files(2**62, 10)

    cluster.lose_commits(lose)
    _send(ledger, "c")
    wait_until(lambda: _is_settled(cluster))
    collect_garbage(cluster.catalog, cluster.store, cluster.clock, _AT_ONCE)
    assert len(ledger.acknowledged) == 30
    check_nothing_is_missing(cluster, ledger)
    assert not fsck(cluster.catalog, cluster.store, cluster.clock, deep=True).differences_total


def test_a_topic_whose_undeletion_was_lost_is_undeleted_again(cluster: Cluster) -> None:
    """Agents had acknowledged records to it, which they commit again; garbage collection runs meanwhile."""
    agent = cluster.start_agent()
    ledger = cluster.ledger(agent, idempotent=True)
    _send(ledger, "a")
    topic_id = cluster.catalog.topics.delete(_TOPIC)

    def lose() -> None:
        cluster.catalog.topics.deleted.undelete(_TOPIC)
        _send(ledger, "b")

    cluster.lose_commits(lose)
    collect_garbage(cluster.catalog, cluster.store, cluster.clock, _AT_ONCE)
    _send(ledger, "c")
    wait_until(lambda: _is_settled(cluster))
    collect_garbage(cluster.catalog, cluster.store, cluster.clock, _AT_ONCE)
    assert cluster.catalog.topics.get(_TOPIC).topic_id == topic_id
    assert len(ledger.acknowledged) == 30
    check_nothing_is_missing(cluster, ledger)
    assert not fsck(cluster.catalog, cluster.store, cluster.clock, deep=True).differences_total


def _start_local(cluster: Cluster, directory: Path) -> tuple[BrokerThread, Producer]:
    """Start an agent with a disk and a local topic, to which a producer has written."""
    agent = cluster.start_agent(local_directories=(directory,))
    cluster.catalog.topics.create(_LOCAL, 1, {"storage.mode": "local"})
    producer = _producer(agent)
    _write(producer, b"a")
    return agent, producer


def _producer(agent: BrokerThread) -> Producer:
    return Producer(
        {"bootstrap.servers": agent.address, "enable.idempotence": True, "message.timeout.ms": 300_000}
    )


def _write(producer: Producer, value: bytes) -> None:
    """Write a record, and wait for its acknowledgement."""
    errors: list[KafkaError | None] = []
    producer.produce(_LOCAL, value, partition=0, on_delivery=lambda error, _: errors.append(error))
    assert producer.flush(120) == 0
    assert errors == [None]


def _sync(agent: BrokerThread) -> None:
    """Compare the logs with the topics of the catalog, as the agent does every five seconds."""
    storage = agent.agent.data.local_logs.storage
    assert storage is not None
    storage.sync_topics()


def _has_log(agent: BrokerThread) -> bool:
    _sync(agent)
    storage = agent.agent.data.local_logs.storage
    assert storage is not None
    return bool(storage.manager.logs())


def _values(agent: BrokerThread, count: int) -> list[bytes | None]:
    return [message.value() for message in consume(agent.address, _LOCAL, count)]


def test_a_local_topic_whose_deletion_was_lost_has_its_log_again(cluster: Cluster, tmp_path: Path) -> None:
    agent, producer = _start_local(cluster, tmp_path / "disk")

    def lose() -> None:
        cluster.catalog.topics.delete(_LOCAL)
        assert not _has_log(agent)

    cluster.lose_commits(lose)
    wait_until(lambda: _has_log(agent))
    _write(producer, b"b")
    assert _values(agent, 2) == [b"a", b"b"]


def test_a_local_topic_whose_creation_was_lost_is_created_again(cluster: Cluster, tmp_path: Path) -> None:
    """Only its log has the acknowledged records. The agent leads its partition again."""
    agent = cluster.start_agent(local_directories=(tmp_path / "disk",))
    producer, created = _producer(agent), []

    def lose() -> None:
        settings = {"storage.mode": "local", "retention.ms": "-1"}
        created.append(cluster.catalog.topics.create(_LOCAL, 1, settings))
        _write(producer, b"a")

    cluster.lose_commits(lose)
    wait_until(lambda: bool(cluster.catalog.topics.list()[1:]))
    assert cluster.catalog.topics.get(_LOCAL) == created[0]
    _write(producer, b"b")
    assert _has_log(agent)
    assert _values(agent, 2) == [b"a", b"b"]


def test_a_lost_local_topic_of_two_agents_is_created_once(cluster: Cluster, tmp_path: Path) -> None:
    """Both create it again at the same time, and each leads the partitions of its logs."""
    agents = [cluster.start_agent(local_directories=(tmp_path / name,)) for name in ("one", "two")]
    leaders = {partition: agents[partition % 2].agent.data.local_logs.node_id for partition in range(4)}

    def find_leaders() -> dict[int, int]:
        topic = next((each for each in cluster.catalog.topics.list() if each.name == _LOCAL), None)
        found = {} if topic is None else cluster.catalog.local_leaders.of_topic(topic.topic_id)
        return {partition: leader.node_id for partition, leader in found.items()}

    def lose() -> None:
        topic = cluster.catalog.topics.create(_LOCAL, 4, {"storage.mode": "local"})
        claims = {PartitionId(topic.topic_id, number): node_id for number, node_id in leaders.items()}
        cluster.catalog.local_leaders.claim(claims)
        for partition in leaders:
            produce(agents[0].address, _LOCAL, [(None, b"%d" % partition)], partition=partition)

    cluster.lose_commits(lose)
    wait_until(lambda: find_leaders() == leaders)
    for partition in leaders:
        produce(agents[1].address, _LOCAL, [(None, b"x")], partition=partition)
        messages = consume(agents[1].address, _LOCAL, 2, partition=partition)
        assert [message.value() for message in messages] == [b"%d" % partition, b"x"]


def test_a_local_topic_whose_undeletion_was_lost_is_undeleted_again(cluster: Cluster, tmp_path: Path) -> None:
    """Its leader had opened the log again and acknowledged records, which only the log has."""
    agent, producer = _start_local(cluster, tmp_path / "disk")
    topic_id = cluster.catalog.topics.delete(_LOCAL)
    assert not _has_log(agent)

    def lose() -> None:
        cluster.catalog.topics.deleted.undelete(_LOCAL)
        _write(producer, b"b")

    cluster.lose_commits(lose)
    _write(producer, b"c")
    assert cluster.catalog.topics.get(_LOCAL).topic_id == topic_id
    wait_until(lambda: _has_log(agent))
    collect_garbage(cluster.catalog, cluster.store, cluster.clock, _AT_ONCE)
    _sync(agent)
    assert _values(agent, 3) == [b"a", b"b", b"c"]


def test_a_lost_undeletion_of_a_local_topic_is_repaired_by_a_new_process_under_a_free_name(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader's process ended with the primary. Another topic has the name since."""
    monkeypatch.setattr(lost, "REPORT_PERIOD_MS", 0)  # nothing waits for the agent
    agent, producer = _start_local(cluster, tmp_path / "disk")
    topic_id = cluster.catalog.topics.delete(_LOCAL)
    assert not _has_log(agent)

    def lose() -> None:
        cluster.catalog.topics.deleted.undelete(_LOCAL)
        _write(producer, b"b")
        agent.stop()

    cluster.lose_commits(lose)
    cluster.catalog.incarnations.ensure()
    other = cluster.catalog.topics.create(_LOCAL, 1, {})
    again = cluster.start_agent(local_directories=(tmp_path / "disk",))
    wait_until(lambda: _has_log(again))
    collect_garbage(cluster.catalog, cluster.store, cluster.clock, _AT_ONCE)
    _sync(again)
    name = f"{_LOCAL}-{topic_id.hex[:8]}"
    found = {topic.name: topic.topic_id for topic in cluster.catalog.topics.list()}
    assert found == {_TOPIC: found[_TOPIC], _LOCAL: other.topic_id, name: topic_id}
    assert [message.value() for message in consume(again.address, name, 2)] == [b"a", b"b"]
