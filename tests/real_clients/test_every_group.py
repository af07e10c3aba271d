"""Groups of every client library: members join, leave and crash, and every record is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Consumer, TopicPartition

from tests.agent.kafka.in_process_clients import TIMEOUT_SECONDS, produce
from tests.agent.kafka.waiting import until
from tests.real_clients.client_driver import CLIENTS, Driver

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.real_clients.agents import Agents

pytestmark = pytest.mark.integration
# Offsets of partition 0 without a record. At first they are the last ones.
_HOLES = (3, 4)
# Short, so that killed members are removed soon.
_SESSION_MS = 2_000


class Group:
    """Members of one group, each in its own process. The topic ends with holes at first."""

    def __init__(self, agents: Agents, client: str, new_driver: Callable[[str], Driver]) -> None:
        self._agents = agents
        self._client = client
        self._new_driver = new_driver
        self.topic = agents.create_topic(2, cleanup_policy="compact")
        self._name = agents.new_name()
        self._sent = 0
        self.send()
        agents.compact(self.topic, keep=lambda record: record.offset not in _HOLES)

    def member(self) -> Driver:
        driver = self._new_driver(self._client)
        driver(
            "join", bootstrap=self._agents.bootstrap, topic=self.topic, group=self._name, session=_SESSION_MS
        )
        return driver

    def assigned(self, *members: Driver) -> list[int]:
        return [each("seen", topic=self.topic)["assigned"] for each in members]

    def records(self, *members: Driver) -> list[list[Any]]:
        """Return each record once: a member whose session expired reads uncommitted records again."""
        seen = [record for each in members for record in each("seen", topic=self.topic)["records"]]
        return [record for number, record in enumerate(seen) if record not in seen[:number]]

    def send(self) -> None:
        for partition in range(2):
            values = [(b"%d" % number, b"%d" % number) for number in range(self._sent, self._sent + 5)]
            produce(self._agents.bootstrap, self.topic, values, partition=partition)
        self._sent += 5

    def is_all(self, records: list[list[Any]]) -> bool:
        """Return True if the records are all of the topic."""
        expected = {(partition, offset) for partition in range(2) for offset in range(self._sent)}
        return {(record[0], record[1]) for record in records} == expected - {(0, hole) for hole in _HOLES}

    def is_all_committed(self, *members: Driver) -> bool:
        """Return True if all offsets are committed. Raise if one of the members has failed."""
        self.assigned(*members)
        consumer = Consumer({"bootstrap.servers": self._agents.bootstrap, "group.id": self._name})
        found = consumer.committed([TopicPartition(self.topic, each) for each in range(2)], TIMEOUT_SECONDS)
        consumer.close()
        return [each.offset for each in found] == [self._sent, self._sent]


@pytest.mark.parametrize("client", CLIENTS)
def test_members_join_leave_and_crash(
    agents: Agents, client: str, new_driver: Callable[[str], Driver]
) -> None:
    """The remaining member reads everything. A new member continues at the committed offsets."""
    group = Group(agents, client, new_driver)
    first, second = group.member(), group.member()
    until(lambda: group.assigned(first, second) == [1, 1])
    group.send()
    until(lambda: group.is_all(group.records(first, second)))
    before = group.records(first)
    first.kill()
    until(lambda: group.assigned(second) == [2])
    group.send()
    until(lambda: group.is_all(before + group.records(second)))
    until(lambda: group.is_all_committed(second))
    second("leave")
    group.send()
    third = group.member()
    until(lambda: len(group.records(third)) >= 10)
    assert sorted(record[:2] for record in group.records(third)) == [
        [partition, offset] for partition in range(2) for offset in range(15, 20)
    ]
    third("leave")
