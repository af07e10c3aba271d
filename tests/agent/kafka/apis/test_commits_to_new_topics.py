"""Offsets are committed to the current topic of a name, even if the agent's cache has an older one."""

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
    """An agent whose cache of topics does not expire during the test."""
    return start_broker(topic_cache_ms=3_600_000)


def commit(broker: BrokerThread, version: int, *offsets: tuple[Topic, int, int]) -> list[list[int]]:
    """Commit each (topic, partition, offset), and return the error codes by topic and partition."""
    parts = [
        Struct(
            name=topic.name,
            topic_id=topic.topic_id,
            partitions=[
                Struct(partition_index=number, committed_offset=offset, committed_metadata="")
                for each, number, offset in offsets
                if each is topic
            ],
        )
        for topic in dict.fromkeys(topic for topic, _, _ in offsets)
    ]
    request = Struct(group_id="masons", generation_id_or_member_epoch=-1, member_id="", topics=parts)
    with Wire(broker.host_and_port) as wire:
        response = wire.ask("offset_commit", version, request)
    return [[int(partition.error_code) for partition in topic.partitions] for topic in response.topics]


def committed(broker: BrokerThread) -> list[tuple[str, int, int]]:
    """Return the group's committed offsets in topics that exist."""
    found = broker.catalog.group_offsets.fetch_all(["masons"])["masons"]
    return [(name, each.partition, each.offset) for name, each in found]


def test_a_commit_by_name_goes_to_the_recreated_topic(broker: BrokerThread) -> None:
    """The partitions of the new topic count. Offsets in other topics do not change."""
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
def test_a_commit_to_a_deleted_topic_is_rejected(broker: BrokerThread, version: int, code: ErrorCode) -> None:
    """By id it is rejected even if another topic has the name."""
    granite, basalt = broker.create_topic("granite"), broker.create_topic("basalt")
    assert commit(broker, version, (granite, 0, 11), (basalt, 0, 11)) == [[0], [0]]
    broker.catalog.topics.delete("granite")
    if version == _BY_ID:
        broker.create_topic("granite")
    assert commit(broker, version, (granite, 0, 5), (basalt, 0, 6)) == [[code], [0]]
    assert committed(broker) == [("basalt", 0, 6)]
