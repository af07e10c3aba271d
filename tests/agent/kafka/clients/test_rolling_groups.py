"""Rolling upgrades of groups from one group protocol to the other while they read."""

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
    """A member that commits each record before it polls the next one, so no record may be read twice.

    Everything in `seen` is committed. Tests replace members only when all records are seen, because a commit
    during a join would be rejected.
    """

    def __init__(self, address: str, protocol: str, strategy: str) -> None:
        self.seen: list[tuple[int, int]] = []
        self.assigned = 0
        self.rejected: list[str] = []
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
        """Commit; retry if the member epoch is stale, as KIP-848 requires of clients."""
        until(lambda: self._is_committed(message))

    def _is_committed(self, message: Message) -> bool:
        try:
            self._consumer.commit(message=message, asynchronous=False)
        except KafkaException as error:
            if (name := error.args[0].name()) == "STALE_MEMBER_EPOCH":
                return False  # until the next heartbeat returns the new epoch
            self.rejected.append(name)
        return True

    def leave(self) -> None:
        self._leaving.set()
        self.work.finish()


class Rolling:
    """A group of two members that are replaced one by one while records arrive."""

    def __init__(self, broker: BrokerThread, strategy: str, stack: ExitStack) -> None:
        broker.create_topic(_TOPIC, _PARTITIONS)
        self._address = broker.address
        self._strategy = strategy
        self._stack = stack
        self._producer = Producer({"bootstrap.servers": broker.address, "linger.ms": 0})
        self._sent = 0
        self.all_members: list[Member] = []
        self.members: list[Member] = []

    def add(self, protocol: str) -> None:
        member = Member(self._address, protocol, self._strategy)
        self._stack.callback(member.leave)
        self.all_members.append(member)
        self.members.append(member)

    def replace_first(self, protocol: str) -> None:
        """Replace the oldest member, and check that both members share the partitions."""
        self.members.pop(0).leave()
        self.add(protocol)
        self.check_progress()

    def check_progress(self) -> None:
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
        for each in self.all_members:
            each.work.check()
        return Counter(position for member in self.all_members for position in member.seen)

    def check(self) -> None:
        """Check that every record was read once, and every commit accepted."""
        assert set(self._seen().values()) == {1}
        assert [member.rejected for member in self.all_members] == [[]] * len(self.all_members)
        standalone = Consumer({"bootstrap.servers": self._address, "group.id": _GROUP})
        partitions = [TopicPartition(_TOPIC, number) for number in range(_PARTITIONS)]
        found = [each.offset for each in standalone.committed(partitions, TIMEOUT_SECONDS)]
        standalone.close()
        assert found == [self._sent // _PARTITIONS] * _PARTITIONS

    def group_type(self) -> str:
        admin = AdminClient({"bootstrap.servers": self._address})
        (listed,) = admin.list_consumer_groups(request_timeout=120).result().valid
        return str(listed.type.name)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_is_upgraded_to_the_other_protocol_and_back(
    start_broker: Callable[..., BrokerThread], strategy: str
) -> None:
    """Member by member, without a record read twice or a commit rejected."""
    with ExitStack() as stack:
        rolling = Rolling(start_broker(groups=_QUICK), strategy, stack)
        rolling.add("classic")
        rolling.add("classic")
        rolling.check_progress()
        assert rolling.group_type() == "CLASSIC"
        for protocol, kind in (("consumer", "CONSUMER"), ("classic", "CLASSIC")):
            for _ in range(2):
                rolling.replace_first(protocol)
            assert rolling.group_type() == kind
        rolling.check()
