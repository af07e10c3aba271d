"""Agents that are killed while an idempotent producer sends and groups of librdkafka read."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # as it exports them

from object_store.open import StoreConfig
from tests.agent.kafka.in_process_clients import TIMEOUT_SECONDS
from tests.agent.kafka.waiting import until
from tests.agent.kafka.work import Work
from tests.fixtures.ports import lasting_ports
from tests.real_clients.agent_process import AgentProcess

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack
    from pathlib import Path

TOPIC = "stratum"
PARTITIONS = 4
_QUICK = {"reconnect.backoff.max.ms": 300, "topic.metadata.refresh.interval.ms": 1_000}
Position = tuple[int, int]
"""Partition and offset."""


class ContinuousProducer:
    """An idempotent producer that sends all the time. `sent` has the acknowledged records.

    It pauses for `pause` seconds after each record.
    """

    def __init__(self, bootstrap: str, pause: float) -> None:
        self._pause = pause
        self.sent: dict[Position, bytes] = {}
        self.failures: list[str] = []
        self._stop = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **_QUICK})
        self.work = Work(self._work)

    def _work(self) -> None:
        number = 0
        while not self._stop.is_set():
            self._producer.produce(
                TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._delivered
            )
            number += 1
            self._producer.poll(0)
            self._stop.wait(self._pause)
        self._producer.flush(TIMEOUT_SECONDS)
        self._producer.close()

    def _delivered(self, error: object, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
        self.sent[message.partition() or 0, message.offset() or 0] = message.value() or b""

    def finish(self) -> None:
        self._stop.set()
        self.work.finish()


class Member:
    """A consumer of librdkafka that commits the records it has read."""

    def __init__(self, bootstrap: str, group: str, protocol: str) -> None:
        self.seen: dict[Position, bytes] = {}
        self._leaving = threading.Event()
        classic = {"session.timeout.ms": 3_000, "heartbeat.interval.ms": 200}
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "group.protocol": protocol,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                **_QUICK,
                **(classic if protocol == "classic" else {}),
            }
        )
        self._consumer.subscribe([TOPIC])
        self.work = Work(self._work)

    def _work(self) -> None:
        while not self._leaving.is_set():
            messages = [each for each in self._consumer.consume(100, 0.1) if each.error() is None]
            for each in messages:
                self.seen[each.partition() or 0, each.offset() or 0] = each.value() or b""
            if messages:
                self._commit()
        self._consumer.close()

    def _commit(self) -> None:
        try:
            self._consumer.commit(asynchronous=False)
        except KafkaException:
            return  # a later commit covers these records, or a member reads them again

    def leave(self) -> None:
        self._leaving.set()
        self.work.finish()


class FailoverScenario:
    """Two running agents, spare agents, a producer, and a group of two members for each protocol.

    `pause` is that of the producer.
    """

    def __init__(
        self,
        stack: ExitStack,
        catalog_url: str,
        directory: Path,
        *,
        agents: int,
        protocols: Sequence[str],
        has_disks: bool = False,
        pause: float = 0.02,
    ) -> None:
        store = StoreConfig(url=str(directory / "objects"))
        disks = directory / "local-logs" if has_disks else None
        self.agents = [AgentProcess(catalog_url, store, disks) for _ in range(agents)]
        for agent in self.agents:
            stack.callback(agent.kill)
        self.ports = lasting_ports(2)
        for agent, port in zip(self.agents, self.ports, strict=False):
            agent.serve(port)
        self.bootstrap = ",".join(f"127.0.0.1:{port}" for port in self.ports)
        self._admin = AdminClient({"bootstrap.servers": self.bootstrap})
        self._admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(TIMEOUT_SECONDS)
        self.groups: dict[str, list[Member]] = {}
        for protocol in protocols:
            members = [Member(self.bootstrap, protocol, protocol) for _ in range(2)]
            for member in members:
                stack.callback(member.leave)
            self.groups[protocol] = members
        self.producer = ContinuousProducer(self.bootstrap, pause)
        stack.callback(self.producer.finish)

    def seen(self, group: str) -> dict[Position, bytes]:
        self.producer.work.check()
        for each in self.groups[group]:
            each.work.check()
        return {position: value for each in self.groups[group] for position, value in each.seen.items()}

    def wait_for_progress(self) -> None:
        """Wait until every group has read new records."""
        before = len(self.producer.sent)
        for group in self.groups:
            until(lambda group=group: len(self.seen(group)) > before + 10)  # type: ignore[misc]  # bound here

    def committed(self, group: str) -> list[int]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        try:
            offsets = consumer.committed(
                [TopicPartition(TOPIC, each) for each in range(PARTITIONS)], TIMEOUT_SECONDS
            )
        finally:
            consumer.close()
        return [each.offset for each in offsets]

    def ends(self) -> list[int]:
        """Return the end offset of each partition. There must be no gap before it."""
        sent = self.producer.sent
        found = [1 + max(offset for part, offset in sent if part == each) for each in range(PARTITIONS)]
        assert len(sent) == sum(found)
        return found
