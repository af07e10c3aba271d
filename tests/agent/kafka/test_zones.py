"""Agents and clients in zones: leaders and preferred read replicas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from agent.cluster import brokers as brokers_module
from agent.cluster.brokers import choose, replicas, zone_of
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from catalog.model import Broker
from tests.agent.kafka.coordinators import NO_EXPIRY, kill, two_brokers
from tests.agent.kafka.in_process_clients import TIMEOUT_SECONDS, produce
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.agent.kafka.brokers import BrokerThread

_RACKS = st.lists(st.sampled_from(["a", "b", "c", None]), min_size=1, max_size=8)


def brokers_in(racks: list[str | None]) -> list[Broker]:
    return [Broker(node_id=at, host="h", port=at, rack=rack) for at, rack in enumerate(racks)]


@pytest.mark.parametrize(
    ("client_id", "zone"),
    [
        ("siltstone_az=a", "a"),
        ("chisel,siltstone_az=eu-west-1a, more", "eu-west-1a"),
        ("chisel, siltstone_az=", None),
        ("siltstone_az", None),
        ("", None),
        (None, None),
    ],
)
def test_the_client_id_contains_the_zone(client_id: str | None, zone: str | None) -> None:
    assert zone_of(client_id) == zone


@given(_RACKS, st.sampled_from(["a", "b", None]), st.binary(max_size=8))
def test_a_partition_has_one_broker_in_each_zone(
    racks: list[str | None], zone: str | None, subject: bytes
) -> None:
    """The client's zone comes first. Without agents in it, the choice is that of clients without a zone."""
    brokers = brokers_in(racks)
    chosen = replicas(brokers, subject, zone)
    assert {each.rack for each in chosen} >= {rack for rack in racks if rack is not None}
    assert len({each.rack for each in chosen}) == len(chosen)
    if zone in racks and zone is not None:
        assert chosen[0].rack == zone
        assert chosen[0] == choose([each for each in brokers if each.rack == zone], subject)
    else:
        assert chosen[0] == choose(brokers, subject)


@given(_RACKS, st.integers(0, 7), st.binary(max_size=8))
def test_removing_a_broker_moves_only_its_own_partitions(
    racks: list[str | None], removed: int, subject: bytes
) -> None:
    brokers = brokers_in(racks)
    remaining = [each for each in brokers if each.node_id != removed]
    if remaining and replicas(brokers, subject, "a")[0].node_id != removed:
        assert replicas(remaining, subject, "a")[0] == replicas(brokers, subject, "a")[0]


@pytest.fixture
def zones(start_broker: Callable[..., BrokerThread]) -> dict[str, BrokerThread]:
    """Start one agent in zone a and one in zone b."""
    racks = iter("ab")
    started = two_brokers(lambda: start_broker(rack=next(racks), **NO_EXPIRY))
    return dict(zip("ab", started, strict=True))


def node_id(broker: BrokerThread) -> int:
    groups = broker.agent.kafka.groups
    assert groups is not None
    return groups.ownership._brokers.own.node_id


def leaders(broker: BrokerThread, client_id: str | None) -> set[tuple[int, int]]:
    """Return leader and replica count of each partition, as both APIs report them to that client."""
    with Wire(broker.host_and_port, client_id=client_id) as wire:
        response = wire.ask("metadata", 13, Struct(topics=[Struct(name="granite", topic_id=None)]))
        paged = wire.ask(
            "describe_topic_partitions",
            0,
            Struct(topics=[Struct(name="granite")], response_partition_limit=100, cursor=None),
        )
        assert {each.rack for each in response.brokers} <= {"a", "b"}
    return {
        (part.leader_id, len(part.replica_nodes))
        for each in (response, paged)
        for part in each.topics[0].partitions
    }


def test_leaders_are_in_the_clients_zone(zones: dict[str, BrokerThread]) -> None:
    """At every agent. Without agents in the zone, leaders are in another one."""
    zones["a"].create_topic("granite", 32)  # of 8, one agent may lead all by chance
    ids = {zone: node_id(broker) for zone, broker in zones.items()}
    for broker in zones.values():
        for zone in "ab":
            assert leaders(broker, f"chisel,siltstone_az={zone}") == {(ids[zone], 2)}
        assert {leader for leader, _ in leaders(broker, "chisel")} == set(ids.values())
    with Wire(zones["a"].host_and_port) as wire:
        described = wire.ask("describe_cluster", 2, Struct(endpoint_type=1)).brokers
        assert {each.rack for each in described} == {"a", "b"}
    kill(zones["b"])
    until(lambda: leaders(zones["a"], "siltstone_az=b") == {(ids["a"], 1)})


