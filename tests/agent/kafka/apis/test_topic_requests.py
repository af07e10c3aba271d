"""Invalid and conflicting requests about topics and the cluster."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from catalog.config.values import TopicConfig
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
    """Delete topics, and return the name and error code of each response."""
    request = Struct(
        topics=[Struct(name=name, topic_id=topic_id) for name, topic_id in topics], timeout=60_000
    )
    return [(each.name, each.error_code) for each in wire.ask("delete_topics", 6, request).responses]


def created(wire: Wire, *names: str, validate_only: bool = False) -> list[int]:
    """Create topics, and return their error codes."""
    wanted = [
        Struct(name=name, num_partitions=1, replication_factor=1, assignments=[], configs=[])
        for name in names
    ]
    request = Struct(topics=wanted, timeout=60_000, validate_only=validate_only)
    return [each.error_code for each in wire.ask("create_topics", 7, request).topics]


def test_deleting_by_id_does_not_delete_a_later_topic_of_the_same_name(
    broker: BrokerThread, wire: Wire
) -> None:
    """The agent has the first topic in its cache, and another agent has replaced it."""
    first = broker.create_topic("granite").topic_id
    wire.ask("metadata", 12, Struct(topics=[Struct(name=None, topic_id=first)]))
    broker.catalog.topics.delete("granite")
    second = broker.create_topic("granite").topic_id
    assert deleted(wire, (None, first)) == [(None, ErrorCode.unknown_topic_id)]
    assert broker.catalog.topics.get("granite").topic_id == second
    assert deleted(wire, (None, second)) == [("granite", ErrorCode.none)]
    assert broker.catalog.topics.list() == []


def test_topics_that_are_named_twice_or_not_at_all_are_not_deleted(broker: BrokerThread, wire: Wire) -> None:
    """As in Kafka, the response has one entry for each topic."""
    topic_id = broker.create_topic("granite").topic_id
    invalid = ErrorCode.invalid_request
    assert deleted(wire, ("granite", None), ("granite", None)) == [("granite", invalid)]
    assert deleted(wire, (None, topic_id), (None, topic_id)) == [(None, invalid)]
    assert deleted(wire, ("granite", topic_id), (None, None)) == [("granite", invalid), (None, invalid)]
    assert deleted(wire, ("granite", None), (None, topic_id)) == [("granite", invalid)]
    assert deleted(wire, (None, topic_id), ("granite", None)) == [("granite", invalid)]
    both = deleted(wire, (None, topic_id), ("granite", None), (None, topic_id))
    assert both == [(None, invalid), ("granite", invalid)]
    assert len(broker.catalog.topics.list()) == 1
    old = wire.ask("delete_topics", 5, Struct(topic_names=["granite", "granite"], timeout=60_000))
    assert [(each.name, each.error_code) for each in old.responses] == [("granite", invalid)]


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
def test_a_page_of_topics_begins_at_the_cursor(
    broker: BrokerThread,
    wire: Wire,
    names: list[str],
    cursor: tuple[str, int],
    expected: list[tuple[str, int, list[int]]],
) -> None:
    """As in Kafka, an invalid cursor is reported for each topic that the request names."""
    broker.create_topic("granite", 2)
    request = Struct(
        topics=[Struct(name=name) for name in names],
        response_partition_limit=100,
        cursor=Struct(topic_name=cursor[0], partition_index=cursor[1]),
    )
    response = wire.ask("describe_topic_partitions", 0, request).topics
    found = [
        (each.name, each.error_code, [part.partition_index for part in each.partitions]) for each in response
    ]
    assert found == expected


def test_a_name_that_differs_only_by_dots_is_rejected(broker: BrokerThread, wire: Wire) -> None:
    """The error is not TOPIC_ALREADY_EXISTS, also if the request only validates."""
    broker.create_topic("a.b")
    for validate_only in (True, False):
        assert created(wire, "a_b", validate_only=validate_only) == [ErrorCode.invalid_topic_exception]
        assert created(wire, "a.b", validate_only=validate_only) == [ErrorCode.topic_already_exists]


def test_topics_that_are_named_twice_are_not_created_and_get_no_partitions(
    broker: BrokerThread, wire: Wire
) -> None:
    assert created(wire, "granite", "granite") == [ErrorCode.invalid_request]
    broker.create_topic("granite")
    twice = [Struct(name="granite", count=count, assignments=None) for count in (2, 3)]
    request = Struct(topics=twice, timeout=60_000, validate_only=False)
    responses = wire.ask("create_partitions", 3, request).results
    assert [(each.name, each.error_code) for each in responses] == [("granite", ErrorCode.invalid_request)]
    assert broker.catalog.topics.get("granite").partition_count == 1


@pytest.mark.parametrize("version", [10, 11])
def test_metadata_versions_10_and_11_reject_topic_ids(broker: BrokerThread, wire: Wire, version: int) -> None:
    topic = broker.create_topic("granite")
    topics = [Struct(name="granite", topic_id=topic.topic_id), Struct(name=None, topic_id=None)]
    responses = wire.ask("metadata", version, Struct(topics=topics)).topics
    assert [each.error_code for each in responses] == [ErrorCode.invalid_request] * 2


@pytest.mark.parametrize(
    ("endpoint_type", "expected"),
    [
        (1, ErrorCode.none),
        (2, ErrorCode.mismatched_endpoint_type),
        (9, ErrorCode.unsupported_endpoint_type),
    ],
)
def test_describe_cluster_serves_only_the_broker_endpoint(
    wire: Wire, endpoint_type: int, expected: ErrorCode
) -> None:
    response = wire.ask("describe_cluster", 2, Struct(endpoint_type=endpoint_type))
    assert response.error_code == expected


def test_an_empty_transactional_id_is_rejected(wire: Wire) -> None:
    request = Struct(transactional_id="", transaction_timeout=1000)
    assert wire.ask("init_producer_id", 5, request).error_code == ErrorCode.invalid_request


@pytest.mark.parametrize("count", [0, -2, 100_001, 2_000_000])
def test_an_invalid_number_of_partitions_is_rejected(wire: Wire, count: int) -> None:
    wanted = Struct(name="granite", num_partitions=count, replication_factor=1, assignments=[], configs=[])
    request = Struct(topics=[wanted], timeout=60_000, validate_only=False)
    (response,) = wire.ask("create_topics", 7, request).topics
    assert response.error_code == ErrorCode.invalid_partitions


def test_a_duplicate_cleanup_policy_counts_once(broker: BrokerThread, wire: Wire) -> None:
    """Kafka 4.3 does the same. An existing topic that has it works, too."""
    config = Struct(name="cleanup.policy", value="delete,delete")
    wanted = Struct(name="granite", num_partitions=1, replication_factor=1, assignments=[], configs=[config])
    request = Struct(topics=[wanted], timeout=60_000, validate_only=False)
    (response,) = wire.ask("create_topics", 7, request).topics
    assert response.error_code == ErrorCode.none
    assert {each.name: each.value for each in response.configs}["cleanup.policy"] == "delete"
    assert broker.catalog.topics.get("granite").config.as_strings() == {"cleanup.policy": "delete"}
    assert TopicConfig.from_stored({"cleanup.policy": "delete,delete"}).deletes


def test_offsets_with_the_largest_retention_time_are_committed(broker: BrokerThread, wire: Wire) -> None:
    """The expiry time must not overflow."""
    broker.create_topic("granite")
    part = Struct(partition_index=0, committed_offset=1, committed_metadata="")
    request = Struct(
        group_id="g",
        generation_id_or_member_epoch=-1,
        member_id="",
        retention_time=2**63 - 1,
        topics=[Struct(name="granite", partitions=[part])],
    )
    (topic,) = wire.ask("offset_commit", 3, request).topics
    assert [each.error_code for each in topic.partitions] == [ErrorCode.none]
