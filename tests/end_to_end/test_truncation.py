"""Consumers that have read past what a failover lost notice the truncation (KIP-320)."""

from __future__ import annotations

import subprocess
import threading
from collections import defaultdict
from contextlib import ExitStack, closing, contextmanager
from typing import TYPE_CHECKING, NamedTuple

import orjson
import pytest
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, TopicPartition

from core.clock import SystemClock
from core.ids import SystemIds
from object_store.local.store import LocalStore
from tests.agent.faulty_store import FaultyStore
from tests.end_to_end.test_failover import Cluster, wait_until
from tests.fixtures import kafka_tools
from tests.real_clients.client_driver import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.fixtures.postgres_pair import PostgresPair

pytestmark = pytest.mark.integration
_TOPIC, _PARTITIONS = "ledger", 2
_KEPT, _LOST, _LATER = 40, 30, 20
_POLICIES = ("none", "latest")
_DIVERGENCE = _KEPT // _PARTITIONS
_SOURCE = ROOT / "tests" / "real_clients" / "java" / "Truncation.java"


class Seen(NamedTuple):
    """A record, or a truncation with the offset and the epoch where the logs diverge."""

    kind: str
    partition: int
    offset: int
    epoch: int
    value: str


class JavaConsumers:
    """Consumers of Kafka's own client in one process, by their value of auto.offset.reset."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        self.seen: defaultdict[str, list[Seen]] = defaultdict(list)
        self.thread = threading.Thread(target=self._read)
        self.thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            policy, *rest = orjson.loads(line)
            self.seen[policy].append(Seen(*rest))

    def values(self, policy: str, epoch: int = 0) -> set[str]:
        """Return the values of the records that a consumer got, from a leader epoch on."""
        seen = tuple(self.seen[policy])
        return {each.value for each in seen if each.kind == "record" and each.epoch >= epoch}


@contextmanager
def _java_consumers(address: str, *policies: str) -> Iterator[JavaConsumers]:
    command = kafka_tools.command(str(_SOURCE), address, _TOPIC, str(_PARTITIONS), *policies)
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as process:
        consumers = JavaConsumers(process)
        try:
            yield consumers
        finally:
            process.kill()
            consumers.thread.join()


@pytest.fixture
def cluster(postgres_pair: PostgresPair, tmp_path: Path) -> Iterator[Cluster]:
    """Return a cluster with an empty topic and no agent."""
    with ExitStack() as stack:
        store = FaultyStore(LocalStore(tmp_path / "objects", SystemIds(SystemClock())))
        cluster = Cluster(postgres_pair, store, stack)
        cluster.catalog.topics.create(_TOPIC, _PARTITIONS, {})
        yield cluster


class StrictConsumer:
    """A consumer of librdkafka that reports a truncation, because it has no policy to reset its position."""

    def __init__(self, address: str) -> None:
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "strict",
                "auto.offset.reset": "error",
                "enable.auto.commit": False,
            }
        )
        self._consumer.assign(
            [TopicPartition(_TOPIC, number, OFFSET_BEGINNING) for number in range(_PARTITIONS)]
        )
        self.close = self._consumer.close
        self.values: list[str] = []
        self.errors: list[KafkaError] = []
        self.truncated: set[int] = set()

    def poll(self) -> None:
        """Take the messages that have arrived."""
        for message in self._consumer.consume(100, timeout=0.05):
            error, value, partition = message.error(), message.value(), message.partition()
            if error is not None:
                self.errors.append(error)
                if error.code() == KafkaError._AUTO_OFFSET_RESET and "truncat" in str(error):
                    assert partition is not None
                    self.truncated.add(partition)
            elif value is not None:
                self.values.append(value.decode())


def test_consumers_past_a_loss_are_told_where_the_logs_diverge(cluster: Cluster) -> None:
    """Java's consumer raises LogTruncationException, or goes back if it has a policy; librdkafka likewise.

    The log grows past their positions at once, because the lost records are committed again.
    """
    agent = cluster.start_agent()
    ledger = cluster.ledger(agent, idempotent=True)
    sent: set[str] = set()

    def send(name: str, count: int) -> None:
        sent.update(value.decode() for value in ledger.send(name, count))
        assert ledger.producer.flush(120) == 0

    with (
        closing(StrictConsumer(agent.address)) as strict,
        _java_consumers(agent.address, *_POLICIES) as java,
    ):

        def have_read_all() -> bool:
            strict.poll()
            return all(values >= sent for values in (set(strict.values), *map(java.values, _POLICIES)))

        def send_and_read(name: str, count: int) -> None:
            send(name, count)
            wait_until(have_read_all)

        send_and_read("kept", _KEPT)
        cluster.lose_commits(lambda: send_and_read("lost", _LOST))
        known = set(sent)
        send("later", _LATER)
        log = {
            (partition, offset): (epoch, value.decode())
            for partition, records in cluster.read_log().items()
            for offset, epoch, value in records
        }
        new = {value for (_, offset), (_, value) in log.items() if offset >= _DIVERGENCE}

        def have_read_the_new_log() -> bool:
            strict.poll()
            return len(strict.truncated) == _PARTITIONS and all(
                java.values(each, 1) >= new for each in _POLICIES
            )

        try:
            wait_until(have_read_the_new_log)
        except AssertionError:
            missing = {each: sorted(new - java.values(each, 1)) for each in _POLICIES}
            pytest.fail(f"truncated: {strict.truncated}, errors: {strict.errors}, missing: {missing}")
    assert sent - known <= new
    check_java(java, log)
    # librdkafka's consumer stops at the truncation, and reads nothing of the new log.
    assert sorted(strict.values) == sorted(known)


def check_java(java: JavaConsumers, log: dict[tuple[int, int], tuple[int | None, str]]) -> None:
    """Check the truncations, and every record that the failover has not removed."""
    found = {
        policy: {(each.partition, each.offset, each.epoch) for each in seen if each.kind == "truncation"}
        for policy, seen in java.seen.items()
    }
    assert found == {"none": {(number, _DIVERGENCE, 0) for number in range(_PARTITIONS)}, "latest": set()}
    for each in (*java.seen["none"], *java.seen["latest"]):
        if each.kind == "record" and (each.epoch == 1 or each.offset < _DIVERGENCE):
            assert log[each.partition, each.offset] == (each.epoch, each.value)