def test_each_partition_is_in_the_log_directory_of_one_agent(
    zones: dict[str, BrokerThread], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated request hashes no broker again."""
    zones["a"].create_topic("granite", 20)
    hashed, score = [0], brokers_module._score

    def count(subject: bytes, broker: Broker) -> bytes:
        hashed[0] += not subject.startswith(b"group:")
        return score(subject, broker)

    def listed(zone: str) -> set[int]:
        with Wire(zones[zone].host_and_port) as wire:
            (store,) = wire.ask("describe_log_dirs", 4, Struct(topics=None)).results
        return {part.partition_index for topic in store.topics for part in topic.partitions}

    found = {zone: listed(zone) for zone in zones}
    assert found["a"] | found["b"] == {*range(20)}
    assert not found["a"] & found["b"]
    monkeypatch.setattr(brokers_module, "_score", count)
    assert {zone: listed(zone) for zone in zones} == found
    assert hashed == [0]


def test_a_fetch_from_another_rack_gets_a_preferred_read_replica(zones: dict[str, BrokerThread]) -> None:
    """Without records. An offset out of range is rejected and not redirected."""
    zones["a"].create_topic("granite")
    produce(zones["a"].address, "granite", [(None, b"x")])

    def fetch(at: str, rack: str, offset: int, version: int = 12) -> Struct:
        wanted = Struct(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        with Wire(zones[at].host_and_port) as wire:
            request = Struct(
                replica_id=-1,
                max_wait=20_000,
                min_bytes=1,
                max_bytes=1 << 20,
                topics=[Struct(topic="granite", partitions=[wanted])],
                rack_id=rack,
            )
            response: Struct = wire.ask("fetch", version, request).responses[0].partitions[0]
            return response

    redirected = fetch("a", "b", 0)
    assert redirected.preferred_read_replica == node_id(zones["b"])
    assert (redirected.high_watermark, len(redirected.records)) == (1, 0)
    for at, rack in [("a", "a"), ("b", "b"), ("a", "nowhere"), ("a", "")]:
        served = fetch(at, rack, 0)
        assert served.preferred_read_replica == -1
        assert len(served.records) > 0
    assert fetch("a", "b", 5).error_code == ErrorCode.offset_out_of_range


def test_a_fetch_of_a_local_topic_is_served_by_its_leader_in_any_rack(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    """The agent in the client's rack does not have the log."""
    racks = iter("ab")
    leader, _ = two_brokers(
        lambda: start_broker(
            rack=(rack := next(racks)),
            local_directories=(tmp_path / rack,) if rack == "a" else (),
            **NO_EXPIRY,
        )
    )
    leader.create_topic("granite", storage_mode="local")
    produce(leader.address, "granite", [(None, b"x")])
    wanted = Struct(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
    request = Struct(
        max_wait=20_000,
        min_bytes=1,
        max_bytes=1 << 20,
        topics=[Struct(topic="granite", partitions=[wanted])],
        rack_id="b",
    )
    with Wire(leader.host_and_port) as wire:
        served = wire.ask("fetch", 12, request).responses[0].partitions[0]
    assert served.preferred_read_replica == -1
    assert len(served.records) > 0


def test_a_consumer_reads_in_its_own_rack_while_an_agent_is_there(zones: dict[str, BrokerThread]) -> None:
    """Librdkafka follows the preferred read replica, and returns to the leader when that agent fails."""
    zones["a"].create_topic("granite", 2)
    addresses = ",".join(broker.address for broker in zones.values())
    consumer = Consumer({"bootstrap.servers": addresses, "group.id": "unused", "client.rack": "b"})
    consumer.assign([TopicPartition("granite", number, 0) for number in range(2)])

    def read(count: int) -> None:
        values: set[tuple[int | None, bytes | None]] = set()
        while len(values) < count:
            message = consumer.poll(TIMEOUT_SECONDS)
            assert message is not None
            if message.error() is None:
                values.add((message.partition(), message.value()))

    def produce_both(value: bytes) -> None:
        for partition in range(2):
            produce(zones["a"].address, "granite", [(None, value)], partition=partition)

    def served(zone: str) -> float:
        return float(zones[zone].agent.metrics.fetched_bytes._value.get())

    produce_both(b"first")
    read(2)
    assert served("a") == 0
    assert served("b") > 0
    kill(zones["b"])
    produce_both(b"second")
    read(2)
    assert served("a") > 0
    consumer.close()
