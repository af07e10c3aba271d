"""Quotas of Kafka connections."""

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

_MAX = 5
_MAX_PER_IP = 3


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 9), st.sampled_from("abc"))))
def test_connections_never_exceed_the_quotas(steps: list[tuple[bool, int, str]]) -> None:
    """In total and per host. No connection is rejected below the quotas."""
    quotas = ConnectionQuotas(_MAX, _MAX_PER_IP, lambda: 0.0)
    open_connections: dict[int, str] = {}
    for opens, connection, host in steps:
        if not opens or connection in open_connections:
            quotas.release(connection)
            open_connections.pop(connection, None)
            continue
        is_within_quota = (
            len(open_connections) < _MAX and list(open_connections.values()).count(host) < _MAX_PER_IP
        )
        assert quotas.acquire(connection, host) == is_within_quota
        if is_within_quota:
            open_connections[connection] = host
        assert len(quotas) == len(open_connections)


def test_rejections_are_logged_once_a_minute() -> None:
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


def test_a_connection_beyond_the_quota_is_closed_at_once(start_broker: Callable[..., BrokerThread]) -> None:
    """Other connections stay open. A new one is accepted after one of them closes."""
    broker = start_broker(kafka_max_connections=2)
    server = broker.agent.kafka.server
    assert server is not None
    first, second = Wire(broker.host_and_port), Wire(broker.host_and_port)
    assert not _is_rejected(first)
    assert not _is_rejected(second)
    with Wire(broker.host_and_port) as third:
        assert third.is_closed()
    assert not _is_rejected(first)
    second.socket.close()
    until(lambda: len(server._quotas) == 1)
    with Wire(broker.host_and_port) as fourth:
        assert not _is_rejected(fourth)
    first.socket.close()
    until(lambda: not server._connections)
    metrics = broker.agent.metrics.render().decode()
    assert 'siltstone_kafka_connections_closed_total{reason="quota"} 1.0' in metrics
    assert "siltstone_kafka_connections 0.0" in metrics


def test_silent_connections_give_way_to_new_ones(start_broker: Callable[..., BrokerThread]) -> None:
    """The oldest one that has never sent a request is closed; those that have sent one stay open."""
    broker = start_broker(kafka_max_connections=3)
    with Wire(broker.host_and_port) as active, Wire(broker.host_and_port) as silent:
        assert not _is_rejected(active)
        with Wire(broker.host_and_port) as other, Wire(broker.host_and_port) as new:
            assert not _is_rejected(new)
            assert silent.is_closed()
            assert not _is_rejected(other)
            assert not _is_rejected(active)


def _is_rejected(wire: Wire) -> bool:
    response = wire.ask("api_versions", 0, Struct())
    return bool(response.error_code)
