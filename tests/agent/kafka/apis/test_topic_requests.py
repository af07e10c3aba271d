"""Requests about topics and the cluster that make no sense, or that others are in the way of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from catalog.config.topic_config import TopicConfig
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from tests.agent.kafka.brokers import BrokerThread


@pytest.fixture
def wire(broker: BrokerThread) -> Iterator[Wire]:
    with Wire(broker.host_and_port) as opened:
        yield opened


def deleted(wire: Wire, *topics: tuple[str | None, UUID | None]) -> list[tuple[str | None, int]]:
    """What DeleteTopics says, by name."""
    asked = Struct(topics=[Struct(name=name, topic_id=topic_id) for name, topic_id in topics], timeout=60_000)
    return [(each.name, each.error_code) for each in wire.ask("delete_topics", 6, asked).responses]


def created(wire: Wire, *names: str, validate_only: bool = False) -> list[int]:
    """What CreateTopics says."""
    wanted = [
        Struct(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        for name in names
    ]
    asked = Struct(topics=wanted, timeout=60_000, validate_only=validate_only)
    return [each.error_code for each in wire.ask("create_topics", 7, asked).topics]


def test_an_identifier_deletes_its_own_topic_and_never_the_next_one_of_that_name(
    broker: BrokerThread, wire: Wire
) -> None:
    """Also where the agent remembers the former one, and another agent has put the next in its place."""
    first = broker.create_topic("granite").topic_id
    wire.ask("metadata", 12, Struct(topics=[Struct(name=None, topic_id=first)]))
    broker.catalog.topics.delete("granite")
    second = broker.create_topic("granite").topic_id
    assert deleted(wire, (None, first)) == [(None, ErrorCode.unknown_topic_id)]
    assert broker.catalog.topics.get("granite").topic_id == second
    assert deleted(wire, (None, second)) == [("granite", ErrorCode.none)]
    assert broker.catalog.topics.list() == []


def test_topics_that_are_named_twice_or_not_at_all_are_not_deleted(broker: BrokerThread, wire: Wire) -> None:
    """As in Kafka, each is answered once."""
    topic_id = broker.create_topic("granite").topic_id
    refused = ErrorCode.invalid_request
    assert deleted(wire, ("granite", None), ("granite", None)) == [("granite", refused)]
    assert deleted(wire, (None, topic_id), (None, topic_id)) == [(None, refused)]
    assert deleted(wire, ("granite", topic_id), (None, None)) == [("granite", refused), (None, refused)]
    assert deleted(wire, ("granite", None), (None, topic_id)) == [("granite", refused)]
    assert deleted(wire, (None, topic_id), ("granite", None)) == [("granite", refused)]
    both = deleted(wire, (None, topic_id), ("granite", None), (None, topic_id))
    assert both == [(None, refused), ("granite", refused)]
    assert len(broker.catalog.topics.list()) == 1
    old = wire.ask("delete_topics", 5, Struct(topic_names=["granite", "granite"], timeout=60_000))
    assert [(each.name, each.error_code) for each in old.responses] == [("granite", refused)]


@pytest.mark.parametrize(
    ("names", "cursor", "expected"),
    [
        (["granite"], ("granite", 1), [("granite", ErrorCode.none, [1])]),
        (["granite"], ("granite", -1), [("granite", ErrorCode.invalid_request, [])]),
        (["granite"], ("sand", 0), [("granite", ErrorCode.invalid_request, [])]),
        ([], ("gneiss", 0), [("granite", ErrorCode.none, [0, 1])]),
        ([], ("granite", -1), []),
    ],
)
def test_a_page_of_topics_begins_where_a_sound_cursor_says(
    broker: BrokerThread,
    wire: Wire,
    names: list[str],
    cursor: tuple[str, int],
    expected: list[tuple[str, int, list[int]]],
) -> None:
    """Another one is refused, in the answers of the topics that were named, as in Kafka."""
    broker.create_topic("granite", 2)
    asked = Struct(
        topics=[Struct(name=name) for name in names],
        response_partition_limit=100,
        cursor=Struct(topic_name=cursor[0], partition_index=cursor[1]),
    )
    answer = wire.ask("describe_topic_partitions", 0, asked).topics
    found = [
        (each.name, each.error_code, [part.partition_index for part in each.partitions]) for each in answer
    ]
    assert found == expected


def test_a_name_that_differs_by_dots_alone_is_no_name_for_a_topic(broker: BrokerThread, wire: Wire) -> None:
    """It is not said to exist; whether it is tried or meant."""
    broker.create_topic("a.b")
    for validate_only in (True, False):
        assert created(wire, "a_b", validate_only=validate_only) == [ErrorCode.invalid_topic_exception]
        assert created(wire, "a.b", validate_only=validate_only) == [ErrorCode.topic_already_exists]


def test_topics_that_are_named_twice_do_not_come_into_being_and_do_not_grow(
    broker: BrokerThread, wire: Wire
) -> None:
    assert created(wire, "granite", "granite") == [ErrorCode.invalid_request]
    broker.create_topic("granite")
    twice = [Struct(name="granite", count=count, assignments=None) for count in (2, 3)]
    asked = Struct(topics=twice, timeout=60_000, validate_only=False)
    answers = wire.ask("create_partitions", 3, asked).results
    assert [(each.name, each.error_code) for each in answers] == [("granite", ErrorCode.invalid_request)]
    assert broker.catalog.topics.get("granite").partition_count == 1


@pytest.mark.parametrize("version", [10, 11])
def test_early_versions_with_identifiers_name_topics_by_name(
    broker: BrokerThread, wire: Wire, version: int
) -> None:
    topic = broker.create_topic("granite")
    asked = [Struct(name="granite", topic_id=topic.topic_id), Struct(name=None, topic_id=None)]
    answers = wire.ask("metadata", version, Struct(topics=asked)).topics
    assert [each.error_code for each in answers] == [ErrorCode.invalid_request] * 2


@pytest.mark.parametrize(
    ("endpoint_type", "expected"),
    [
        (1, ErrorCode.none),
        (2, ErrorCode.mismatched_endpoint_type),
        (9, ErrorCode.unsupported_endpoint_type),
    ],
)
def test_the_cluster_is_described_by_brokers(wire: Wire, endpoint_type: int, expected: ErrorCode) -> None:
    answer = wire.ask("describe_cluster", 2, Struct(endpoint_type=endpoint_type))
    assert answer.error_code == expected


def test_a_producer_without_transactions_does_not_give_an_empty_name_for_them(wire: Wire) -> None:
    asked = Struct(transactional_id="", transaction_timeout=1000)
    assert wire.ask("init_producer_id", 5, asked).error_code == ErrorCode.invalid_request


@pytest.mark.parametrize("count", [0, -2, 100_001, 2_000_000])
def test_a_number_of_partitions_that_no_topic_can_have_is_invalid_partitions(wire: Wire, count: int) -> None:
    wanted = Struct(name="granite", num_partitions=count, replication_factor=1, assignments=[], configs=[])
    asked = Struct(topics=[wanted], timeout=60_000, validate_only=False)
    (answer,) = wire.ask("create_topics", 7, asked).topics
    assert answer.error_code == ErrorCode.invalid_partitions


def test_a_policy_that_is_named_twice_is_refused(broker: BrokerThread, wire: Wire) -> None:
    """Where it is set; a topic that has it from before is read as ever."""
    config = Struct(name="cleanup.policy", value="delete,delete")
    wanted = Struct(name="granite", num_partitions=1, replication_factor=1, assignments=[], configs=[config])
    asked = Struct(topics=[wanted], timeout=60_000, validate_only=False)
    (answer,) = wire.ask("create_topics", 7, asked).topics
    assert answer.error_code == ErrorCode.invalid_config
    assert broker.catalog.topics.list() == []
    assert TopicConfig.stored({"cleanup.policy": "delete,delete"}).deletes


def test_offsets_that_are_to_be_kept_for_ever_are_committed(broker: BrokerThread, wire: Wire) -> None:
    """The largest time that a client can say is no error."""
    broker.create_topic("granite")
    part = Struct(partition_index=0, committed_offset=1, committed_metadata="")
    asked = Struct(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time=2**63 - 1,
        topics=[Struct(name="granite", partitions=[part])],
    )
    (topic,) = wire.ask("offset_commit", 3, asked).topics
    assert [each.error_code for each in topic.partitions] == [ErrorCode.none]
