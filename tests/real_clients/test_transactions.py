"""Transactions of real clients: what readers of both isolation levels see, and where."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import (
    Consumer,
    KafkaException,
    Producer,
    TopicPartition,
)

from tests.fixtures import kafka_tools
from tests.real_clients.client_driver import CLIENTS, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.real_clients.agents import Agents
    from tests.real_clients.client_driver import Driver

pytestmark = pytest.mark.integration
_SECONDS = 30


def _producer(agents: Agents, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": agents.bootstrap, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(_SECONDS)
    return producer


def _read(agents: Agents, topic: str, isolation: str, ends: Sequence[int]) -> list[list[tuple[int, bytes]]]:
    """Return offsets and values by partition, read up to the end of each partition."""
    consumer = Consumer(
        {
            "bootstrap.servers": agents.bootstrap,
            "group.id": agents.new_name(),
            "isolation.level": isolation,
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
        }
    )
    found: list[list[tuple[int, bytes]]] = [[] for _ in ends]
    try:
        consumer.assign([TopicPartition(topic, number, 0) for number in range(len(ends))])
        open_partitions = set(range(len(ends)))
        while open_partitions:
            message = consumer.poll(_SECONDS)
            assert message is not None
            partition, offset = message.partition(), message.offset()
            assert partition is not None
            assert offset is not None
            if message.error() is not None:
                open_partitions.discard(partition)
                assert offset == ends[partition]
            else:
                found[partition].append((offset, message.value() or b""))
    finally:
        consumer.close()
    return found


def test_readers_of_committed_records_see_exactly_these(agents: Agents) -> None:
    topic = agents.create_topic(partitions=3)
    producer = _producer(agents, agents.new_name())
    for number, commits in enumerate((True, False, True)):
        producer.begin_transaction()
        for partition in range(3):
            producer.produce(topic, f"{number}".encode(), partition=partition)
        if commits:
            producer.commit_transaction(_SECONDS)
        else:
            producer.flush(_SECONDS)
            producer.abort_transaction(_SECONDS)
    everything = [(0, b"0"), (2, b"1"), (4, b"2")]
    assert _read(agents, topic, "read_committed", [6] * 3) == [[(0, b"0"), (4, b"2")]] * 3
    assert _read(agents, topic, "read_uncommitted", [6] * 3) == [everything] * 3


@pytest.mark.parametrize("client", ["aiokafka", "kafka-python", "Kafka's own"])
def test_other_clients_commit_abort_and_read(
    agents: Agents, drivers: Callable[[str], Driver], client: str
) -> None:
    if client not in CLIENTS:
        pytest.skip(missing()[client])
    topic, driver = agents.create_topic(), drivers(client)
    arguments = {"bootstrap": agents.bootstrap, "topic": topic}
    driver("transact", **arguments, name=agents.new_name(), outcomes=[True, False, True])
    expected = [(0, b"0"), (4, b"2")]
    found = driver("read_committed", **arguments, count=2)
    assert [(offset, value.encode()) for offset, value in found] == expected
    assert _read(agents, topic, "read_committed", [6]) == [expected]


def test_an_open_transaction_hides_what_follows_until_it_ends(agents: Agents) -> None:
    topic = agents.create_topic()
    slow, other = _producer(agents, agents.new_name()), Producer({"bootstrap.servers": agents.bootstrap})
    slow.begin_transaction()
    slow.produce(topic, b"slow", partition=0)
    slow.flush(_SECONDS)
    other.produce(topic, b"other", partition=0)
    other.flush(_SECONDS)
    assert _read(agents, topic, "read_committed", [0]) == [[]]
    assert _read(agents, topic, "read_uncommitted", [2]) == [[(0, b"slow"), (1, b"other")]]
    slow.abort_transaction(_SECONDS)
    assert _read(agents, topic, "read_committed", [3]) == [[(1, b"other")]]


def test_a_waiting_reader_wakes_up_when_a_transaction_ends(agents: Agents) -> None:
    topic = agents.create_topic()
    consumer = Consumer(
        {
            "bootstrap.servers": agents.bootstrap,
            "group.id": agents.new_name(),
            "fetch.wait.max.ms": 10_000,
            "socket.timeout.ms": 60_000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    assert consumer.poll(0.2) is None
    producer = _producer(agents, agents.new_name())
    producer.begin_transaction()
    producer.produce(topic, b"value", partition=0)
    producer.flush(_SECONDS)
    producer.commit_transaction(_SECONDS)
    message = consumer.poll(_SECONDS)
    assert message is not None
    assert (message.offset(), message.value()) == (0, b"value")
    consumer.close()


def test_a_second_producer_of_an_id_fences_the_first(agents: Agents) -> None:
    topic, name = agents.create_topic(), agents.new_name()
    zombie = _producer(agents, name)
    zombie.begin_transaction()
    zombie.produce(topic, b"zombie", partition=0)
    zombie.flush(_SECONDS)
    producer = _producer(agents, name)
    with pytest.raises(KafkaException) as error:
        zombie.commit_transaction(_SECONDS)
    assert error.value.args[0].fatal()
    producer.begin_transaction()
    producer.produce(topic, b"value", partition=0)
    producer.commit_transaction(_SECONDS)
    assert _read(agents, topic, "read_committed", [4]) == [[(2, b"value")]]


@pytest.mark.skipif(not kafka_tools.are_installed(), reason="needs Kafka's command line tools")
def test_a_java_producer_gets_a_new_epoch_with_each_transaction(agents: Agents) -> None:
    topic, name = agents.create_topic(), agents.new_name()
    arguments = "--num-records 30 --record-size 10 --throughput 20 --transaction-duration-ms 500"
    kafka_tools.run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", topic, "--transactional-id", name, "--bootstrap-server", agents.bootstrap),
        *arguments.split(),
    )
    state = agents.catalog.transaction_lookups.find([name])[name]
    assert state.bumps_epoch
    assert state.producer_epoch > 1
    end = 30 + state.producer_epoch
    (found,) = _read(agents, topic, "read_committed", [end])
    assert len(found) == 30


def test_offsets_are_committed_with_the_records(agents: Agents) -> None:
    source, sink, group = agents.create_topic(), agents.create_topic(), agents.new_name()
    plain = Producer({"bootstrap.servers": agents.bootstrap})
    for number in range(4):
        plain.produce(source, f"{number}".encode(), partition=0)
    plain.flush(_SECONDS)
    consumer = Consumer(
        {
            "bootstrap.servers": agents.bootstrap,
            "group.id": group,
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.subscribe([source])
    producer = _producer(agents, agents.new_name())
    for commits in (True, False):
        messages = consumer.consume(2, _SECONDS)
        producer.begin_transaction()
        for message in messages:
            producer.produce(sink, message.value(), partition=0)
        positions = consumer.position(consumer.assignment())
        metadata = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(positions, metadata, _SECONDS)
        if commits:
            producer.commit_transaction(_SECONDS)
        else:
            producer.flush(_SECONDS)  # an abort drops the records that were not sent yet
            producer.abort_transaction(_SECONDS)
    (committed,) = consumer.committed([TopicPartition(source, 0)], _SECONDS)
    assert committed.offset == 2
    consumer.close()
    assert [value for _, value in _read(agents, sink, "read_committed", [6])[0]] == [b"0", b"1"]
