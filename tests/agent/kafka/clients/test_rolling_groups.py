"""Groups that are rolled from one of Kafka's group protocols to the other while they read."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from tests.agent.kafka.in_process_clients import TIMEOUT_SECONDS
from tests.agent.kafka.waiting import QUICK_GROUPS, until
from tests.agent.kafka.work import Work

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.integration
_TOPIC, _GROUP, _PARTITIONS = "granite", "masons", 4
_QUICK = replace(QUICK_GROUPS, group_consumer_heartbeat_interval_ms=100)


class Member:
    """Commits each record before it takes the next one, so that whatever is read twice was lost once.

    What it has `seen` is committed, so that a test which has seen everything may let members come and go: a
    commit would be refused that comes while they join.
    """

    def __init__(self, address: str, protocol: str, strategy: str) -> None:
        self.seen: list[tuple[int, int]] = []
        self.assigned = 0
        self.refused: list[str] = []
        self._leaving = threading.Event()
        classic = {
            "session.timeout.ms": 60_000,
            "heartbeat.interval.ms": 100,
            "partition.assignment.strategy": strategy,
        }
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": _GROUP,
                "group.protocol": protocol,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "fetch.wait.max.ms": 50,
                **(classic if protocol == "classic" else {}),
            }
        )
        self._consumer.subscribe([_TOPIC])
        self.work = Work(self._work)

    def _work(self) -> None:
        while not self._leaving.is_set():
            message = self._consumer.poll(0.02)
            self.assigned = len(self._consumer.assignment())
            if message is None or message.error() is not None:
                continue
            self._commit(message)
            self.seen.append((message.partition() or 0, message.offset() or 0))
        self._consumer.close()

    def _commit(self, message: Message) -> None:
        """Again where the group's epoch has risen just now, as clients of KIP-848 are told to."""
        until(lambda: self._is_committed(message))

    def _is_committed(self, message: Message) -> bool:
        try:
            self._consumer.commit(message=message, asynchronous=False)
        except KafkaException as error:
            if (name := error.args[0].name()) == "STALE_MEMBER_EPOCH":
                return False  # until the next heartbeat tells of the new one
            self.refused.append(name)
        return True

    def leave(self) -> None:
        self._leaving.set()
        self.work.finish()


class Rolling:
    """A group of two, whose members are replaced one after the other while records come."""

    def __init__(self, broker: BrokerThread, strategy: str, stack: ExitStack) -> None:
        broker.create_topic(_TOPIC, _PARTITIONS)
        self._address = broker.address
        self._strategy = strategy
        self._stack = stack
        self._producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
        self._sent = 0
        self.everyone: list[Member] = []
        self.members: list[Member] = []

    def add(self, protocol: str) -> None:
        member = Member(self._address, protocol, self._strategy)
        self._stack.callback(member.leave)
        self.everyone.append(member)
        self.members.append(member)

    def replace_first(self, protocol: str) -> None:
        """Let one go, and another come; both share the work then."""
        self.members.pop(0).leave()
        self.add(protocol)
        self.goes_on()

    def goes_on(self) -> None:
        until(lambda: self._assigned() == [2, 2])
        for _ in range(20):
            self._producer.produce(_TOPIC, b"x", partition=self._sent % _PARTITIONS)
            self._sent += 1
        assert self._producer.flush(TIMEOUT_SECONDS) == 0
        until(lambda: len(self._seen()) == self._sent)

    def _assigned(self) -> list[int]:
        for each in self.members:
            each.work.check()
        return [each.assigned for each in self.members]

    def _seen(self) -> Counter[tuple[int, int]]:
        for each in self.everyone:
            each.work.check()
        return Counter(place for member in self.everyone for place in member.seen)

    def check(self) -> None:
        """Every record was read once, and every commit was taken."""
        assert set(self._seen().values()) == {1}
        assert [member.refused for member in self.everyone] == [[]] * len(self.everyone)
        loner = Consumer({"bootstrap.servers": self._address, "group.id": _GROUP})
        places = [TopicPartition(_TOPIC, number) for number in range(_PARTITIONS)]
        found = [each.offset for each in loner.committed(places, TIMEOUT_SECONDS)]
        loner.close()
        assert found == [self._sent // _PARTITIONS] * _PARTITIONS

    def group_type(self) -> str:
        admin = AdminClient({"bootstrap.servers": self._address})
        (listed,) = admin.list_consumer_groups(request_timeout=120).result().valid
        return str(listed.type.name)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_is_rolled_to_the_other_protocol_and_back(
    start_broker: Callable[..., BrokerThread], strategy: str
) -> None:
    """Member by member, in both directions, without a record read twice or a commit refused."""
    with ExitStack() as stack:
        rolling = Rolling(start_broker(groups=_QUICK), strategy, stack)
        rolling.add("classic")
        rolling.add("classic")
        rolling.goes_on()
        assert rolling.group_type() == "CLASSIC"
        for protocol, kind in (("consumer", "CONSUMER"), ("classic", "CLASSIC")):
            for _ in range(2):
                rolling.replace_first(protocol)
            assert rolling.group_type() == kind
        rolling.check()
