"""Transactions in topics with storage.mode=local, alone and together with object topics."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, IsolationLevel, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]  # not in its stubs

from tests.agent.kafka.in_process_clients import TIMEOUT_SECONDS
from tests.agent.kafka.waiting import until
from tests.fixtures import kafka_tools

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from catalog.open import Catalog
    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration


def transactional(address: str, name: str = "t") -> Producer:
    """Return an initialized transactional producer."""
    producer = Producer({"bootstrap.servers": address, "transactional.id": name, "linger.ms": 0})
    producer.init_transactions(TIMEOUT_SECONDS)
    return producer


def write(producer: Producer, values: Sequence[bytes], topics: Sequence[str]) -> None:
    """Write values to partition 0 of each topic, in the ongoing transaction."""
    for topic in topics:
        for value in values:
            producer.produce(topic, value, partition=0)
    assert producer.flush(TIMEOUT_SECONDS) == 0


def run(producer: Producer, values: Sequence[bytes], topics: Sequence[str], *, commits: bool) -> None:
    """Run a transaction."""
    producer.begin_transaction()
    write(producer, values, topics)
    if commits:
        producer.commit_transaction(TIMEOUT_SECONDS)
    else:
        producer.abort_transaction(TIMEOUT_SECONDS)


def read(
    address: str, topic: str, count: int, *, isolation: str = "read_committed"
) -> list[bytes | str | None]:
    """Return the first `count` values of partition 0."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "isolation.level": isolation,
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes | str | None] = []
    while len(values) < count:
        message = consumer.poll(TIMEOUT_SECONDS)
        assert message is not None
        assert message.error() is None
        values.append(message.value())
    consumer.close()
    return values


def end_offset(address: str, topic: str, isolation: IsolationLevel) -> int:
    """Return the offset at which a reader of an isolation level ends."""
    admin = AdminClient({"bootstrap.servers": address})
    partition = TopicPartition(topic, 0)
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # its stubs lack the types
    found = admin.list_offsets({partition: latest}, isolation_level=isolation)
    return int(found[partition].result(TIMEOUT_SECONDS).offset)


@pytest.fixture
def broker(start_broker: Callable[..., BrokerThread], tmp_path: Path) -> BrokerThread:
    """Return an agent with a disk, a local topic and an object topic."""
    broker = start_broker(local_directories=(tmp_path / "disk",))
    broker.create_topic("rock", 1, storage_mode="local")
    broker.create_topic("cloud", 1)
    return broker


def test_committed_and_aborted_transactions_in_local_and_object_topics(
    broker: BrokerThread, catalog: Catalog
) -> None:
    producer = transactional(broker.address)
    topics = ["rock", "cloud"]
    for number in range(6):
        values = [b"%d-%d" % (number, each) for each in range(3)]
        run(producer, values, topics, commits=number % 2 == 0)
    expected = [b"%d-%d" % (number, each) for number in (0, 2, 4) for each in range(3)]
    for topic in topics:
        assert read(broker.address, topic, 9) == expected
        assert len(read(broker.address, topic, 18, isolation="read_uncommitted")) == 18
    node_id = broker.agent.data.local_logs.node_id
    until(lambda: not catalog.local_transactions.pending(node_id))
    for topic in topics:
        for isolation in (IsolationLevel.READ_COMMITTED, IsolationLevel.READ_UNCOMMITTED):
            assert end_offset(broker.address, topic, isolation) == 24
    assert catalog.transaction_lookups.contradictions() == []


def test_an_open_transaction_hides_what_follows_in_a_local_topic_until_it_ends(broker: BrokerThread) -> None:
    slow, fast = transactional(broker.address, "slow"), transactional(broker.address, "fast")
    slow.begin_transaction()
    write(slow, [b"slow"], ["rock"])
    run(fast, [b"fast"], ["rock"], commits=True)
    assert end_offset(broker.address, "rock", IsolationLevel.READ_COMMITTED) == 0
    until(lambda: end_offset(broker.address, "rock", IsolationLevel.READ_UNCOMMITTED) == 3)
    slow.commit_transaction(TIMEOUT_SECONDS)
    assert read(broker.address, "rock", 2) == [b"slow", b"fast"]


@pytest.mark.skipif(not kafka_tools.are_installed(), reason="needs Kafka's command line tools")
def test_a_java_producer_commits_and_kafkas_tool_finds_the_markers_in_the_log(
    broker: BrokerThread, catalog: Catalog, tmp_path: Path
) -> None:
    arguments = "--num-records 30 --record-size 10 --throughput 20 --transaction-duration-ms 500"
    kafka_tools.run(
        "org.apache.kafka.tools.ProducerPerformance",
        *("--topic", "rock", "--transactional-id", "java", "--bootstrap-server", broker.address),
        *arguments.split(),
    )
    ended = catalog.transaction_lookups.find(["java"])["java"]
    assert ended.bumps_epoch  # KIP-890
    assert len(read(broker.address, "rock", 30)) == 30
    count = ended.producer_epoch
    assert count > 1
    until(lambda: end_offset(broker.address, "rock", IsolationLevel.READ_COMMITTED) == 30 + count)
    run(transactional(broker.address), [b"aborted"], ["rock"], commits=False)
    until(lambda: end_offset(broker.address, "rock", IsolationLevel.READ_COMMITTED) == 32 + count)
    broker.stop()
    paths = sorted((tmp_path / "disk" / "rock-0").glob("*.*[gx]"))
    text = kafka_tools.run(
        "org.apache.kafka.tools.DumpLogSegments",
        *("--deep-iteration", "--files", ",".join(map(str, paths))),
    )
    markers = re.findall(r"endTxnMarker: (\w+)", text)
    assert markers == ["COMMIT"] * count + ["ABORT"]
    complaints = r"(?im)^.*(mismatch|out of order|corrupt|invalid|isvalid: false|exception).*$"
    assert re.findall(complaints, text) == []
