"""Client quotas of an agent: clients set them, and exceed them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from agent.kafka.codec import Struct
from agent.kafka.errors import ErrorCode
from agent.kafka.throttling import RequestMeter
from agent.listeners import KafkaListener, SaslMechanism, SecurityProtocol
from catalog.config.quota_entities import DEFAULT, QuotaEntity
from catalog.security.scram import ScramMechanism, new_credential
from tests.agent.kafka.connection.test_connection import only_partition, produce_request
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire, read_response, request_frame

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from catalog.open import Catalog
    from core.ids import Ids
    from tests.agent.kafka.brokers import BrokerThread

_EXACT, _DEFAULT, _ANY = 0, 1, 2
_PRODUCE, _FETCH = "producer_byte_rate", "consumer_byte_rate"
_USER, _ID, _IP = "user", "client-id", "ip"
Parts: TypeAlias = "Mapping[str, str | None]"


def entry(parts: Parts, **values: float | None) -> Struct:
    """Return an alteration; None removes a quota and is the name of a default."""
    return Struct(
        entity=[Struct(entity_type=kind, entity_name=name) for kind, name in parts.items()],
        ops=[Struct(key=key, value=value or 0.0, remove=value is None) for key, value in values.items()],
    )


def alter(wire: Wire, *entries: Struct, version: int = 1, validate_only: bool = False) -> list[int]:
    """Return the error codes of AlterClientQuotas."""
    request = Struct(entries=list(entries), validate_only=validate_only)
    return [each.error_code for each in wire.ask("alter_client_quotas", version, request).entries]


def set_quotas(broker: BrokerThread, parts: Parts, **values: float | None) -> None:
    """Change quotas over a connection that is closed afterwards."""
    with Wire(broker.host_and_port) as wire:
        assert alter(wire, entry(parts, **values)) == [0]


def describe(
    wire: Wire, *components: tuple[str, int, str | None], strict: bool = False, version: int = 1
) -> list[tuple[Parts, dict[str, float]]]:
    """Return the entities that match, with their quotas."""
    response = wire.ask("describe_client_quotas", version, described(*components, strict=strict))
    assert response.error_code == 0
    return [
        (
            {part.entity_type: part.entity_name for part in each.entity},
            {value.key: value.value for value in each.values},
        )
        for each in response.entries
    ]


def described(*components: tuple[str, int, str | None], strict: bool = False) -> Struct:
    found = [Struct(entity_type=kind, match_type=match, match=name) for kind, match, name in components]
    return Struct(components=found, strict=strict)


def test_clients_alter_and_describe_quotas(broker: BrokerThread) -> None:
    """Each entity of a request for itself. `validate_only` changes nothing."""
    with Wire(broker.host_and_port) as wire:
        alice, defaults = {_USER: "alice"}, {_USER: None, _ID: None}
        assert alter(wire, entry(alice, **{_PRODUCE: 5.0}), validate_only=True) == [0]
        assert describe(wire) == []
        codes = alter(
            wire,
            entry(alice, **{_PRODUCE: 5.0, "request_percentage": 1.5}),
            entry(defaults, **{_FETCH: 7.0}),
            entry({_IP: "::ffff:10.0.0.1"}, connection_creation_rate=2.0),
            entry({_USER: "bob"}, connection_creation_rate=2.0),
            entry({_USER: "carol"}, **{_PRODUCE: -1.0}),
            entry({"group": "g"}, **{_PRODUCE: 1.0}),
            entry({_USER: "eve"}, **{_PRODUCE: 1.0}),
            entry({_USER: "eve"}, **{_PRODUCE: 1.0}),
            version=0,
        )
        assert codes == [0, 0, 0, *[ErrorCode.invalid_request] * 4]
        by_alice = (alice, {_PRODUCE: 5.0, "request_percentage": 1.5})
        by_default, by_ip = (defaults, {_FETCH: 7.0}), ({_IP: "10.0.0.1"}, {"connection_creation_rate": 2.0})
        assert sorted(describe(wire, version=0), key=str) == sorted([by_alice, by_default, by_ip], key=str)
        assert describe(wire, (_USER, _EXACT, "alice")) == [by_alice]
        assert describe(wire, (_USER, _DEFAULT, None)) == [by_default]
        assert describe(wire, (_USER, _DEFAULT, None), strict=True) == []
        assert describe(wire, (_USER, _ANY, None), strict=True) == [by_alice]
        assert describe(wire, (_IP, _EXACT, "10.0.0.1")) == [by_ip]
        assert alter(wire, entry(alice, **{_PRODUCE: None, "request_percentage": None})) == [0]
        assert describe(wire, (_USER, _EXACT, "alice")) == []


@pytest.mark.parametrize(
    ("components", "code"),
    [
        ([("group", _ANY, None)], ErrorCode.unsupported_version),
        ([("", _ANY, None)], ErrorCode.invalid_request),
        ([(_USER, _ANY, None), (_USER, _ANY, None)], ErrorCode.invalid_request),
        ([(_USER, _EXACT, None)], ErrorCode.invalid_request),
        ([(_USER, _DEFAULT, "a")], ErrorCode.invalid_request),
        ([(_USER, 3, None)], ErrorCode.invalid_request),
        ([(_USER, _ANY, None), (_IP, _ANY, None)], ErrorCode.invalid_request),
    ],
)
def test_a_filter_is_checked_as_in_kafka(
    components: list[tuple[str, int, str | None]], code: ErrorCode, broker: BrokerThread
) -> None:
    with Wire(broker.host_and_port) as wire:
        response = wire.ask("describe_client_quotas", 1, described(*components))
        assert (response.error_code, response.entries) == (code, None)


def muted(broker: BrokerThread) -> int:
    """Return the number of muted connections."""
    server = broker.agent.kafka.server
    assert server is not None
    return sum(each._muted is not None for each in server._connections)


def fetch_request(offset: int = 0, *, session_id: int = 0, epoch: int = -1, wait: int = 0) -> Struct:
    part = Struct(partition=0, fetch_offset=offset, partition_max_bytes=10_000_000, current_leader_epoch=-1)
    return Struct(
        max_wait=wait,
        min_bytes=1,
        max_bytes=10_000_000,
        isolation_level=0,
        session_id=session_id,
        session_epoch=epoch,
        topics=[Struct(topic="granite", partitions=[part])],
        forgotten_topics_data=[],
        rack_id="",
    )


def fetched(response: Struct) -> int:
    """Return the bytes of records in a response."""
    return sum(len(part.records or b"") for topic in response.responses for part in topic.partitions)


@pytest.mark.parametrize("fast", [True, False])
def test_a_client_beyond_its_produce_rate_is_muted_and_retains_no_memory(
    start_broker: Callable[..., BrokerThread], fast: bool
) -> None:
    """Its response states the throttle time. If the client disconnects, the agent notices."""
    broker = start_broker(kafka_scarce_memory_ms=400)
    broker.create_topic("granite")
    set_quotas(broker, {_ID: None}, **{_PRODUCE: 100.0})
    version = 9 if fast else 3
    with Wire(broker.host_and_port, client_id="writer") as wire, Wire(broker.host_and_port) as other:
        first = wire.ask("produce", version, produce_request([b"x" * 100]))
        assert (first.throttle_time, only_partition(first).error_code) == (0, 0)
        large = produce_request([b"x" * 5000] if fast else [b"x" * 5000, b""])
        pipelined = [
            request_frame("produce", version, number, large, client_id="writer") for number in (1, 2)
        ]
        wire.send(b"".join(pipelined))
        responses = [wire.receive() for _ in pipelined]
        times = [read_response("produce", version, each[1]).throttle_time for each in responses if each]
        assert 0 < times[0] < times[1]  # the second request had arrived, and is charged, too
        assert muted(broker) == 1
        wire.send(request_frame("list_groups", 0, 3, Struct()))
        assert other.ask("list_groups", 0, Struct()).error_code == 0
        assert broker.agent.resources.request_budget.used == 0
        assert broker.agent.access.quotas._quotas.throttled() == 1
        metrics = broker.agent.metrics.render().decode()
        assert 'siltstone_quota_throttles_total{quota="producer_byte_rate"} 2.0' in metrics
    server = broker.agent.kafka.server
    assert server is not None
    until(lambda: not server._connections)


def test_without_quotas_no_request_is_measured(broker: BrokerThread, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither on the fast path nor elsewhere, and also after the last quota was removed."""
    measured: list[str] = []

    def meter(quotas: Any, api: str, *rest: Any) -> RequestMeter:  # noqa: ANN401  # passed on
        measured.append(api)
        return RequestMeter(quotas, api, *rest)

    monkeypatch.setattr("agent.kafka.dispatcher.RequestMeter", meter)
    broker.create_topic("granite")

    def send_all() -> None:
        with Wire(broker.host_and_port) as wire:
            for _ in range(2):
                wire.ask("produce", 9, produce_request([b"x"]))
                wire.ask("fetch", 12, fetch_request(wait=1))
                wire.ask("list_groups", 3, Struct(states_filter=[]))

    send_all()
    assert measured == []
    set_quotas(broker, {_USER: "nobody"}, **{_PRODUCE: 1.0})
    send_all()
    assert set(measured) == {"produce", "fetch", "list_groups"}
    set_quotas(broker, {_USER: "nobody"}, **{_PRODUCE: None})
    count = len(measured)
    send_all()
    assert len(measured) == count


