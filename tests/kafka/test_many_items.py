"""Requests about many things at once, against pools that hold far fewer calls than there are things."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING
from unittest.mock import patch

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from catalog.errors import CatalogUnavailableError
from tests.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.kafka.brokers import BrokerThread

_TOPICS, _PARTITIONS = 60, 120
_NAMES = [f"granite-{number}" for number in range(_TOPICS)]


@pytest.fixture
def broker(start_broker: Callable[..., BrokerThread]) -> BrokerThread:
    """An agent with many topics, one of them wide, in whose pools four calls may wait."""
    broker = start_broker(max_waiting_calls=4)
    for name in _NAMES:
        broker.create_topic(name)
    broker.create_topic("wide", _PARTITIONS)
    return broker


@pytest.fixture
def wire(broker: BrokerThread) -> Iterator[Wire]:
    with Wire(broker.host_and_port) as opened:
        yield opened


def catalog_calls(broker: BrokerThread) -> Counter[str]:
    """How often the catalog was asked, by operation."""
    counts = broker.catalog.operation_counts()
    return Counter({operation: count.calls for operation, count in counts.items()})


def described(wire: Wire, version: int, topics: Sequence[Struct]) -> Struct:
    asked = Struct(topics=list(topics), allow_auto_topic_creation=False)
    return wire.ask("metadata", version, asked)


@pytest.mark.parametrize("version", [1, 9, 12, 13])
def test_many_topics_are_described_by_one_look_at_the_catalog(
    broker: BrokerThread, wire: Wire, version: int
) -> None:
    """Those that do not exist have an error of their own, and brokers are always told."""
    before = catalog_calls(broker)
    wanted = [*_NAMES, "marble", *(f"basalt-{number}" for number in range(_TOPICS)), "no such name"]
    answer = described(wire, version, [Struct(name=name, topic_id=None) for name in wanted])
    asked = catalog_calls(broker) - before
    assert asked["topics.named"] == 1
    assert asked["topics.get"] == 0
    assert [topic.name for topic in answer.topics] == wanted
    assert [topic.error_code for topic in answer.topics] == (
        [ErrorCode.none] * _TOPICS
        + [ErrorCode.unknown_topic_or_partition] * (_TOPICS + 1)
        + [ErrorCode.invalid_topic_exception]
    )
    assert len(answer.brokers) == 1


def test_many_topics_are_described_by_their_identifiers_at_once(broker: BrokerThread, wire: Wire) -> None:
    ids = [topic.topic_id for topic in broker.catalog.topics.list()]
    before = catalog_calls(broker)
    answer = described(wire, 12, [Struct(name=None, topic_id=topic_id) for topic_id in ids])
    asked = catalog_calls(broker) - before
    assert (asked["topics.identified"], asked["topics.by_id"]) == (1, 0)
    assert {topic.error_code for topic in answer.topics} == {ErrorCode.none}
    assert [topic.topic_id for topic in answer.topics] == ids


def test_librdkafka_describes_many_topics(broker: BrokerThread) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    found = admin.describe_topics(TopicCollection([*_NAMES, "wide"]))
    assert {name: len(each.result(120).partitions) for name, each in found.items()} == (
        dict.fromkeys(_NAMES, 1) | {"wide": _PARTITIONS}
    )


@pytest.mark.parametrize("version", [9, 13])
def test_a_catalog_that_is_away_leaves_brokers_and_the_topics_that_were_seen(
    broker: BrokerThread, wire: Wire, version: int
) -> None:
    """The others are to be asked for again: LEADER_NOT_AVAILABLE."""
    described(wire, version, [Struct(name="wide", topic_id=None)])
    away = CatalogUnavailableError("it is away", remedy="wait", retry_after_seconds=1.0)
    with patch.object(type(broker.catalog.topics), "named", side_effect=away):
        names = ["wide", *_NAMES]
        answer = described(wire, version, [Struct(name=name, topic_id=None) for name in names])
    assert len(answer.brokers) == 1
    assert [topic.error_code for topic in answer.topics] == (
        [ErrorCode.none] + [ErrorCode.leader_not_available] * _TOPICS
    )
    assert len(answer.topics[0].partitions) == _PARTITIONS


@pytest.mark.parametrize("timestamp", [-1, -2, -3, 1_000])
def test_offsets_of_many_partitions_are_found(wire: Wire, timestamp: int) -> None:
    """By time or by name, in one topic or in many; what is waited for is bounded and nothing refused."""
    asked = {"wide": _PARTITIONS} | dict.fromkeys(_NAMES, 1)
    topics = [
        Struct(
            name=name,
            partitions=[
                Struct(partition_index=index, timestamp=timestamp, current_leader_epoch=-1)
                for index in range(count)
            ],
        )
        for name, count in asked.items()
    ]
    answer = wire.ask("list_offsets", 7, Struct(replica_id=-1, topics=topics))
    assert [topic.name for topic in answer.topics] == list(asked)
    for topic in answer.topics:
        assert [part.partition_index for part in topic.partitions] == list(range(asked[topic.name]))
        assert {part.error_code for part in topic.partitions} == {ErrorCode.none}
        assert {part.offset for part in topic.partitions} == {0 if timestamp in {-1, -2} else -1}


def test_what_else_is_asked_of_many_partitions_is_answered(broker: BrokerThread, wire: Wire) -> None:
    """Epochs, producers and the log start; what many can share is asked once."""
    indexes = range(_PARTITIONS)
    before = catalog_calls(broker)
    epochs = wire.ask(
        "offset_for_leader_epoch",
        4,
        Struct(
            replica_id=-1,
            topics=[
                Struct(
                    topic=name,
                    partitions=[
                        Struct(partition=index, current_leader_epoch=-1, leader_epoch=0) for index in indexes
                    ],
                )
                for name in ("wide", "marble")
            ],
        ),
    )
    assert (catalog_calls(broker) - before)["topics.states"] == 1
    assert {(part.error_code, part.end_offset) for part in epochs.topics[0].partitions} == {(0, 0)}
    assert {part.error_code for part in epochs.topics[1].partitions} == {ErrorCode.unknown_topic_or_partition}
    producers = wire.ask(
        "describe_producers", 0, Struct(topics=[Struct(name="wide", partition_indexes=list(indexes))])
    )
    assert [part.error_code for part in producers.topics[0].partitions] == [0] * _PARTITIONS
    parts = [Struct(partition_index=index, offset=0) for index in indexes]
    deleted = wire.ask("delete_records", 2, Struct(topics=[Struct(name="wide", partitions=parts)], timeout=1))
    assert [part.error_code for part in deleted.topics[0].partitions] == [0] * _PARTITIONS


@pytest.mark.parametrize("api", ["list_offsets", "offset_for_leader_epoch"])
def test_a_catalog_that_is_away_is_said_of_each_partition(broker: BrokerThread, wire: Wire, api: str) -> None:
    """So the client asks again, and its connection is not closed."""
    away = CatalogUnavailableError("it is away", remedy="wait", retry_after_seconds=1.0)
    by_name = {"list_offsets": "name", "offset_for_leader_epoch": "topic"}[api]
    part = Struct(current_leader_epoch=-1)
    if api == "list_offsets":
        part.partition_index, part.timestamp = 0, -1
    else:
        part.partition, part.leader_epoch = 0, 0
    asked = Struct(replica_id=-1, topics=[Struct(**{by_name: "wide"}, partitions=[part])])
    with patch.object(type(broker.catalog.topics), "states", side_effect=away):
        answer = wire.ask(api, 4, asked)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.request_timed_out
