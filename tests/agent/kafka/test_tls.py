"""Agents with TLS on Kafka and HTTP listeners, and clients with right and wrong certificates."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from typing import TYPE_CHECKING, Any

import aiokafka  # type: ignore[import-untyped]  # it brings no types
import httpx
import pytest
from confluent_kafka.admin import AdminClient

from agent.kafka.codec import Struct
from agent.listeners import ClientAuth, HttpListener, KafkaListener, SecurityProtocol, TlsSettings
from tests.agent.kafka.coordinators import NO_EXPIRY
from tests.agent.kafka.in_process_clients import TIMEOUT_SECONDS, consume, produce
from tests.agent.kafka.waiting import until
from tests.agent.kafka.wire import Wire, request_frame
from tests.fixtures import kafka_tools
from tests.fixtures.certificates import Authority

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable
    from pathlib import Path

    from confluent_kafka import KafkaError

    from tests.agent.kafka.brokers import BrokerThread
    from tests.fixtures.certificates import Issued

pytestmark = [pytest.mark.integration]


class _Secured:
    """An agent with a plain listener, one with TLS, one with mutual TLS, and mutual HTTPS."""

    def __init__(self, start: Callable[..., BrokerThread], directory: Path) -> None:
        self.authority = Authority(directory)
        self.server = self.authority.issue("server", "localhost", "127.0.0.1")
        self.client = self.authority.issue("mason")
        one_way = TlsSettings(certificate=self.server.certificate, key=self.server.key)
        mutual = TlsSettings(
            certificate=self.server.certificate,
            key=self.server.key,
            client_ca=self.authority.file,
            client_auth=ClientAuth.REQUIRED,
            principal_mapping_rules="RULE:^CN=(.*)$/$1/",
        )
        self.broker = start(
            kafka_listeners=(
                KafkaListener(port=0),
                KafkaListener(name="TLS", port=0, protocol=SecurityProtocol.SSL, tls=one_way),
                KafkaListener(name="MUTUAL", port=0, protocol=SecurityProtocol.SSL, tls=mutual),
            ),
            http_listeners=(HttpListener(port=0, tls=mutual),),
            certificate_poll_ms=20,
            **NO_EXPIRY,
        )
        self.one_way = self.broker.addresses["kafka.TLS"]
        self.mutual = self.broker.addresses["kafka.MUTUAL"]

    def options(self, issued: Issued | None = None) -> dict[str, Any]:
        """Return the settings of librdkafka."""
        options: dict[str, Any] = {"security_protocol": "ssl", "ssl_ca_location": str(self.authority.file)}
        if issued is not None:
            options |= {
                "ssl_certificate_location": str(issued.certificate),
                "ssl_key_location": str(issued.key),
            }
        return options


@pytest.fixture
def secured(start_broker: Callable[..., BrokerThread], tmp_path: Path) -> _Secured:
    return _Secured(start_broker, tmp_path)


def _cause(address: str, options: dict[str, Any]) -> str:
    """Return the errors of a client that cannot connect, until it has named a reason."""
    errors: list[str] = []

    def note(error: KafkaError) -> None:
        errors.append(error.str())

    settings: dict[str, Any] = {name.replace("_", "."): value for name, value in options.items()}
    settings |= {"bootstrap.servers": address, "error_cb": note}
    admin = AdminClient(settings)
    end = time.monotonic() + TIMEOUT_SECONDS
    while not errors and time.monotonic() < end:
        admin.poll(0.05)
    return " | ".join(errors)


def test_clients_produce_and_consume_over_tls(secured: _Secured) -> None:
    """Records larger than any buffer arrive. The endpoints of other brokers have TLS, too."""
    broker = secured.broker
    broker.create_topic("granite")
    large = [(b"k", bytes([number]) * 900_000) for number in range(8)]
    produce(secured.one_way, "granite", large, **secured.options())
    produce(secured.mutual, "granite", [(b"k", b"small")], **secured.options(secured.client))
    found = consume(secured.mutual, "granite", 9, **secured.options(secured.client))
    assert [message.value() for message in found] == [*(value for _, value in large), b"small"]
    with_group = {**secured.options(), "group_id": "masons"}
    assert len(consume(secured.one_way, "granite", 9, **with_group)) == 9

    async def with_aiokafka() -> bytes:
        context = secured.client.context(secured.authority)
        consumer = aiokafka.AIOKafkaConsumer(
            "granite",
            bootstrap_servers=secured.mutual,
            security_protocol="SSL",
            ssl_context=context,
            auto_offset_reset="earliest",
        )
        await consumer.start()
        try:
            return bytes((await consumer.getone()).value[:4])
        finally:
            await consumer.stop()

    assert asyncio.run(with_aiokafka()) == bytes(4)
    server = broker.agent.kafka.server
    assert server is not None
    until(lambda: not server._connections)


def test_http_clients_use_tls_with_their_certificates(secured: _Secured) -> None:
    url = f"https://{secured.broker.http_address}"
    with httpx.Client(
        base_url=url,
        verify=secured.client.context(secured.authority),
        trust_env=False,
        timeout=TIMEOUT_SECONDS,
    ) as client:
        client.post("/v1/topics", json={"name": "granite"}).raise_for_status()
        body = {"records": [{"value": "x" * 1_000_000}]}
        client.post("/v1/topics/granite/records", json=body).raise_for_status()
        read = client.get("/v1/topics/granite/partitions/0/records")
        assert read.json()["records"][0]["value"] == "x" * 1_000_000
    with (
        httpx.Client(verify=secured.authority.context(), trust_env=False) as client,
        pytest.raises(httpx.TransportError),
    ):
        client.get(f"{url}/livez")


def test_wrong_certificates_and_hosts_are_rejected(
    secured: _Secured, start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other", "stranger")
    late = secured.authority.issue("late", is_expired=True)
    assert "alert" in _cause(secured.mutual, secured.options(late))
    assert "alert" in _cause(secured.mutual, secured.options())
    assert "alert" in _cause(secured.mutual, secured.options(stranger.issue("mallory")))
    distrusting = {**secured.options(), "ssl_ca_location": str(stranger.file)}
    assert "certificate verify failed" in _cause(secured.one_way, distrusting)
    elsewhere = secured.authority.issue("elsewhere", "agent-1.example.org")
    expired = secured.authority.issue("expired", "127.0.0.1", is_expired=True)
    listeners = [
        KafkaListener(
            name=name,
            port=0,
            protocol=SecurityProtocol.SSL,
            tls=TlsSettings(certificate=issued.certificate, key=issued.key),
        )
        for name, issued in (("HOST", elsewhere), ("EXPIRED", expired))
    ]
    wrong = start_broker(kafka_listeners=tuple(listeners))
    assert "verify failed" in _cause(wrong.addresses["kafka"], secured.options())
    assert "verify failed" in _cause(wrong.addresses["kafka.EXPIRED"], secured.options())
    assert "alert" not in _cause(secured.one_way, {"security_protocol": "plaintext"})


def test_a_renewed_certificate_is_used_without_a_restart(secured: _Secured) -> None:
    """Open connections stay."""
    host, _, port = secured.one_way.rpartition(":")

    def serial() -> str:
        return str(_peer(host, int(port), secured.authority.context())["serialNumber"])

    with Wire((host, int(port)), tls=secured.authority.context()) as client:
        first = client.ask("api_versions", 0, Struct())
        before = serial()
        secured.authority.issue("server", "localhost", "127.0.0.1")
        until(lambda: serial() != before)
        assert client.ask("api_versions", 0, Struct()) == first


def _peer(host: str, port: int, context: ssl.SSLContext) -> dict[str, object]:
    with (
        socket.create_connection((host, port), timeout=TIMEOUT_SECONDS) as plain,
        context.wrap_socket(plain, server_hostname=host) as secure,
    ):
        found = secure.getpeercert()
    assert found is not None
    return dict(found)


def test_a_client_that_reads_nothing_is_disconnected_as_without_tls(
    start_broker: Callable[..., BrokerThread], tmp_path: Path
) -> None:
    """Its responses stay in the budget of fetches until then."""
    authority = Authority(tmp_path)
    issued = authority.issue("server", "127.0.0.1")
    tls = TlsSettings(certificate=issued.certificate, key=issued.key)
    broker = start_broker(
        kafka_listeners=(
            KafkaListener(port=0),
            KafkaListener(name="TLS", port=0, protocol=SecurityProtocol.SSL, tls=tls),
        ),
        kafka_slow_reader_ms=400,
        kafka_scarce_memory_ms=400,
    )
    topic = broker.create_topic("granite")
    produce(broker.address, "granite", [(None, bytes(1_000_000))] * 20, message_max_bytes=2_000_000)
    host, _, port = broker.addresses["kafka.TLS"].rpartition(":")
    partition = Struct(partition=0, fetch_offset=0, partition_max_bytes=32_000_000)
    request = Struct(
        replica_id=-1,
        max_wait=0,
        min_bytes=0,
        max_bytes=32_000_000,
        topics=[Struct(topic=topic.name, partitions=[partition])],
    )
    with (
        socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS) as plain,
        authority.context().wrap_socket(plain, server_hostname=host) as client,
    ):
        client.sendall(request_frame("fetch", 4, 1, request))
        budget = broker.agent.data.read_path.budget
        until(lambda: budget.used > 8_000_000)
        closed = broker.agent.metrics.kafka_connections_closed.labels("slow_reader")
        until(lambda: closed._value.get() == 1)
        until(lambda: budget.used == 0)
        with contextlib.suppress(OSError):
            while client.recv(1_000_000):
                pass


@pytest.mark.skipif(not kafka_tools.are_installed(), reason="Kafka's tools are not installed")
def test_kafkas_own_tools_connect_with_a_certificate(secured: _Secured, tmp_path: Path) -> None:
    """PEM files, as Kafka takes them: key and chain in one file."""
    keystore = tmp_path / "keystore.pem"
    keystore.write_bytes(secured.client.key.read_bytes() + secured.client.certificate.read_bytes())
    properties = tmp_path / "client.properties"
    properties.write_text(
        "security.protocol=SSL\nssl.keystore.type=PEM\nssl.truststore.type=PEM\n"
        f"ssl.keystore.location={keystore}\nssl.truststore.location={secured.authority.file}\n"
    )
    secured.broker.create_topic("granite")
    address = ("--bootstrap-server", secured.mutual)
    topics = kafka_tools.run(
        "org.apache.kafka.tools.TopicCommand", *address, "--command-config", str(properties), "--list"
    )
    assert "granite" in topics.split()
    arguments = ("--topic", "granite", "--num-records", "500", "--record-size", "1000", "--throughput", "-1")
    output = kafka_tools.run(
        "org.apache.kafka.tools.ProducerPerformance",
        *arguments,
        *address,
        "--command-config",
        str(properties),
    )
    assert "500 records sent" in output


@pytest.mark.parametrize("limit", ["rate", "count"])
def test_connections_beyond_a_limit_cost_no_handshake(
    start_broker: Callable[..., BrokerThread], tmp_path: Path, limit: str
) -> None:
    """They are closed before anything is computed for them."""
    issued = Authority(tmp_path).issue("server", "127.0.0.1")
    tls = TlsSettings(certificate=issued.certificate, key=issued.key)
    listener = KafkaListener(port=0, protocol=SecurityProtocol.SSL, tls=tls)
    by_count = {"kafka_max_connections_per_ip": 5}
    by_rate = {"kafka_max_connection_creation_rate": 1, "quota_window_num": 2}
    broker = start_broker(kafka_listeners=(listener,), **(by_count if limit == "count" else by_rate))
    host, _, port = broker.addresses["kafka"].rpartition(":")
    server = broker.agent.kafka.server
    assert server is not None
    with contextlib.ExitStack() as opened:
        for _ in range(40):
            opened.enter_context(socket.create_connection((host, int(port)), timeout=TIMEOUT_SECONDS))
        reason = "quota" if limit == "count" else "connection_rate"
        closed = broker.agent.metrics.kafka_connections_closed.labels(reason)._value
        until(lambda: closed.get() + len(server._tls.handshakes) == 40)
        assert 1 <= len(server._tls.handshakes) <= 20
