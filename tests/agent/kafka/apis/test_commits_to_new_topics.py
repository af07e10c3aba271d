"""Offsets are committed to the topic that a name means now, whatever an agent remembers of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.model import Topic
    from tests.agent.kafka.brokers import BrokerThread

_BY_NAME, _BY_ID = 8, 10


@pytest.fixture
def broker(start_broker: Callable[..., BrokerThread]) -> BrokerThread:
    """An agent that remembers topics for as long as the test lasts."""
    return start_broker(topic_cache_ms=3_600_000)


def commit(broker: BrokerThread, version: int, *places: tuple[Topic, int, int]) -> list[list[int]]:
    """Commit an offset for each (topic, partition, offset), each in a part of its own; the codes."""
    parts = [
        Struct(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                Struct(partition_index=number, committed_offset=offset, committed_metadata="")
                for each, number, offset in places
                if each is topic
            ],
        )
        for topic in dict.fromkeys(topic for topic, _, _ in places)
    ]
    asked = Struct(group_id="masons", generation_id_or_member_epoch=-1, member_id="", topics=parts)
    with Wire(broker.host_and_port) as wire:
        answer = wire.ask("offset_commit", version, asked)
    return [[int(partition.error_code) for partition in topic.partitions] for topic in answer.topics]


def committed(broker: BrokerThread) -> list[tuple[str, int, int]]:
    """What the catalog has of the group, of topics that exist."""
    found = broker.catalog.offsets.fetch_all(["masons"])["masons"]
    return [(name, each.partition, each.offset) for name, each in found]


def test_a_commit_to_a_topic_that_was_made_anew_is_kept(broker: BrokerThread) -> None:
    """By name it is the new topic's, with as many partitions as that has; others are not touched."""
    granite, basalt = broker.create_topic("granite", 2), broker.create_topic("basalt")
    assert commit(broker, _BY_NAME, (granite, 0, 11), (granite, 1, 11), (basalt, 0, 11)) == [[0, 0], [0]]
    broker.catalog.topics.delete("granite")
    broker.create_topic("granite", 1)
    assert commit(broker, _BY_NAME, (granite, 0, 5), (granite, 1, 5), (basalt, 0, 6)) == [
        [0, ErrorCode.unknown_topic_or_partition],
        [0],
    ]
    assert committed(broker) == [("basalt", 0, 6), ("granite", 0, 5)]


@pytest.mark.parametrize(
    ("version", "code"),
    [(_BY_NAME, ErrorCode.unknown_topic_or_partition), (_BY_ID, ErrorCode.unknown_topic_id)],
)
def test_a_commit_to_a_topic_that_is_gone_is_refused(
    broker: BrokerThread, version: int, code: ErrorCode
) -> None:
    """Also by the identifier of a topic whose name is another's by now."""
    granite, basalt = broker.create_topic("granite"), broker.create_topic("basalt")
    assert commit(broker, version, (granite, 0, 11), (basalt, 0, 11)) == [[0], [0]]
    broker.catalog.topics.delete("granite")
    if version == _BY_ID:
        broker.create_topic("granite")
    assert commit(broker, version, (granite, 0, 5), (basalt, 0, 6)) == [[code], [0]]
    assert committed(broker) == [("basalt", 0, 6)]
