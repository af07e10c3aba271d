"""Groups with kafka-python and aiokafka: shared partitions, commits, members that vanish."""

from __future__ import annotations

import asyncio
import sys
import threading
import warnings
from typing import TYPE_CHECKING

import aiokafka  # type: ignore[import-untyped]  # it has no types
import pytest

from tests.agent.kafka.in_process_clients import produce
from tests.agent.kafka.waiting import QUICK_GROUPS, until
from tests.agent.kafka.work import Work

with warnings.catch_warnings():
    # It reads its schemas with a function that is deprecated in Python 3.11.
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka  # type: ignore[import-untyped]  # it has no types

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.kafka.brokers import BrokerThread

pytestmark = pytest.mark.filterwarnings("ignore:read_text is deprecated:DeprecationWarning")
_COUNT = 40


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture
def broker(start_broker: Callable[..., BrokerThread]) -> BrokerThread:
    """Start one agent with a topic of two partitions, and records 0 to 39 in each."""
    started = start_broker(groups=QUICK_GROUPS)
    started.create_topic("granite", 2)
    for partition in range(2):
        records = [(None, str(number).encode()) for number in range(_COUNT)]
        produce(started.address, "granite", records, partition=partition)
    return started


class KafkaPython:
    """A member that polls and commits in its own thread, as kafka-python requires.

    If one thread polled two members alternately, they might never share partitions: a poll that ends during a
    join starts another join, and the leader's join starts a rebalance.
    """

    def __init__(self, broker: BrokerThread, received: list[tuple[int, bytes]]) -> None:
        self._consumer = kafka.KafkaConsumer(
            "granite",
            bootstrap_servers=broker.address,
            group_id="masons",
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=60_000,
            heartbeat_interval_ms=200,
            max_poll_records=5,
        )
        self._received = received
        self._leaving = threading.Event()
        self._assigned = 0
        self._work = Work(self._poll_and_commit)

    def _poll_and_commit(self) -> None:
        is_committed = False
        while not (is_committed and self._leaving.is_set()):
            polled = self._consumer.poll(timeout_ms=1000)
            self._received += [
                (record.partition, record.value) for records in polled.values() for record in records
            ]
            is_committed = self._is_committed()
            self._assigned = len(self._consumer.assignment())
        self._consumer.close()

    def _is_committed(self) -> bool:
        """Commit; return False during a rebalance. A later commit succeeds, or another member reads again."""
        try:
            self._consumer.commit()
        except (
            kafka.errors.CommitFailedError,
            kafka.errors.RebalanceInProgressError,
            kafka.errors.RetriableError,
        ):
            return False
        return True

    @property
    def assigned(self) -> int:
        self._work.check()
        return self._assigned

    def leave(self) -> None:
        """Leave the group once everything polled is committed."""
        self._leaving.set()
        self._work.finish()


def test_kafka_python_shares_partitions_and_continues_at_the_committed_offset(broker: BrokerThread) -> None:
    received: list[tuple[int, bytes]] = []
    members = [KafkaPython(broker, received) for _ in range(2)]
    try:
        until(lambda: [member.assigned for member in members] == [1, 1])
        members[1].leave()
        until(lambda: members[0].assigned == 2)
        members[0].leave()
        before = len(received)
        produce(broker.address, "granite", [(None, b"late")], partition=1)
        members.append(KafkaPython(broker, received))
        until(lambda: members[-1].assigned == 2 and len(set(received)) == 2 * _COUNT + 1)
        assert received[before:].count((1, b"late")) == 1
        assert len(received) - before == len(set(received)) - len(
            set(received[:before])
        )  # no record is read twice
    finally:
        for member in members:
            member.leave()


# A librdkafka consumer that reads, commits, and then waits to be killed. If it was silent for longer than its
# short session timeout, it discards what it has read, and starts again.
_KILLED_CONSUMER = """
import sys
from confluent_kafka import Consumer, KafkaException
consumer = Consumer({
    "bootstrap.servers": sys.argv[1], "group.id": "masons", "auto.offset.reset": "earliest",
    "enable.auto.commit": False, "session.timeout.ms": 1000, "heartbeat.interval.ms": 100,
})
read = []
is_committed = False
consumer.subscribe(["granite"], on_assign=lambda *_: read.clear())
while not is_committed:
    message = consumer.poll(1)
    if message is not None and message.error() is None:
        read.append(message)
    if len(read) >= 30:
        try:
            consumer.commit(asynchronous=False)
            is_committed = True
        except KafkaException as failure:
            print(failure, file=sys.stderr)
for message in read:
    print(message.partition(), message.value().decode())
print("committed", flush=True)
while True:
    consumer.poll(1)
"""


@pytest.mark.anyio
async def test_aiokafka_continues_at_the_committed_offset_of_a_killed_member(broker: BrokerThread) -> None:
    killed = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _KILLED_CONSUMER, broker.address, stdout=asyncio.subprocess.PIPE
    )
    assert killed.stdout is not None
    seen: list[tuple[int, bytes]] = []
    try:
        async with asyncio.timeout(240):
            while (line := await killed.stdout.readline()) != b"committed\n":
                assert line, "the consumer ended too early"
                partition, value = line.split()
                seen.append((int(partition), value))
    finally:
        killed.kill()
        await killed.wait()
    consumer = aiokafka.AIOKafkaConsumer(
        "granite",
        bootstrap_servers=broker.address,
        group_id="masons",
        auto_offset_reset="earliest",
        enable_auto_commit=False,
        session_timeout_ms=60_000,
        heartbeat_interval_ms=100,
    )
    async with consumer, asyncio.timeout(240):
        while len(seen) < 2 * _COUNT:
            record = await consumer.getone()
            seen.append((record.partition, record.value))
    assert len(set(seen)) == 2 * _COUNT
