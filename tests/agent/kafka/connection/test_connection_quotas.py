"""How many connections of Kafka clients there may be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from agent.kafka.codec import Struct
from agent.kafka.connection.server import ConnectionQuotas
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.agent.kafka.brokers import BrokerThread

_MOST = 5
_MAX_PER_IP = 3


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.sampled_from("abc"))))
def test_there_are_never_more_than_there_may_be(steps: list[tuple[bool, int, str]]) -> None:
    """In all and from one host, whoever comes and goes; and nobody is refused while there is a place."""
    quotas = ConnectionQuotas(_MOST, _MAX_PER_IP, lambda: 0.0)
    held: dict[int, str] = {}
    for comes, who, host in steps:
        if not comes or who in held:
            quotas.release(who)
            held.pop(who, None)
            continue
        has_place = len(held) < _MOST and list(held.values()).count(host) < _MAX_PER_IP
        assert quotas.acquire(who, host) == has_place
        if has_place:
            held[who] = host
        assert len(quotas) == len(held)


def test_refusals_are_logged_once_a_minute() -> None:
    now = 100.0
    quotas = ConnectionQuotas(2, 1, lambda: now)
    with capture_logs() as logs:
        assert quotas.acquire(1, "a")
        assert not quotas.acquire(2, "a")
        assert not quotas.acquire(3, "a")
        assert quotas.acquire(4, "b")
        now += 60
        assert not quotas.acquire(5, "c")
    assert [(line["setting"], line["limit"], line["client"]) for line in logs] == [
        ("max_connections_per_ip", 1, "a"),
        ("max_connections", 2, "c"),
    ]


def test_one_connection_too_many_is_closed_at_once(start_broker: Callable[..., BrokerThread]) -> None:
    """Those that are there stay, and there is a place again when one of them goes."""
    broker = start_broker(kafka_max_connections=2)
    server = broker.agent._kafka
    assert server is not None
    first, second = Wire(broker.host_and_port), Wire(broker.host_and_port)
    assert not _is_refused(first)
    assert not _is_refused(second)
    with Wire(broker.host_and_port) as third:
        assert third.is_closed()
    assert not _is_refused(first)
    second.socket.close()
    until(lambda: len(server._quotas) == 1)
    with Wire(broker.host_and_port) as fourth:
        assert not _is_refused(fourth)
    first.socket.close()
    until(lambda: not server._connections)
    metrics = broker.agent.metrics.render().decode()
    assert 'siltstone_kafka_connections_closed_total{reason="refused"} 1.0' in metrics
    assert "siltstone_kafka_connections 0.0" in metrics


def _is_refused(wire: Wire) -> bool:
    answer = wire.ask("api_versions", 0, Struct())
    return bool(answer.error_code)
