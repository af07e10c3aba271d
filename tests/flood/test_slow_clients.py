"""Clients that are silent or slow, in large numbers, and the service for others meanwhile."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING, Final

import httpx
import pytest

from agent.kafka.codec import Struct
from agent.settings import MIB
from object_store.open import StoreConfig
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire
from tests.flood.flooded_agent import TIMEOUT_SECONDS, FloodedAgent

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.fixtures.postgres import PostgresForTests

pytestmark = pytest.mark.integration
_MAX_HTTP: Final = 40
_PATH: Final = "/v1/topics/t/partitions/0/records"


@pytest.fixture(scope="module")
def agent(postgres: PostgresForTests, tmp_path_factory: pytest.TempPathFactory) -> Iterator[FloodedAgent]:
    """Run an agent with few connections and short times."""
    url = postgres.create()
    store = StoreConfig(url=str(tmp_path_factory.mktemp("objects")))
    with FloodedAgent(
        url, store, http_max_connections=_MAX_HTTP, http_head_timeout_ms=700, kafka_scarce_memory_ms=400
    ) as started:
        with started.http() as client:
            client.post("/v1/topics", json={"name": "t"}).raise_for_status()
        yield started
    postgres.drop(url)


@contextlib.contextmanager
def silent_sockets(address: tuple[str, int], count: int, first: bytes = b"") -> Iterator[list[socket.socket]]:
    """Open connections that send `first` and nothing more."""
    with contextlib.ExitStack() as stack:
        opened = []
        for _ in range(count):
            connected = stack.enter_context(socket.create_connection(address, timeout=TIMEOUT_SECONDS))
            if first:
                connected.sendall(first)
            opened.append(connected)
        yield opened


def is_closed(connected: socket.socket) -> bool:
    """Wait until the agent closes a connection without a response."""
    try:
        return connected.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize("first", [b"", b"GET /met", b"GET / HTTP/1.1\r\na: b\r\n"])
def test_silent_clients_take_no_connection_from_others(agent: FloodedAgent, first: bytes) -> None:
    """The one that has been silent for the longest time is closed, and the rest after a while."""
    with silent_sockets(agent.address("http"), 2 * _MAX_HTTP, first) as opened:
        with agent.http() as client:
            assert client.get("/v1/topics").status_code == 200
        assert all(is_closed(each) for each in opened)


def test_silent_clients_do_not_keep_probes_from_a_response(agent: FloodedAgent) -> None:
    url = f"http://{agent.addresses['health']}"
    with silent_sockets(agent.address("health"), 100), silent_sockets(agent.address("http"), 100):
        for route in ("/livez", "/readyz", "/healthz"):
            response = httpx.get(f"{url}{route}", timeout=TIMEOUT_SECONDS, trust_env=False)
            assert response.status_code == (503 if response.json()["problems"] else 200)
        assert httpx.get(f"{url}/metrics", timeout=TIMEOUT_SECONDS, trust_env=False).status_code == 404


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 300,
        b"GET / HTTP/1.1\r\na: " + b"b" * 1_000_000,
        b"GET /" + b"a" * 1_000_000,
        b"GET /metrics HTTP/1.1\r\n\r\n" * 100,
    ],
    ids=["headers", "header", "path", "pipeline"],
)
def test_the_head_of_a_request_is_bounded(agent: FloodedAgent, head: bytes) -> None:
    with silent_sockets(agent.address("http"), 1) as (connected,):
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            connected.sendall(head)
        received = b""
        with contextlib.suppress(ConnectionResetError):
            while part := connected.recv(65536):
                received += part
    assert b"400 Bad Request" in received or not received
    agent.check()


def test_a_read_ends_when_its_client_has_left(agent: FloodedAgent) -> None:
    cancelled = 'siltstone_http_requests_total{[^}]*status="499"'
    request = f"GET {_PATH}?max_wait_ms=60000 HTTP/1.1\r\nhost: localhost\r\n\r\n".encode()

    def count() -> float:
        with agent.http() as client:
            return client.get("/metrics").text.count('status="499"')

    assert count() == 0, cancelled
    with silent_sockets(agent.address("http"), 1, request):
        pass
    until(lambda: count() == 1)


def test_slow_senders_of_large_requests_do_not_block_the_large_requests_of_others(
    agent: FloodedAgent,
) -> None:
    """They announce more than the memory of all requests and send little."""
    announced = struct.pack(">i", 31 * MIB) + b"\0\x12" + bytes(10_000)
    value = "x" * (20 * MIB)
    with silent_sockets(agent.address("kafka"), 8, announced):
        until(lambda: agent.metric("siltstone_request_bytes") > 31 * MIB)
        with agent.http() as client:
            response = client.post("/v1/topics/t/records", json={"records": [{"value": value}]})
        assert response.json()["accepted"] == 1
        large = Struct(
            topics=[Struct(name="t" * 200, topic_id=None)] * 15_000, allow_auto_topic_creation=False
        )
        with Wire(agent.address("kafka")) as wire:
            assert len(wire.ask("metadata", 9, large).topics) == 15_000
        agent.check()


def test_while_memory_is_scarce_slow_senders_are_disconnected(agent: FloodedAgent) -> None:
    announced = struct.pack(">i", 31 * MIB) + b"\0\x12" + bytes(10_000)
    half = agent.settings.max_requests_bytes // 2
    with silent_sockets(agent.address("kafka"), 40, announced + bytes(900_000)):
        until(lambda: agent.metric("siltstone_kafka_connections_closed_total") > 0)
        until(lambda: agent.metric("siltstone_request_bytes") <= half)
    until(lambda: agent.metric("siltstone_request_bytes") == 0)
