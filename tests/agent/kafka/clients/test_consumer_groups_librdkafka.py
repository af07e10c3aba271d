"""The consumer group protocol (KIP-848) with librdkafka."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupType,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from agent.groups.consumer.group import ConsumerGroup
from catalog.config.definitions import SESSION_TIMEOUT
from tests.agent.kafka.coordinators import NO_EXPIRY, group_of, groups_of, kill, two_brokers
from tests.agent.kafka.in_process_clients import produce
from tests.agent.kafka.waiting import QUICK_GROUPS, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.agent.kafka.brokers import BrokerThread

_QUICK = replace(
    QUICK_GROUPS,
    group_consumer_heartbeat_interval_ms=100,
    group_consumer_min_session_timeout_ms=1_000,
    topics_refresh_ms=200,
)


@pytest.fixture
def broker(start_broker: Callable[..., BrokerThread]) -> BrokerThread:
    """Start one agent with short delays in consumer groups."""
    return start_broker(groups=_QUICK)


@contextmanager
def consumer(*brokers: BrokerThread, **options: str | bool) -> Iterator[Consumer]:
    """Open a consumer of the group. Underscores in options stand for dots."""
    given = {key.replace("_", "."): value for key, value in options.items()}
    made = Consumer(
        {
            "bootstrap.servers": ",".join(broker.address for broker in brokers),
            "group.id": "masons",
            "group.protocol": "consumer",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            **given,
        }
    )
    try:
        yield made
    finally:
        made.close()


def assigned(*consumers: Consumer) -> list[int]:
    """Poll the consumers, so that they take part in rebalances; return how many partitions each has."""
    for each in consumers:
        each.poll(0.02)
    return sorted(len(each.assignment()) for each in consumers)


def read(member: Consumer, count: int) -> list[Any]:
    messages: list[Any] = []

    def complete() -> bool:
        message = member.poll(0.1)
        if message is not None and message.error() is None:
            messages.append(message)
        return len(messages) >= count

    until(complete)
    return messages


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_partitions_when_members_join_and_leave(broker: BrokerThread, assignor: str) -> None:
    """Partitions move between members; each has exactly one owner."""
    broker.create_topic("granite", 4)
    with ExitStack() as stack:
        members = [stack.enter_context(consumer(broker, group_remote_assignor=assignor)) for _ in range(2)]
        members[0].subscribe(["granite"])
        until(lambda: assigned(members[0]) == [4])
        members[1].subscribe(["granite"])
        until(lambda: assigned(*members) == [2, 2])
        with consumer(broker, group_remote_assignor=assignor) as third:
            third.subscribe(["granite"])
            until(lambda: assigned(*members, third) == [1, 1, 2])
        until(lambda: assigned(*members) == [2, 2])
        members[0].unsubscribe()
        until(lambda: assigned(*members) == [0, 4])


def test_the_coordinator_matches_a_pattern(broker: BrokerThread) -> None:
    """New topics are included. The pattern must match the whole name."""
    for name in ("granite", "pink-granite"):
        broker.create_topic(name, 2)
    with consumer(broker) as member:
        member.subscribe(["^gran.*"])
        until(lambda: assigned(member) == [2])
        broker.create_topic("granola")
        until(lambda: assigned(member) == [3])
        assert {each.topic for each in member.assignment()} == {"granite", "granola"}


def test_a_new_member_continues_at_the_committed_offset(broker: BrokerThread) -> None:
    """Offsets are committed with member epochs, and fetched by the next member."""
    broker.create_topic("granite")
    produce(broker.address, "granite", [(None, str(number).encode()) for number in range(5)])
    with consumer(broker) as member:
        member.subscribe(["granite"])
        assert [message.value() for message in read(member, 5)] == [b"0", b"1", b"2", b"3", b"4"]
        member.commit(offsets=[TopicPartition("granite", 0, 3)], asynchronous=False)
    with consumer(broker) as member:
        member.subscribe(["granite"])
        assert [message.value() for message in read(member, 2)] == [b"3", b"4"]


def test_a_static_member_keeps_its_assignment_while_it_is_away(broker: BrokerThread) -> None:
    """It gets the same partitions when it comes back, and loses them after its session timeout."""
    broker.create_topic("granite", 2)
    with consumer(broker) as dynamic:
        with consumer(broker, group_instance_id="stone") as static:
            static.subscribe(["granite"])
            dynamic.subscribe(["granite"])
            until(lambda: assigned(dynamic, static) == [1, 1])
            before = [each.partition for each in static.assignment()]
        with consumer(broker, group_instance_id="stone") as static:
            static.subscribe(["granite"])
            until(lambda: assigned(dynamic, static) == [1, 1])
            assert [each.partition for each in static.assignment()] == before
        broker.catalog.group_configs.alter("masons", lambda _: {SESSION_TIMEOUT: "1000"})
        group = groups_of(broker).cache._groups["masons"].group
        assert isinstance(group, ConsumerGroup)
        until(lambda: assigned(dynamic) == [1] and group.config.session_timeout_ms == 1000)
        with consumer(broker, group_instance_id="stone") as static:
            static.subscribe(["granite"])
            until(lambda: assigned(dynamic, static) == [1, 1])
        until(lambda: assigned(dynamic) == [2])


def test_an_admin_client_lists_describes_and_deletes_consumer_groups(broker: BrokerThread) -> None:
    """A group with members cannot be deleted."""
    broker.create_topic("granite", 2)
    admin = AdminClient({"bootstrap.servers": broker.address})
    with consumer(broker, client_id="chisel") as member:
        member.subscribe(["granite"])
        until(lambda: assigned(member) == [2])
        (listed,) = admin.list_consumer_groups(request_timeout=120).result().valid
        assert (listed.group_id, listed.type) == ("masons", ConsumerGroupType.CONSUMER)
        described = admin.describe_consumer_groups(["masons"], request_timeout=120)["masons"].result()
        assert described.state is ConsumerGroupState.STABLE
        assert described.type is ConsumerGroupType.CONSUMER
        assert described.partition_assignor == "uniform"
        (seen,) = described.members
        assert seen.client_id == "chisel"
        assert {each.partition for each in seen.assignment.topic_partitions} == {0, 1}
        assert {each.topic for each in seen.target_assignment.topic_partitions} == {"granite"}
        with pytest.raises(KafkaException) as rejected:
            admin.delete_consumer_groups(["masons"], request_timeout=120)["masons"].result()
        assert rejected.value.args[0].name() == "NON_EMPTY_GROUP"
    admin.delete_consumer_groups(["masons"], request_timeout=120)["masons"].result()


def test_an_empty_group_can_change_its_protocol(broker: BrokerThread) -> None:
    """Offsets are kept in both directions."""
    broker.create_topic("granite")
    partition = TopicPartition("granite", 0)
    for number, protocol in enumerate(("classic", "consumer", "classic")):
        with consumer(broker, group_protocol=protocol) as member:
            member.subscribe(["granite"])
            until(lambda member=member: assigned(member) == [1])  # type: ignore[misc]  # a default binds it
            if number:
                assert member.committed([partition], timeout=120)[0].offset == number
            offset = TopicPartition("granite", 0, number + 1)
            member.commit(offsets=[offset], asynchronous=False)


def test_members_continue_with_a_new_coordinator(start_broker: Callable[..., BrokerThread]) -> None:
    """After the old one was killed, members keep their epochs, partitions and committed offsets."""
    changes: dict[str, Any] = {**NO_EXPIRY, "groups": _QUICK}
    brokers = two_brokers(lambda: start_broker(**changes))
    brokers[0].create_topic("granite", 2)
    assignments: list[int] = []
    with consumer(*brokers, group_id=group_of(brokers[0])) as member:
        member.subscribe(["granite"], on_assign=lambda _, parts: assignments.append(len(parts)))
        until(lambda: assigned(member) == [2])

        def committed(offset: int) -> bool:
            try:
                member.commit(offsets=[TopicPartition("granite", 0, offset)], asynchronous=False)
            except KafkaException:
                member.poll(0.05)
                return False
            return True

        until(lambda: committed(41))
        kill(brokers[0])
        until(lambda: committed(42))
        assert member.committed([TopicPartition("granite", 0)], timeout=120)[0].offset == 42
    assert assignments == [2]
