"""Requests with many items, against pools that admit far fewer calls than items."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING
from unittest.mock import Mock, patch
from uuid import UUID

import pytest
from confluent_kafka import TopicCollection
from confluent_kafka.admin import AdminClient

from agent.kafka.api_definition import MAX_ITEMS
from agent.kafka.api_registry import APIS
from agent.kafka.apis.configs import describe_configs
from agent.kafka.codec import Cursor, Message, Output, Struct
from agent.kafka.errors import ErrorCode
from catalog.errors import CatalogUnavailableError
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire, request_frame
from tests.agent.write.test_write_path import batches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from agent.kafka.api_definition import Api
    from tests.agent.kafka.brokers import BrokerThread

_TOPICS, _PARTITIONS = 60, 120
_NAMES = [f"granite-{number}" for number in range(_TOPICS)]


@pytest.fixture
def broker(start_broker: Callable[..., BrokerThread]) -> BrokerThread:
    """An agent with many topics, one with many partitions, and pools that queue four calls."""
    broker = start_broker(max_waiting_calls=4)
    for name in _NAMES:
        broker.create_topic(name)
    broker.create_topic("wide", _PARTITIONS)
    return broker


@pytest.fixture
def wire(broker: BrokerThread) -> Iterator[Wire]:
    with Wire(broker.host_and_port) as opened:
        yield opened


def described(wire: Wire, version: int, topics: Sequence[Struct]) -> Struct:
    request = Struct(topics=list(topics), allow_auto_topic_creation=False)
    return wire.ask("metadata", version, request)


@pytest.mark.parametrize("version", [1, 9, 12, 13])
def test_many_topics_are_described_with_one_catalog_query(
    broker: BrokerThread, wire: Wire, version: int
) -> None:
    """Each missing topic has an error. The response always lists the brokers."""
    before = broker.catalog_calls()
    wanted = [*_NAMES, "marble", *(f"basalt-{number}" for number in range(_TOPICS)), "no such name"]
    response = described(wire, version, [Struct(name=name, topic_id=None) for name in wanted])
    calls = broker.catalog_calls() - before
    assert calls["topics.by_names"] == 1
    assert calls["topics.get"] == 0
    assert [topic.name for topic in response.topics] == wanted
    assert [topic.error_code for topic in response.topics] == (
        [ErrorCode.none] * _TOPICS
        + [ErrorCode.unknown_topic_or_partition] * (_TOPICS + 1)
        + [ErrorCode.invalid_topic_exception]
    )
    assert len(response.brokers) == 1


def test_many_topics_are_described_by_id_with_one_catalog_query(broker: BrokerThread, wire: Wire) -> None:
    ids = [topic.topic_id for topic in broker.catalog.topics.list()]
    before = broker.catalog_calls()
    response = described(wire, 12, [Struct(name=None, topic_id=topic_id) for topic_id in ids])
    calls = broker.catalog_calls() - before
    assert (calls["topics.by_ids"], calls["topics.by_id"]) == (1, 0)
    assert {topic.error_code for topic in response.topics} == {ErrorCode.none}
    assert [topic.topic_id for topic in response.topics] == ids


def test_librdkafka_describes_many_topics(broker: BrokerThread) -> None:
    admin = AdminClient({"bootstrap.servers": broker.address})
    found = admin.describe_topics(TopicCollection([*_NAMES, "wide"]))
    assert {name: len(each.result(120).partitions) for name, each in found.items()} == (
        dict.fromkeys(_NAMES, 1) | {"wide": _PARTITIONS}
    )


@pytest.mark.parametrize("version", [9, 13])
def test_metadata_shows_known_topics_while_the_catalog_is_unavailable(
    broker: BrokerThread, wire: Wire, version: int
) -> None:
    """Other topics are LEADER_NOT_AVAILABLE, so that clients retry."""
    described(wire, version, [Struct(name="wide", topic_id=None)])
    unavailable = CatalogUnavailableError("it is unavailable", remedy="wait", retry_after_seconds=1.0)
    with patch.object(type(broker.catalog.topics), "by_names", side_effect=unavailable):
        names = ["wide", *_NAMES]
        response = described(wire, version, [Struct(name=name, topic_id=None) for name in names])
    assert len(response.brokers) == 1
    assert [topic.error_code for topic in response.topics] == (
        [ErrorCode.none] + [ErrorCode.leader_not_available] * _TOPICS
    )
    assert len(response.topics[0].partitions) == _PARTITIONS


@pytest.mark.parametrize("timestamp", [-1, -2, -3, 1_000])
def test_offsets_of_many_partitions_are_found(wire: Wire, timestamp: int) -> None:
    """They are in one topic and in many. Lookups are bounded in number, and none is rejected."""
    counts = {"wide": _PARTITIONS} | dict.fromkeys(_NAMES, 1)
    topics = [
        Struct(
            name=name,
            partitions=[
                Struct(partition_index=index, timestamp=timestamp, current_leader_epoch=-1)
                for index in range(count)
            ],
        )
        for name, count in counts.items()
    ]
    response = wire.ask("list_offsets", 7, Struct(replica_id=-1, topics=topics))
    assert [topic.name for topic in response.topics] == list(counts)
    for topic in response.topics:
        assert [part.partition_index for part in topic.partitions] == list(range(counts[topic.name]))
        assert {part.error_code for part in topic.partitions} == {ErrorCode.none}
        assert {part.offset for part in topic.partitions} == {0 if timestamp in {-1, -2} else -1}


def test_other_requests_about_many_partitions_share_catalog_queries(broker: BrokerThread, wire: Wire) -> None:
    """These are leader epochs, producers and log start offsets."""
    indexes = range(_PARTITIONS)
    before = broker.catalog_calls()
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
    assert (broker.catalog_calls() - before)["topics.states"] == 1
    assert {(part.error_code, part.end_offset) for part in epochs.topics[0].partitions} == {(0, 0)}
    assert {part.error_code for part in epochs.topics[1].partitions} == {ErrorCode.unknown_topic_or_partition}
    named = [
        Struct(name="wide", partition_indexes=[*indexes, -1]),
        Struct(name="marble", partition_indexes=[0]),
    ]
    producers = wire.ask("describe_producers", 0, Struct(topics=named))
    unknown = ErrorCode.unknown_topic_or_partition
    assert [part.error_code for topic in producers.topics for part in topic.partitions] == [
        *[0] * _PARTITIONS,
        *[unknown] * 2,
    ]
    assert (broker.catalog_calls() - before)["producers.of_partitions"] == 2
    parts = [Struct(partition_index=index, offset=0) for index in indexes]
    deleted = wire.ask("delete_records", 2, Struct(topics=[Struct(name="wide", partitions=parts)], timeout=1))
    assert [part.error_code for part in deleted.topics[0].partitions] == [0] * _PARTITIONS
    calls = broker.catalog_calls() - before
    assert (calls["topics.states"], calls["retention.advance_log_starts"]) == (2, 1)


@pytest.mark.parametrize(("produced", "fetched"), [(9, 12), (13, 13)])
def test_many_topics_are_produced_to_and_fetched_with_one_lookup(
    broker: BrokerThread, wire: Wire, produced: int, fetched: int
) -> None:
    """Topics are named by name and by id. A missing topic has an error and is looked up again."""
    topics = [broker.catalog.topics.get(name) for name in _NAMES]
    missing = replace(topics[0], name="marble", topic_id=UUID(int=7))
    sent, wanted = [], []
    for topic in [*topics, missing]:
        named = {"name": topic.name, "topic_id": topic.topic_id}
        records = bytes(batches(topic, 0, "value").data)
        sent.append(Struct(**named, partition_data=[Struct(index=0, records=records)]))
        part = Struct(partition=0, current_leader_epoch=-1, fetch_offset=0, partition_max_bytes=1_000)
        wanted.append(Struct(topic=topic.name, topic_id=topic.topic_id, partitions=[part]))
    before = broker.catalog_calls()
    response = wire.ask("produce", produced, Struct(acks=-1, timeout=10_000, topic_data=sent))
    calls = broker.catalog_calls() - before
    codes = [part.error_code for topic in response.responses for part in topic.partition_responses]
    unknown = ErrorCode.unknown_topic_id if produced == 13 else ErrorCode.unknown_topic_or_partition
    assert codes == [ErrorCode.none] * _TOPICS + [unknown]
    assert calls["topics.by_names"] + calls["topics.by_ids"] == 1
    assert calls["topics.get"] + calls["topics.by_id"] == 0
    request = Struct(max_wait=0, min_bytes=0, max_bytes=2**20, session_epoch=-1, topics=wanted)
    before = broker.catalog_calls()
    response = wire.ask("fetch", fetched, request)
    calls = broker.catalog_calls() - before
    codes = [part.error_code for topic in response.responses for part in topic.partitions]
    assert codes == [ErrorCode.none] * _TOPICS + [unknown]
    assert calls["topics.by_names"] + calls["topics.by_ids"] == 1
    assert calls["topics.get"] + calls["topics.by_id"] == 0


def test_leaders_of_many_local_topics_are_looked_up_together(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    """The lookup precedes the requests to their logs, which are sequential."""
    broker = start_broker(local_directories=(tmp_path / "disk",))
    names = [f"rock-{number}" for number in range(10)]
    for name in names:
        broker.create_topic(name, storage_mode="local")
    parts = [Struct(partition_index=0, timestamp=-1, current_leader_epoch=-1)]
    request = Struct(replica_id=-1, topics=[Struct(name=name, partitions=parts) for name in names])
    before = broker.catalog_calls()
    with Wire(broker.host_and_port) as wire:
        response = wire.ask("list_offsets", 7, request)
    calls = broker.catalog_calls() - before
    assert [(topic.partitions[0].error_code, topic.partitions[0].offset) for topic in response.topics] == [
        (ErrorCode.none, 0)
    ] * len(names)
    assert (calls["topics.by_names"], calls["local_leaders.claim"]) == (1, 1)
    assert calls["local_leaders.of_topics"] == 2, "before and after the leaders were assigned"


@pytest.mark.parametrize("api", ["list_offsets", "offset_for_leader_epoch"])
def test_an_unavailable_catalog_is_reported_for_each_partition(
    broker: BrokerThread, wire: Wire, api: str
) -> None:
    """The client retries, and its connection stays open."""
    unavailable = CatalogUnavailableError("it is unavailable", remedy="wait", retry_after_seconds=1.0)
    by_name = {"list_offsets": "name", "offset_for_leader_epoch": "topic"}[api]
    part = Struct(current_leader_epoch=-1)
    if api == "list_offsets":
        part.partition_index, part.timestamp = 0, -1
    else:
        part.partition, part.leader_epoch = 0, 0
    request = Struct(replica_id=-1, topics=[Struct(**{by_name: "wide"}, partitions=[part])])
    with patch.object(type(broker.catalog.topics), "states", side_effect=unavailable):
        response = wire.ask(api, 4, request)
    assert response.topics[0].partitions[0].error_code == ErrorCode.request_timed_out


def configs_of(names: Sequence[str]) -> Struct:
    wanted = [Struct(resource_type=2, resource_name=name, configuration_keys=None) for name in names]
    return Struct(resources=wanted, include_synonyms=True, include_documentation=True)


def threads_of(monkeypatch: pytest.MonkeyPatch, name: str, version: int) -> set[str]:
    """Return the set of threads that parse requests and encode responses of one API from now on."""
    threads: set[str] = set()
    message = Message.of(name, version)

    def read(cursor: Cursor) -> Struct:
        threads.add(threading.current_thread().name)
        return message.read_request(cursor)

    def write(out: Output, response: Struct) -> None:
        threads.add(threading.current_thread().name)
        message.write_response(out, response)

    recording, of = replace(message, read_request=read, write_response=write), Message.of
    monkeypatch.setattr(
        Message, "of", staticmethod(lambda *key: recording if key == (name, version) else of(*key))
    )
    return threads


def test_large_messages_are_parsed_and_encoded_in_a_pool(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small messages are not, because two thread switches would take longer."""
    threads = threads_of(monkeypatch, "metadata", 9)
    frames = [
        request_frame(
            "metadata", 9, 7, Struct(topics=[Struct(name=f"{'marble' * 20}-{each}") for each in range(many)])
        )
        for many in (1, 1_000)
    ]
    for frame, expected in zip(
        frames, [{"broker"}, {"siltstone-parsing_0", "siltstone-rendering_0"}], strict=True
    ):
        threads.clear()
        wire.send(frame)
        assert wire.receive() is not None
        assert set(threads) == expected