def test_a_throttled_consumer_reads_nothing_and_loses_nothing(broker: BrokerThread) -> None:
    """On all its connections, with and without a session. One response has what the windows allow."""
    broker.create_topic("granite")
    address = broker.host_and_port
    with Wire(address) as wire:
        for _ in range(8):
            wire.ask("produce", 9, produce_request([b"x" * 1000]))
    set_quotas(broker, {_ID: "reader"}, **{_FETCH: 300.0})  # 3000 bytes in ten windows
    with ExitStack() as stack:
        first, second, third = (stack.enter_context(Wire(address, client_id="reader")) for _ in range(3))
        session = third.ask("fetch", 7, fetch_request(8, epoch=0))
        assert session.throttle_time == 0
        responses = [wire.ask("fetch", 7, fetch_request()) for wire in (first, second)]
        assert all(0 < fetched(response) <= 3000 for response in responses)
        assert responses[-1].throttle_time > 0
        empty = third.ask("fetch", 7, fetch_request(session_id=session.session_id, epoch=1))
        assert (empty.session_id, empty.responses, empty.error_code) == (session.session_id, [], 0)
        assert empty.throttle_time > 0
        assert muted(broker) == 2
    set_quotas(broker, {_ID: "reader"}, **{_FETCH: None})
    with Wire(address, client_id="reader") as wire:
        again = wire.ask("fetch", 7, fetch_request(session_id=session.session_id, epoch=2))
        assert again.error_code == 0
        assert fetched(again) > 8000


