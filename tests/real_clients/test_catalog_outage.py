"""Consumer groups of both protocols keep their assignment over an outage of the catalog.

The outage is shorter than the session timeout, and longer than the time after which agents without heartbeats
count as dead.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from contextlib import ExitStack
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, Producer
from typing_extensions import override

from catalog.open import open_catalog
from core.clock import SystemClock
from core.ids import SystemIds
from object_store.open import StoreConfig
from tests.agent.kafka.waiting import until
from tests.fixtures.ports import lasting_ports
from tests.fixtures.postgres_node import PostgresNode, running_copy
from tests.real_clients.agent_process import AgentProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from confluent_kafka import TopicPartition

pytestmark = pytest.mark.integration
_PARTITIONS = 4
_OUTAGE_SECONDS = 4.0  # agents count as dead after 1.5 s
_TIMES = {"unready_after_ms": 1_000, "probe_interval_ms": 500, "probe_timeout_ms": 400}
_PROTOCOLS: dict[str, dict[str, str | int]] = {
    "classic": {
        "session.timeout.ms": 8_000,
        "heartbeat.interval.ms": 500,
        "partition.assignment.strategy": "cooperative-sticky",
    },
    "consumer": {"group.protocol": "consumer"},
}


class _Member(threading.Thread):
    """A member of a group, which counts what happens to its assignment."""

    def __init__(self, bootstrap: str, topic: str, protocol: str) -> None:
        super().__init__(daemon=True)
        self.changes: Counter[str] = Counter()
        self.values: set[bytes] = set()
        self.partitions: set[int] = set()
        self._stopping = threading.Event()
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": f"{topic}-{protocol}",
                "auto.offset.reset": "earliest",
                "auto.commit.interval.ms": 200,
                **_PROTOCOLS[protocol],
            }
        )
        self._consumer.subscribe(
            [topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._revoked
        )
        self.start()

    def _assigned(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.changes["assigned"] += 1
        self.partitions |= {each.partition for each in partitions}

    def _revoked(self, _: Consumer, partitions: list[TopicPartition]) -> None:
        self.changes["revoked"] += 1
        self.partitions -= {each.partition for each in partitions}

    @override
    def run(self) -> None:
        while not self._stopping.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.values.add(message.value() or b"")
        self._consumer.close()

    def stop(self) -> None:
        self._stopping.set()
        self.join()


@pytest.fixture
def server(
    postgres_template: PostgresNode, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[PostgresNode]:
    with running_copy(postgres_template, tmp_path_factory.mktemp("outage")) as node:
        yield node


def _produce(bootstrap: str, topic: str, values: set[bytes]) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5})
    for number, value in enumerate(sorted(values)):
        producer.produce(topic, value, partition=number % _PARTITIONS)
    assert producer.flush(120) == 0


def test_groups_keep_their_assignment(server: PostgresNode, tmp_path: Path) -> None:
    ports = lasting_ports(2)
    bootstrap = ",".join(f"127.0.0.1:{port}" for port in ports)
    clock = SystemClock()
    with open_catalog(server.url, clock, SystemIds(clock)) as catalog:
        catalog.topics.create("t", _PARTITIONS, {})
    with ExitStack() as stack:
        for port in ports:
            agent = AgentProcess(server.url, StoreConfig(url=str(tmp_path / "store")), times=_TIMES)
            stack.callback(agent.kill)
            agent.serve(port)
        groups = {protocol: [_Member(bootstrap, "t", protocol) for _ in range(2)] for protocol in _PROTOCOLS}
        members = [member for group in groups.values() for member in group]
        for member in members:
            stack.callback(member.stop)
        before = {b"before-%d" % number for number in range(20)}
        _produce(bootstrap, "t", before)
        for group in groups.values():
            until(lambda group=group: [len(each.partitions) for each in group] == [2, 2])  # type: ignore[misc]  # bound here
            until(lambda group=group: set.union(*(each.values for each in group)) == before)  # type: ignore[misc]  # bound here
        changes = [dict(member.changes) for member in members]

        server.stop("immediate")
        time.sleep(_OUTAGE_SECONDS)
        server.start()
        after = {b"after-%d" % number for number in range(20)}
        _produce(bootstrap, "t", after)
        for group in groups.values():
            until(lambda group=group: set.union(*(each.values for each in group)) == before | after)  # type: ignore[misc]  # bound here
        assert [dict(member.changes) for member in members] == changes
