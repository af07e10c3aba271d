"""Agents and clients in zones: who is called leader, and who is sent elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from agent.cluster.brokers import choose, replicas, zone_of
from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from catalog.model import Broker
from tests.agent.kafka.coordinators import LASTING, die, two_brokers
from tests.agent.kafka.in_process_clients import PATIENCE_SECONDS, produce
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

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
def test_a_client_s_name_gives_its_zone(client_id: str | None, zone: str | None) -> None:
    assert zone_of(client_id) == zone


@given(_RACKS, st.sampled_from(["a", "b", None]), st.binary(max_size=8))
def test_a_partition_has_one_broker_in_each_zone(
    racks: list[str | None], zone: str | None, subject: bytes
) -> None:
    """The client's own zone comes first, and without agents there it is as for everyone."""
    brokers = brokers_in(racks)
    found = replicas(brokers, subject, zone)
    assert {each.rack for each in found} >= {rack for rack in racks if rack is not None}
    assert len({each.rack for each in found}) == len(found)
    if zone in racks and zone is not None:
        assert found[0].rack == zone
        assert found[0] == choose([each for each in brokers if each.rack == zone], subject)
    else:
        assert found[0] == choose(brokers, subject)


@given(_RACKS, st.integers(0, 7), st.binary(max_size=8))
def test_a_broker_that_goes_moves_only_its_own_partitions(
    racks: list[str | None], going: int, subject: bytes
) -> None:
    brokers = brokers_in(racks)
    left = [each for each in brokers if each.node_id != going]
    if left and replicas(brokers, subject, "a")[0].node_id != going:
        assert replicas(left, subject, "a")[0] == replicas(brokers, subject, "a")[0]


@pytest.fixture
def zones(start_broker: Callable[..., BrokerThread]) -> dict[str, BrokerThread]:
    """An agent in zone a and one in zone b."""
    racks = iter("ab")
    started = two_brokers(lambda: start_broker(rack=next(racks), **LASTING))
    return dict(zip("ab", started, strict=True))


def node_id(broker: BrokerThread) -> int:
    groups = broker.agent._groups
    assert groups is not None
    return groups.ownership._brokers.own.node_id


def leaders(broker: BrokerThread, client_id: str | None) -> set[tuple[int, int]]:
    """(leader, number of replicas) of each partition, as both APIs tell a client of that name."""
    with Wire(broker.host_and_port, client_id=client_id) as wire:
        answer = wire.ask("metadata", 13, Struct(topics=[Struct(name="granite", topic_id=None)]))
        paged = wire.ask(
            "describe_topic_partitions",
            0,
            Struct(topics=[Struct(name="granite")], response_partition_limit=100, cursor=None),
        )
        assert {each.rack for each in answer.brokers} <= {"a", "b"}
    return {
        (part.leader_id, len(part.replica_nodes))
        for each in (answer, paged)
        for part in each.topics[0].partitions
    }


def test_clients_are_led_to_agents_of_their_zone(zones: dict[str, BrokerThread]) -> None:
    """Whichever agent is asked; when the last agent of a zone is gone, its clients are led elsewhere."""
    zones["a"].create_topic("granite", 8)
    ids = {zone: node_id(broker) for zone, broker in zones.items()}
    for asked in zones.values():
        for zone in "ab":
            assert leaders(asked, f"chisel,siltstone_az={zone}") == {(ids[zone], 2)}
        assert {leader for leader, _ in leaders(asked, "chisel")} == set(ids.values())
    with Wire(zones["a"].host_and_port) as wire:
        shown = wire.ask("describe_cluster", 2, Struct(endpoint_type=1)).brokers
        assert {each.rack for each in shown} == {"a", "b"}
    die(zones["b"])
    until(lambda: leaders(zones["a"], "siltstone_az=b") == {(ids["a"], 1)})


def test_fetches_name_an_agent_in_the_client_s_rack(zones: dict[str, BrokerThread]) -> None:
    """No records come with it; offsets that the log does not have are refused where they are asked for."""
    zones["a"].create_topic("granite")
    produce(zones["a"].address, "granite", [(None, b"x")])

    def fetch(at: str, rack: str, offset: int, version: int = 12) -> Struct:
        wanted = Struct(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
        with Wire(zones[at].host_and_port) as wire:
            asked = Struct(
                replica_id=-1,
                max_wait=20_000,
                min_bytes=1,
                max_bytes=1 << 20,
                topics=[Struct(topic="granite", partitions=[wanted])],
                rack_id=rack,
            )
            answer: Struct = wire.ask("fetch", version, asked).responses[0].partitions[0]
            return answer

    sent = fetch("a", "b", 0)
    assert sent.preferred_read_replica == node_id(zones["b"])
    assert (sent.high_watermark, len(sent.records)) == (1, 0)
    for at, rack in [("a", "a"), ("b", "b"), ("a", "nowhere"), ("a", "")]:
        served = fetch(at, rack, 0)
        assert served.preferred_read_replica == -1
        assert len(served.records) > 0
    assert fetch("a", "b", 5).error_code == ErrorCode.offset_out_of_range


def test_a_consumer_reads_in_its_own_rack_while_it_can(zones: dict[str, BrokerThread]) -> None:
    """As librdkafka does, it follows the hint, and comes back when the agent there dies."""
    zones["a"].create_topic("granite", 2)
    addresses = ",".join(broker.address for broker in zones.values())
    consumer = Consumer({"bootstrap.servers": addresses, "group.id": "unused", "client.rack": "b"})
    consumer.assign([TopicPartition("granite", number, 0) for number in range(2)])

    def read(count: int) -> None:
        values: set[tuple[int | None, bytes | None]] = set()
        while len(values) < count:
            message = consumer.poll(PATIENCE_SECONDS)
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
    die(zones["b"])
    produce_both(b"second")
    read(2)
    assert served("a") > 0
    consumer.close()