def test_requests_are_throttled_by_their_time(broker: BrokerThread) -> None:
    """Whatever the API, for a window at most. acks 0 is exempt."""
    broker.create_topic("granite")
    set_quotas(broker, {_ID: None}, request_percentage=1e-9)
    for name, version, request in (
        ("list_groups", 3, Struct(states_filter=[])),
        ("offset_delete", 0, Struct(group_id="g", topics=[])),
        ("fetch", 12, fetch_request(wait=1)),
        ("api_versions", 2, Struct()),
    ):
        with Wire(broker.host_and_port, client_id=name) as wire:
            assert 0 < wire.ask(name, version, request).throttle_time <= 1000
    with Wire(broker.host_and_port, client_id="acks 0") as wire:
        wire.send(request_frame("produce", 9, 1, produce_request([b"x"], acks=0), client_id="acks 0"))
        assert wire.ask("list_groups", 3, Struct(states_filter=[])).error_code == 0


def test_a_first_login_is_not_throttled_and_later_requests_of_its_kind_are(
    start_broker: Callable[..., BrokerThread], catalog: Catalog, ids: Ids
) -> None:
    """Clients without a name yet would share a limit."""
    catalog.users.alter(upsertions=[("ada", new_credential(ScramMechanism.SHA_256, "secret", ids))])
    sasl = KafkaListener(port=0, protocol=SecurityProtocol.SASL_PLAINTEXT, mechanisms=(SaslMechanism.PLAIN,))
    broker = start_broker(kafka_listeners=(sasl,))
    catalog.client_quotas.alter({QuotaEntity(client_id=DEFAULT): {"request_percentage": 1e-9}})
    until(lambda: broker.agent.access.quotas.active is not None)
    with Wire(broker.host_and_port) as wire:
        assert wire.ask("api_versions", 2, Struct()).throttle_time == 0
        assert wire.ask("sasl_handshake", 1, Struct(mechanism="PLAIN")).error_code == 0
        assert muted(broker) == 0
        token = Struct(auth_bytes=b"\0ada\0secret")
        assert wire.ask("sasl_authenticate", 1, token).error_code == 0
        assert 0 < wire.ask("api_versions", 2, Struct()).throttle_time <= 1000


