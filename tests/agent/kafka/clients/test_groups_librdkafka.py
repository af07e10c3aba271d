"""Classic groups with librdkafka."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import pytest
from confluent_kafka import (
    Consumer,
    ConsumerGroupState,
    ConsumerGroupTopicPartitions,
    KafkaException,
    TopicPartition,
)
from confluent_kafka.admin import AdminClient

from tests.agent.kafka.waiting import QUICK_GROUPS, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.agent.kafka.brokers import BrokerThread


@pytest.fixture
def broker(start_broker: Callable[..., BrokerThread]) -> BrokerThread:
    """Start one agent with a short initial rebalance delay."""
    return start_broker(groups=QUICK_GROUPS)


_OPTIONS = {
    "group.id": "masons",
    "session.timeout.ms": 60_000,
    "heartbeat.interval.ms": 200,
    "enable.auto.commit": False,
    "auto.offset.reset": "earliest",
}


@contextmanager
def consumer(*brokers: BrokerThread, **options: str) -> Iterator[Consumer]:
    """Open a consumer of the group. Underscores in options stand for dots."""
    given = {key.replace("_", "."): value for key, value in options.items()}
    made = Consumer(
        {**_OPTIONS, "bootstrap.servers": ",".join(broker.address for broker in brokers), **given}
    )
    try:
        yield made
    finally:
        made.close()


def assigned(*consumers: Consumer) -> list[int]:
    """Poll the consumers, so that they take part in rebalances; return how many partitions each has."""
    for each in consumers:
        each.poll(0.05)
    return sorted(len(each.assignment()) for each in consumers)


def partition_of(topic: str, partition: int, offset: int = -1001) -> TopicPartition:
    return TopicPartition(topic, partition, offset)


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_members_share_partitions_when_members_join_and_leave(broker: BrokerThread, strategy: str) -> None:
    broker.create_topic("granite", 4)
    with ExitStack() as stack:
        members = [
            stack.enter_context(consumer(broker, partition_assignment_strategy=strategy)) for _ in range(2)
        ]
        members[0].subscribe(["granite"])
        until(lambda: assigned(members[0]) == [4])
        members[1].subscribe(["granite"])
        until(lambda: assigned(*members) == [2, 2])
        with consumer(broker, partition_assignment_strategy=strategy) as third:
            third.subscribe(["granite"])
            until(lambda: assigned(*members, third) == [1, 1, 2])
        until(lambda: assigned(*members) == [2, 2])
        members[0].unsubscribe()
        until(lambda: assigned(*members) == [0, 4])


def test_a_member_that_vanishes_loses_its_partitions(start_broker: Callable[..., BrokerThread]) -> None:
    """A client that does not leave the group loses its partitions after its session timeout."""
    broker = start_broker(groups=QUICK_GROUPS)
    broker.create_topic("granite", 2)
    short = {"group_instance_id": "vanishing", "session_timeout_ms": "2000"}
    with consumer(broker) as survivor, consumer(broker, **short) as vanishing:
        vanishing.subscribe(["granite"])
        until(lambda: assigned(vanishing) == [2])
        survivor.subscribe(["granite"])
        until(lambda: assigned(survivor, vanishing) == [1, 1])
        vanishing.close()  # a static member does not leave the group when it closes
        until(lambda: assigned(survivor) == [2])


def test_committed_offsets_are_fetched_by_the_next_member(broker: BrokerThread) -> None:
    broker.create_topic("granite", 3)
    with consumer(broker) as member:
        member.subscribe(["granite"])
        until(lambda: assigned(member) == [3])
        offset = TopicPartition("granite", 1, 7, metadata="chisel — 7")
        (committed,) = member.commit(offsets=[offset], asynchronous=False)
        assert committed.error is None
        member.commit(offsets=[partition_of("granite", 2, 1 << 40)], asynchronous=False)
    with consumer(broker) as member:
        offsets = member.committed([partition_of("granite", number) for number in range(3)], timeout=120)
        assert [each.offset for each in offsets] == [-1001, 7, 1 << 40]
        assert offsets[1].metadata == "chisel — 7"


def test_a_consumer_without_membership_commits_only_while_the_group_is_empty(broker: BrokerThread) -> None:
    broker.create_topic("granite")
    with consumer(broker) as standalone, consumer(broker) as member:
        standalone.assign([partition_of("granite", 0)])
        standalone.commit(offsets=[partition_of("granite", 0, 5)], asynchronous=False)
        member.subscribe(["granite"])
        until(lambda: assigned(member) == [1])
        with pytest.raises(KafkaException) as rejected:
            standalone.commit(offsets=[partition_of("granite", 0, 6)], asynchronous=False)
        assert rejected.value.args[0].name() == "UNKNOWN_MEMBER_ID"
        assert member.committed([partition_of("granite", 0)], timeout=120)[0].offset == 5


def test_offsets_of_unknown_partitions_are_rejected(broker: BrokerThread) -> None:
    broker.create_topic("granite")
    with consumer(broker) as standalone:
        with pytest.raises(KafkaException) as rejected:
            standalone.commit(offsets=[partition_of("granite", 1, 5)], asynchronous=False)
        assert rejected.value.args[0].name() == "UNKNOWN_TOPIC_OR_PART"


def test_offsets_are_deleted_with_their_topic(broker: BrokerThread) -> None:
    broker.create_topic("granite")
    with consumer(broker, group_id="others") as standalone:
        standalone.commit(offsets=[partition_of("granite", 0, 5)], asynchronous=False)
        broker.catalog.topics.delete("granite")
        broker.create_topic("granite")

        def is_deleted() -> bool:
            return bool(standalone.committed([partition_of("granite", 0)], timeout=120)[0].offset == -1001)

        until(is_deleted)


def test_an_admin_client_describes_alters_and_deletes_groups(broker: BrokerThread) -> None:
    broker.create_topic("granite", 2)
    broker.create_topic("basalt")
    admin = AdminClient({"bootstrap.servers": broker.address})
    with consumer(broker, client_id="chisel") as member:
        member.subscribe(["granite"])
        until(lambda: assigned(member) == [2])
        member.commit(
            offsets=[partition_of("granite", 0, 3), partition_of("basalt", 0, 4)], asynchronous=False
        )

        (listed,) = admin.list_consumer_groups(request_timeout=120).result().valid
        assert (listed.group_id, listed.state) == ("masons", ConsumerGroupState.STABLE)
        described = admin.describe_consumer_groups(["masons"], request_timeout=120)["masons"].result()
        assert described.state is ConsumerGroupState.STABLE
        assert described.partition_assignor == "range"
        (seen,) = described.members
        assert seen.client_id == "chisel"
        assert {each.partition for each in seen.assignment.topic_partitions} == {0, 1}

        offsets = admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions("masons")])
        found = offsets["masons"].result().topic_partitions
        assert {(each.topic, each.partition, each.offset) for each in found} == {
            ("granite", 0, 3),
            ("basalt", 0, 4),
        }
        with pytest.raises(KafkaException) as rejected:
            admin.delete_consumer_groups(["masons"], request_timeout=120)["masons"].result()
        assert rejected.value.args[0].name() == "NON_EMPTY_GROUP"
    moved = ConsumerGroupTopicPartitions("masons", [partition_of("granite", 0, 1)])
    admin.alter_consumer_group_offsets([moved])["masons"].result()
    with consumer(broker) as standalone:
        assert standalone.committed([partition_of("granite", 0)], timeout=120)[0].offset == 1
        admin.delete_consumer_groups(["masons"], request_timeout=120)["masons"].result()
        assert standalone.committed([partition_of("granite", 0)], timeout=120)[0].offset == -1001
    assert admin.list_consumer_groups(request_timeout=120).result().valid == []
    with pytest.raises(KafkaException) as rejected:
        admin.delete_consumer_groups(["masons"], request_timeout=120)["masons"].result()
    assert rejected.value.args[0].name() == "GROUP_ID_NOT_FOUND"
