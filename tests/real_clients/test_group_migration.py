"""Groups of each client library that migrate to the consumer protocol and back.

@platformatic/kafka is left out. Its subscriptions lack fields of their version, so Kafka does not convert its
groups at all. It also fails when an OffsetFetch is fenced by its generation, as in a group with members of
both protocols.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

from tests.agent.kafka.coordinators import groups_of
from tests.agent.kafka.in_process_clients import produce
from tests.agent.kafka.waiting import until
from tests.real_clients.client_driver import CLIENTS, LONG_SESSION_MS, Driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.real_clients.agents import Agents

pytestmark = pytest.mark.integration
_MIGRATED = [name for name in CLIENTS if name != "@platformatic/kafka"]
_PARTITIONS = 2
Position = tuple[int, int]
"""Partition and offset."""


class MixedGroup:
    """A topic that a classic member and a member of the consumer protocol read in one group."""

    def __init__(self, agents: Agents, driver: Driver) -> None:
        self._agents = agents
        self._driver = driver
        self.topic = agents.create_topic(_PARTITIONS)
        self.group_id = agents.new_name()
        self._sent = 0
        self.seen_by_other: set[Position] = set()
        where = {"bootstrap": agents.bootstrap, "topic": self.topic, "group": self.group_id}
        driver("join", session=LONG_SESSION_MS, **where)

    def assigned(self) -> int:
        found: int = self._driver("seen", topic=self.topic)["assigned"]
        return found

    def _seen(self) -> set[Position]:
        records = self._driver("seen", topic=self.topic)["records"]
        return {(partition, offset) for partition, offset, _ in records} | self.seen_by_other

    def send_and_read(self, other: Consumer | None = None) -> None:
        """Send records, and wait until one of the members has read each."""
        for partition in range(_PARTITIONS):
            produce(self._agents.bootstrap, self.topic, [(None, b"x")] * 3, partition=partition)
        self._sent += 3

        def is_read() -> bool:
            message = None if other is None else other.poll(0.01)
            if message is not None and message.error() is None:
                self.seen_by_other.add((message.partition() or 0, message.offset() or 0))
            return len(self._seen()) == _PARTITIONS * self._sent

        until(is_read)


@pytest.mark.parametrize("client", _MIGRATED)
def test_a_member_of_the_consumer_protocol_joins_and_leaves(
    agents: Agents, client: str, new_driver: Callable[[str], Driver]
) -> None:
    """The members share the partitions. When the other one has left, the group is classic again."""
    group = MixedGroup(agents, new_driver(client))
    until(lambda: group.assigned() == _PARTITIONS)
    group.send_and_read()
    with closing(
        Consumer(
            {
                "bootstrap.servers": agents.bootstrap,
                "group.id": group.group_id,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
            }
        )
    ) as other:
        other.subscribe([group.topic])
        while not group.seen_by_other:  # a busy machine may end its session before records are sent
            until(lambda: other.poll(0.02) is None and len(other.assignment()) == group.assigned() == 1)
            group.send_and_read(other)
    until(lambda: group.assigned() == _PARTITIONS)
    group.send_and_read()


class MigratingGroup:
    """A topic, and the drivers that read it in one group."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self.topic, self.group_id = agents.create_topic(_PARTITIONS), agents.new_name()
        self._sent = 0
        self._members: dict[str, Driver] = {}
        self._read_by_former: set[Position] = set()

    def add(self, name: str, driver: Driver) -> None:
        self._members[name] = driver
        where = {"bootstrap": self._agents.bootstrap, "topic": self.topic, "group": self.group_id}
        driver("join", session=LONG_SESSION_MS, **where)

    def remove(self, name: str) -> None:
        driver = self._members.pop(name)
        driver("leave")
        self._read_by_former |= self._read_by(driver)

    def _read_by(self, driver: Driver) -> set[Position]:
        records = driver("seen", topic=self.topic)["records"]
        return {(partition, offset) for partition, offset, _ in records}

    def wait_until_balanced(self) -> None:
        """Wait for an equal assignment, send records, and wait until they are read."""
        share = _PARTITIONS // len(self._members)
        for each in self._members.values():
            until(lambda each=each: each("seen", topic=self.topic)["assigned"] == share)  # type: ignore[misc]  # a default binds it
        for partition in range(_PARTITIONS):
            produce(self._agents.bootstrap, self.topic, [(None, b"x")] * 3, partition=partition)
        self._sent += 3
        until(
            lambda: len(self._read_by_former.union(*map(self._read_by, self._members.values()))) == self._all
        )

    @property
    def _all(self) -> int:
        return _PARTITIONS * self._sent

    def group_type(self) -> str:
        """Return the type that ListGroups reports."""
        (found,) = (
            each
            for broker in self._agents.running
            for each in broker.run(groups_of(broker).list())
            if each.group_id == self.group_id
        )
        return str(found.group_type)


@pytest.mark.parametrize("client", [name for name in CLIENTS if name == "Kafka's own"])
def test_a_group_of_kafkas_own_client_migrates_and_returns(
    agents: Agents, client: str, new_driver: Callable[[str], Driver]
) -> None:
    """Members are replaced one by one, to the consumer protocol and back. Every record is read."""
    names = {"classic": client, "consumer": f"{client}, KIP-848", "classic again": client}
    drivers = {name: new_driver(each) for name, each in names.items()}
    group = MigratingGroup(agents)
    group.add("classic", drivers["classic"])
    group.wait_until_balanced()
    until(lambda: group.group_type() == "classic")
    group.add("consumer", drivers["consumer"])
    group.wait_until_balanced()
    until(lambda: group.group_type() == "consumer")
    group.remove("classic")
    group.wait_until_balanced()
    group.add("classic again", drivers["classic again"])
    group.wait_until_balanced()
    until(lambda: group.group_type() == "consumer")
    group.remove("consumer")
    group.wait_until_balanced()
    until(lambda: group.group_type() == "classic")