def test_mutations_are_strict_in_new_versions_and_permissive_in_old_ones(broker: BrokerThread) -> None:
    """A quota of one a second allows eleven at once. A topic that exists is not charged."""
    set_quotas(broker, {_ID: "admin"}, controller_mutation_rate=1.0)
    exceeded = ErrorCode.throttling_quota_exceeded

    def create(wire: Wire, version: int, name: str, partitions: int) -> tuple[int, int]:
        topic = Struct(
            name=name, num_partitions=partitions, replication_factor=-1, assignments=[], configs=[]
        )
        request = Struct(topics=[topic], timeout=60_000, validate_only=False)
        response = wire.ask("create_topics", version, request)
        return response.topics[0].error_code, response.throttle_time

    with Wire(broker.host_and_port, client_id="admin") as wire:
        assert create(wire, 7, "a", 30) == (0, 0)
        code, throttle_ms = create(wire, 7, "b", 1)
        assert code == exceeded
        assert throttle_ms > 10_000
    with Wire(broker.host_and_port, client_id="admin") as wire:
        assert create(wire, 7, "a", 1) == (ErrorCode.topic_already_exists, 0)
        more = Struct(topics=[Struct(name="a", count=31, assignments=None)], timeout=60_000)
        assert wire.ask("create_partitions", 3, more).results[0].error_code == exceeded
    with Wire(broker.host_and_port, client_id="admin") as wire:
        gone = Struct(topics=[Struct(name="a", topic_id=None)], timeout=60_000)
        assert wire.ask("delete_topics", 6, gone).responses[0].error_code == exceeded
    with Wire(broker.host_and_port, client_id="admin") as wire:
        code, throttle_ms = create(wire, 5, "c", 1)
        assert code == 0
        assert throttle_ms > 10_000
    with Wire(broker.host_and_port, client_id="admin") as wire:
        metadata = Struct(topics=[Struct(name="d", topic_id=None)], allow_auto_topic_creation=True)
        wire.ask("metadata", 9, metadata)
        assert not broker.agent.kafka._automatic_topics._pending


def test_connections_beyond_the_rate_of_an_address_are_closed_later(broker: BrokerThread) -> None:
    """They take no place of other connections, and the agent stops at once."""
    set_quotas(broker, {_IP: None}, connection_creation_rate=1.0)
    server = broker.agent.kafka.server
    assert server is not None
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.host_and_port)) for _ in range(20)]
        assert wires[-1].is_closed()
        until(lambda: len(server._connections) == len(server._quotas))
        assert 9 <= len(server._quotas) <= 12
        assert wires[0].ask("list_groups", 0, Struct()).error_code == 0
    metrics = broker.agent.metrics.render().decode()
    assert 'siltstone_kafka_connections_closed_total{reason="connection_rate"}' in metrics
    broker.stop()


def test_connections_beyond_the_rate_of_the_agent_are_served_later(
    start_broker: Callable[..., BrokerThread],
) -> None:
    broker = start_broker(kafka_max_connection_creation_rate=20, quota_window_num=2)
    with ExitStack() as stack:
        wires = [stack.enter_context(Wire(broker.host_and_port)) for _ in range(23)]
        assert all(wire.ask("list_groups", 0, Struct()).error_code == 0 for wire in wires)
        assert muted(broker) == 0
