"""Several listeners of an agent: a client sees the endpoints of the listener that it connected to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from agent.kafka.api_registry import APIS
from agent.kafka.apis.configs.resources import ResourceType
from agent.kafka.codec import Struct
from agent.kafka.codec.schema import schema_of
from agent.kafka.errors import ErrorCode
from agent.listeners import KafkaListener
from catalog.model import PartitionId
from tests.agent.kafka.coordinators import NO_EXPIRY, two_brokers
from tests.agent.kafka.wire import Wire, filled_request, request_frame

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.agent.kafka.brokers import BrokerThread

pytestmark = [pytest.mark.integration]

_PLAIN = KafkaListener(port=0)
_INNER = KafkaListener(name="INNER", port=0, advertised_host="inner.example.org")
_GROUPS = [f"masons-{number}" for number in range(16)]


@pytest.fixture
def pair(start_broker: Callable[..., BrokerThread], tmp_path: Path) -> tuple[BrokerThread, BrokerThread]:
    """Start one agent with two listeners, and one that has only the first of them."""
    both = iter([((_PLAIN, _INNER), "a"), ((_PLAIN,), "b")])

    def start() -> BrokerThread:
        listeners, disk = next(both)
        directories = (tmp_path / disk,)
        return start_broker(kafka_listeners=listeners, local_directories=directories, **NO_EXPIRY)

    first, second = two_brokers(start)
    return first, second


def _wire(address: str) -> Wire:
    host, _, port = address.rpartition(":")
    return Wire((host, int(port)))


def test_a_client_sees_the_endpoints_of_its_listener(pair: tuple[BrokerThread, BrokerThread]) -> None:
    """An agent that lacks the listener is not shown on it."""
    first, second = pair
    inner_port = int(first.addresses["kafka.INNER"].rpartition(":")[2])
    first.create_topic("granite", partitions=16)
    everywhere = {first.host_and_port, second.host_and_port}
    on_inner = {("inner.example.org", inner_port)}
    for address, expected in ((first.address, everywhere), (first.addresses["kafka.INNER"], on_inner)):
        with _wire(address) as wire:
            found = wire.ask("metadata", 12, Struct(topics=None))
            assert {(each.host, each.port) for each in found.brokers} == expected
            nodes = {each.node_id for each in found.brokers}
            assert found.controller_id in nodes
            (topic,) = found.topics
            assert {each.leader_id for each in topic.partitions} == nodes
            cluster = wire.ask("describe_cluster", 1, Struct(endpoint_type=1))
            assert {(each.host, each.port) for each in cluster.brokers} == expected
            assert cluster.controller_id in nodes


def test_a_coordinator_that_lacks_the_listener_is_not_available(
    pair: tuple[BrokerThread, BrokerThread],
) -> None:
    first, _ = pair
    keys = Struct(key_type=0, coordinator_keys=_GROUPS)
    with _wire(first.address) as wire:
        everywhere = wire.ask("find_coordinator", 4, keys).coordinators
    with _wire(first.addresses["kafka.INNER"]) as wire:
        on_inner = wire.ask("find_coordinator", 4, keys).coordinators
    assert len({each.node_id for each in everywhere}) == 2
    for plain, inner in zip(everywhere, on_inner, strict=True):
        if (plain.host, plain.port) == first.host_and_port:
            assert (inner.error_code, inner.node_id, inner.host) == (0, plain.node_id, "inner.example.org")
        else:
            assert (inner.error_code, inner.node_id) == (ErrorCode.coordinator_not_available, -1)


def test_a_leader_that_lacks_the_listener_is_named_as_the_cause(
    pair: tuple[BrokerThread, BrokerThread],
) -> None:
    """Metadata returns LISTENER_NOT_FOUND from version 6 on, and LEADER_NOT_AVAILABLE before."""
    first, second = pair
    topic = first.create_topic("quarry", storage_mode="local")
    node = second.agent.data.local_logs.node_id
    first.catalog.local_leaders.claim({PartitionId(topic.topic_id, 0): node})
    with _wire(first.address) as wire:
        (shown,) = wire.ask("metadata", 7, Struct(topics=None)).topics[0].partitions
        assert (shown.error_code, shown.leader_id) == (ErrorCode.none, node)
    with _wire(first.addresses["kafka.INNER"]) as wire:
        for version, code in (
            (7, ErrorCode.listener_not_found),
            (5, ErrorCode.leader_not_available),
        ):
            (hidden,) = wire.ask("metadata", version, Struct(topics=None)).topics[0].partitions
            assert (hidden.error_code, hidden.leader_id) == (code, -1)


def test_no_response_names_the_endpoint_of_another_listener(pair: tuple[BrokerThread, BrokerThread]) -> None:
    """Except the settings of the broker, which have all of them, as in Kafka."""
    first, _ = pair
    first.create_topic("granite")
    port = first.addresses["kafka.INNER"].rpartition(":")[2]
    named = set()
    for api in APIS:
        if api.name in {"join_group", "sync_group"}:  # they wait
            continue
        schema = schema_of(api.name, api.max_version, "request")
        request = filled_request(schema, "granite", resource_type=ResourceType.TOPIC, key_type=0, acks=1)
        with _wire(first.address) as wire:
            wire.send(request_frame(api.name, api.max_version, 1, request))
            response = wire.receive()
        if response is not None and b"inner.example.org" in bytes(response[1]):
            named.add(api.name)
    assert named == set()
    with _wire(first.address) as wire:
        resource = Struct(
            resource_type=ResourceType.BROKER,
            resource_name=str(first.agent.data.local_logs.node_id),
            configuration_keys=None,
        )
        (result,) = wire.ask("describe_configs", 4, Struct(resources=[resource])).results
    assert f"INNER://inner.example.org:{port}" in {
        name
        for each in result.configs
        if each.name == "advertised.listeners"
        for name in each.value.split(",")
    }
