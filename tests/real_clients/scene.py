"""Agents that are killed, an idempotent producer, and groups of librdkafka that read what it sends."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # as it exports them

from object_store.open import StoreConfig
from tests.agent.kafka.in_process_clients import PATIENCE_SECONDS
from tests.agent.kafka.waiting import until
from tests.agent.kafka.work import Work
from tests.fixtures.ports import lasting_ports
from tests.real_clients.killed_agents import AgentProcess

if TYPE_CHECKING:
    from collections.abc import Sequence
    from contextlib import ExitStack
    from pathlib import Path

TOPIC = "stratum"
PARTITIONS = 4
_QUICK = {"reconnect.backoff.max.ms": 300, "topic.metadata.refresh.interval.ms": 1_000}
Place = tuple[int, int]


class Sending:
    """An idempotent producer that sends without a pause; `sent` is what it was told of."""

    def __init__(self, bootstrap: str) -> None:
        self.sent: dict[Place, bytes] = {}
        self.failures: list[str] = []
        self._enough = threading.Event()
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, **_QUICK})
        self.work = Work(self._work)

    def _work(self) -> None:
        number = 0
        while not self._enough.is_set():
            self._producer.produce(
                TOPIC, b"%d" % number, partition=number % PARTITIONS, on_delivery=self._told
            )
            number += 1
            self._producer.poll(0.02)
        self._producer.flush(PATIENCE_SECONDS)

    def _told(self, error: object, message: Message) -> None:
        if error is not None:
            self.failures.append(str(error))
        self.sent[message.partition() or 0, message.offset() or 0] = message.value() or b""

    def finish(self) -> None:
        self._enough.set()
        self.work.finish()


class Member:
    """librdkafka, which commits what it has read."""

    def __init__(self, bootstrap: str, group: str, protocol: str) -> None:
        self.seen: dict[Place, bytes] = {}
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
            return  # the next one does, or whoever reads this again

    def leave(self) -> None:
        self._leaving.set()
        self.work.finish()


class Scene:
    """Two agents, others that wait, a producer, and a group of two members for each protocol."""

    def __init__(
        self,
        stack: ExitStack,
        catalog_url: str,
        directory: Path,
        *,
        agents: int,
        protocols: Sequence[str],
        has_disks: bool = False,
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
        self._admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(PATIENCE_SECONDS)
        self.groups: dict[str, list[Member]] = {}
        for protocol in protocols:
            members = [Member(self.bootstrap, protocol, protocol) for _ in range(2)]
            for member in members:
                stack.callback(member.leave)
            self.groups[protocol] = members
        self.sending = Sending(self.bootstrap)
        stack.callback(self.sending.finish)

    def seen(self, group: str) -> dict[Place, bytes]:
        self.sending.work.check()
        for each in self.groups[group]:
            each.work.check()
        return {place: value for each in self.groups[group] for place, value in each.seen.items()}

    def goes_on(self) -> None:
        """Until every group has read records that were not there before."""
        before = len(self.sending.sent)
        for group in self.groups:
            until(lambda group=group: len(self.seen(group)) > before + 10)  # type: ignore[misc]  # bound here

    def committed(self, group: str) -> list[int]:
        consumer = Consumer({"bootstrap.servers": self.bootstrap, "group.id": group})
        try:
            places = consumer.committed(
                [TopicPartition(TOPIC, each) for each in range(PARTITIONS)], PATIENCE_SECONDS
            )
        finally:
            consumer.close()
        return [each.offset for each in places]

    def ends(self) -> list[int]:
        """Where the partitions end; nothing that was sent is missing before."""
        sent = self.sending.sent
        found = [1 + max(offset for part, offset in sent if part == each) for each in range(PARTITIONS)]
        assert len(sent) == sum(found)
        return found