@pytest.mark.parametrize("count", [1, 2_000])
def test_nested_items_make_a_response_large(wire: Wire, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """One group with one topic can have thousands of partitions."""
    threads = threads_of(monkeypatch, "offset_fetch", 9)
    topic = Struct(name="wide", partition_indexes=list(range(count)))
    wire.ask("offset_fetch", 9, Struct(groups=[Struct(group_id="g", topics=[topic])]))
    assert any(each.startswith("siltstone-rendering") for each in threads) == (count > 1)


@pytest.mark.parametrize("api", APIS, ids=lambda api: api.name)
def test_every_api_bounds_the_items_of_a_request(api: Api) -> None:
    assert api.max_items <= 100_000


@pytest.mark.parametrize("count", [MAX_ITEMS, MAX_ITEMS + 1])
def test_a_request_with_too_many_items_closes_the_connection(wire: Wire, count: int) -> None:
    """The agent does not parse it to its end. A request with the maximum has a response."""
    request = Struct(coordinator_keys=["g"] * count, key_type=0)
    wire.send(request_frame("find_coordinator", 4, 7, request))
    assert (wire.receive() is None) == (count > MAX_ITEMS)


def test_settings_that_many_topics_share_are_rendered_once(
    wire: Wire, broker: BrokerThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker.create_topic("marble", retention_ms="5")
    render = Mock(wraps=describe_configs._settings)
    monkeypatch.setattr(describe_configs, "_settings", render)
    response = wire.ask("describe_configs", 4, configs_of([*_NAMES, "marble"]))
    assert render.call_count == 2
    values = [{each.name: each.value for each in result.configs} for result in response.results]
    assert [each["retention.ms"] for each in values] == ["604800000"] * _TOPICS + ["5"]


def test_a_large_response_reserves_memory_until_it_is_sent(broker: BrokerThread) -> None:
    """If a client does not read, further large responses are dropped once the memory is full."""
    budget = broker.agent.resources.request_budget
    with Wire(broker.host_and_port) as idle:
        idle.send(request_frame("describe_configs", 4, 7, configs_of(_NAMES * 50)))
        until(lambda: budget.used > 10_000_000)
        budget.limit = budget.used
        with Wire(broker.host_and_port) as other:
            # Of less than 4 KiB: a larger request would wait for the memory.
            other.send(request_frame("describe_configs", 4, 7, configs_of(_NAMES * 3)))
            assert other.receive() is None
    until(lambda: budget.used == 0)


def test_a_request_for_too_many_topics_creates_none(wire: Wire) -> None:
    wanted = [
        Struct(name=f"marble-{number}", num_partitions=1, replication_factor=1, assignments=[], configs=[])
        for number in range(2_001)
    ]
    response = wire.ask("create_topics", 7, Struct(topics=wanted, timeout=1, validate_only=False))
    assert [each.error_code for each in response.topics] == [ErrorCode.policy_violation] * 2_001
    found = described(wire, 9, [Struct(name=each.name) for each in wanted[:3]])
    assert {topic.error_code for topic in found.topics} == {ErrorCode.unknown_topic_or_partition}
