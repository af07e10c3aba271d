"""A group of each client library that a member of the consumer protocol joins and leaves again.

All but @platformatic/kafka: its subscriptions lack what their version has, for which Kafka does not take its
groups over at all, and it gives up when the offsets that it asks for are fenced by its generation, as they
are in a group of both protocols.
"""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer

from tests.agent.kafka.coordinators import groups_of
from tests.agent.kafka.in_process_clients import produce
from tests.agent.kafka.waiting import until
from tests.real_clients.driving import CLIENTS, LASTING_MS, Driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.real_clients.agents import Agents

pytestmark = pytest.mark.integration
_ROLLED = [name for name in CLIENTS if name != "@platformatic/kafka"]
_PARTITIONS = 2
Place = tuple[int, int]


class Sharing:
    """A topic, a driver that reads it in a group of the classic protocol, and whoever joins that."""

    def __init__(self, agents: Agents, driver: Driver) -> None:
        self._agents = agents
        self._driver = driver
        self.topic = agents.create_topic(_PARTITIONS)
        self.group = agents.new_name()
        self._sent = 0
        self.seen_by_other: set[Place] = set()
        where = {"bootstrap": agents.bootstrap, "topic": self.topic, "group": self.group}
        driver("join", session=LASTING_MS, **where)

    def assigned(self) -> int:
        found: int = self._driver("seen", topic=self.topic)["assigned"]
        return found

    def _seen(self) -> set[Place]:
        records = self._driver("seen", topic=self.topic)["records"]
        return {(partition, offset) for partition, offset, _ in records} | self.seen_by_other

    def goes_on(self, other: Consumer | None = None) -> None:
        """All that is sent is read by one of the two."""
        for partition in range(_PARTITIONS):
            produce(self._agents.bootstrap, self.topic, [(None, b"x")] * 3, partition=partition)
        self._sent += 3

        def is_read() -> bool:
            message = None if other is None else other.poll(0.01)
            if message is not None and message.error() is None:
                self.seen_by_other.add((message.partition() or 0, message.offset() or 0))
            return len(self._seen()) == _PARTITIONS * self._sent

        until(is_read)


@pytest.mark.parametrize("client", _ROLLED)
def test_a_member_of_the_other_protocol_comes_and_goes(
    agents: Agents, client: str, new_driver: Callable[[str], Driver]
) -> None:
    """They share the work meanwhile, and the group is the client's own again when it has gone."""
    sharing = Sharing(agents, new_driver(client))
    until(lambda: sharing.assigned() == _PARTITIONS)
    sharing.goes_on()
    with closing(
        Consumer(
            {
                "bootstrap.servers": agents.bootstrap,
                "group.id": sharing.group,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
            }
        )
    ) as other:
        other.subscribe([sharing.topic])
        while not sharing.seen_by_other:  # on a busy machine it may be out again before anything is sent
            until(lambda: other.poll(0.02) is None and len(other.assignment()) == sharing.assigned() == 1)
            sharing.goes_on(other)
    until(lambda: sharing.assigned() == _PARTITIONS)
    sharing.goes_on()


class Rolling:
    """A topic, and drivers that read it in one group."""

    def __init__(self, agents: Agents) -> None:
        self._agents = agents
        self.topic, self.group = agents.create_topic(_PARTITIONS), agents.new_name()
        self._sent = 0
        self._members: dict[str, Driver] = {}
        self._gone: set[Place] = set()

    def joins(self, name: str, driver: Driver) -> None:
        self._members[name] = driver
        where = {"bootstrap": self._agents.bootstrap, "topic": self.topic, "group": self.group}
        driver("join", session=LASTING_MS, **where)

    def leaves(self, name: str) -> None:
        driver = self._members.pop(name)
        driver("leave")
        self._gone |= self._read_by(driver)

    def _read_by(self, driver: Driver) -> set[Place]:
        records = driver("seen", topic=self.topic)["records"]
        return {(partition, offset) for partition, offset, _ in records}

    def settles(self) -> None:
        """All partitions are shared out, and what is sent then is read."""
        share = _PARTITIONS // len(self._members)
        for each in self._members.values():
            until(lambda each=each: each("seen", topic=self.topic)["assigned"] == share)  # type: ignore[misc]  # a default binds it
        for partition in range(_PARTITIONS):
            produce(self._agents.bootstrap, self.topic, [(None, b"x")] * 3, partition=partition)
        self._sent += 3
        until(lambda: len(self._gone.union(*map(self._read_by, self._members.values()))) == self._all)

    @property
    def _all(self) -> int:
        return _PARTITIONS * self._sent

    def listed(self) -> str:
        """By which protocol the group works."""
        (found,) = (
            each
            for broker in self._agents.running
            for each in broker.run(groups_of(broker).list())
            if each.group_id == self.group
        )
        return str(found.group_type)


@pytest.mark.parametrize("client", [name for name in CLIENTS if name == "Kafka's own"])
def test_a_group_of_kafkas_own_clients_is_rolled_there_and_back(
    agents: Agents, client: str, new_driver: Callable[[str], Driver]
) -> None:
    """Member by member to the consumer protocol, and to the classic one again; every record is read."""
    names = {"classic": client, "consumer": f"{client}, KIP-848", "classic again": client}
    drivers = {name: new_driver(each) for name, each in names.items()}
    rolling = Rolling(agents)
    rolling.joins("classic", drivers["classic"])
    rolling.settles()
    until(lambda: rolling.listed() == "classic")
    rolling.joins("consumer", drivers["consumer"])
    rolling.settles()
    until(lambda: rolling.listed() == "consumer")
    rolling.leaves("classic")
    rolling.settles()
    rolling.joins("classic again", drivers["classic again"])
    rolling.settles()
    until(lambda: rolling.listed() == "consumer")
    rolling.leaves("consumer")
    rolling.settles()
    until(lambda: rolling.listed() == "classic")
