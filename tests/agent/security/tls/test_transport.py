"""Connections over TLS: flow control, both ends of a connection, bounds on handshakes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from typing import TYPE_CHECKING, cast

import pytest
from structlog.testing import capture_logs
from typing_extensions import override

from agent.listeners import ClientAuth, TlsSettings
from agent.process import new_loop
from agent.runtime.metrics import AgentMetrics
from agent.security.tls.certificates import Certificate
from agent.security.tls.handshakes import Handshakes
from agent.security.tls.transport import TlsConnection, TlsListener, TlsTransport
from tests.fixtures.certificates import Authority

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

_TIMEOUT_SECONDS = 120.0


class _Protocol(asyncio.BufferedProtocol):
    """Records what happens; echoes if told so."""

    def __init__(self) -> None:
        self.buffer = bytearray(100_000)
        self.received = bytearray()
        self.events: list[str] = []
        self.transport: TlsTransport
        self.is_writable = True
        self.answer = b""

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("TlsTransport", transport)

    @override
    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.received += self.buffer[:nbytes]

    @override
    def pause_writing(self) -> None:
        self.is_writable = False

    @override
    def resume_writing(self) -> None:
        self.is_writable = True

    @override
    def eof_received(self) -> bool:
        self.events.append("eof")
        if self.answer:
            self.transport.write(self.answer)
            self.transport.close()
        return bool(self.answer)

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append("lost")


class _Server:
    """A listener with TLS in the event loop of the test."""

    def __init__(self, directory: Path, **tls: object) -> None:
        self.authority = Authority(directory)
        issued = self.authority.issue("server", "127.0.0.1")
        settings = TlsSettings(certificate=issued.certificate, key=issued.key, **tls)  # type: ignore[arg-type]
        self.metrics = AgentMetrics()
        self.protocols: list[_Protocol] = []
        self.handshakes = Handshakes(seconds=_TIMEOUT_SECONDS, max_handshakes=10, metrics=self.metrics)
        certificate = Certificate("SSL", settings, self.metrics)
        self.listener = TlsListener("SSL", certificate, self.handshakes, rules="RULE:^CN=(.*)$/$1/U")
        self.port = 0
        self.answer = b""

    def _make(self) -> _Protocol:
        self.protocols.append(_Protocol())
        self.protocols[-1].answer = self.answer
        return self.protocols[-1]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: self.listener.connection(self._make), "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield
        finally:
            server.close()
            for each in self.protocols:
                each.transport.abort()
            await asyncio.sleep(0.01)  # the loop closes what was aborted

    def connect(self, context: ssl.SSLContext | None = None) -> ssl.SSLSocket:
        """Connect a blocking client; call it in a thread."""
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=_TIMEOUT_SECONDS)
        try:
            return (context or self.authority.context()).wrap_socket(plain, server_hostname="127.0.0.1")
        except OSError:
            plain.close()
            raise

    def outcomes(self) -> dict[str, float]:
        (family,) = self.metrics.tls_handshakes.collect()
        return {each.labels["outcome"]: each.value for each in family.samples}


async def _until(reached: Callable[[], object]) -> None:
    async with asyncio.timeout(_TIMEOUT_SECONDS):
        while not reached():  # noqa: ASYNC110  # what is waited for sets no event
            await asyncio.sleep(0.005)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


def _run(test: Awaitable[None]) -> None:
    async def run() -> None:
        await test

    with asyncio.Runner(loop_factory=new_loop) as runner:
        runner.run(run())


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_bytes_arrive_in_both_directions(tmp_path: Path, version: ssl.TLSVersion) -> None:
    sent = bytes(range(256)) * 4_000

    async def test() -> None:
        server = _Server(tmp_path)
        async with server.running():
            context = server.authority.context()
            context.minimum_version = context.maximum_version = version
            client = await asyncio.to_thread(server.connect, context)
            assert client.version() == {ssl.TLSVersion.TLSv1_2: "TLSv1.2"}.get(version, "TLSv1.3")
            await asyncio.to_thread(client.sendall, sent)
            (protocol,) = server.protocols
            await _until(lambda: len(protocol.received) == len(sent))
            assert protocol.received == sent
            # Large and small buffers, more than the socket takes at once.
            protocol.transport.writelines([sent, b"", b"a" * 10, memoryview(b"b" * 20_000), b"c" * 100])
            expected = len(sent) + 20_110
            received = await asyncio.to_thread(_read, client, expected)
            assert received == sent + b"a" * 10 + b"b" * 20_000 + b"c" * 100
            client.close()
            await _until(lambda: protocol.events == ["eof", "lost"])

    _run(test())


def _read(client: ssl.SSLSocket, size: int) -> bytes:
    data = bytearray()
    while len(data) < size and (part := client.recv(65_536)):
        data += part
    return bytes(data)


def test_bytes_that_a_client_does_not_read_stay_unencrypted_and_count(tmp_path: Path) -> None:
    """A connection reports what the client has not read, and holds the views that were written."""
    large = bytes(32 * 1024 * 1024)

    async def test() -> None:
        server = _Server(tmp_path)
        async with server.running():
            client = await asyncio.to_thread(server.connect)
            (protocol,) = server.protocols
            protocol.transport.write(large)
            assert not protocol.is_writable
            await _until(lambda: protocol.transport._next_step is None)
            unsent = protocol.transport.get_write_buffer_size()
            connection = protocol.transport._connection
            assert connection.socket_transport is not None
            assert connection.socket_transport.get_write_buffer_size() < 512 * 1024
            assert unsent > len(large) // 2  # the sockets' buffers have the rest
            assert len(await asyncio.to_thread(_read, client, len(large))) == len(large)
            await _until(lambda: protocol.is_writable)
            assert protocol.transport.get_write_buffer_size() == 0
            protocol.transport.write(large)
            protocol.transport.abort()
            await _until(lambda: protocol.events == ["lost"])
            assert not protocol.transport._backlog
            client.close()

    _run(test())


class _HeldSocket(asyncio.Transport):
    """A socket that takes bytes when the test says so; it reports what waits as the event loop does."""

    def __init__(self, connection: TlsConnection, high: int) -> None:
        super().__init__()
        self._connection = connection
        self._high = high
        self._waiting = 0
        self._is_paused = False

    @override
    def is_closing(self) -> bool:
        return False

    @override
    def get_write_buffer_size(self) -> int:
        return self._waiting

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        self._waiting += len(data)
        if self._waiting > self._high and not self._is_paused:
            self._is_paused = True
            self._connection.pause_writing()

    def take_all(self) -> None:
        self._waiting = 0
        if self._is_paused:
            self._is_paused = False
            self._connection.resume_writing()


@pytest.mark.parametrize("size", [70_000, 90_000, 100_000, 130_000, 1_048_576, 1_081_344])
def test_a_protocol_may_write_again_once_the_client_has_read_all(tmp_path: Path, size: int) -> None:
    """The last part of a response does not fill the socket's buffer, so no event follows it."""

    async def test() -> None:
        server = _Server(tmp_path)
        async with server.running():
            client = await asyncio.to_thread(server.connect)
            (protocol,) = server.protocols
            connection = protocol.transport._connection
            real = connection.socket_transport
            assert real is not None
            _, high = real.get_write_buffer_limits()
            connection.socket_transport = held = _HeldSocket(connection, high)
            try:
                protocol.transport.write(bytes(size))
                seen = [protocol.is_writable]
                for _ in range(size // high + 2):
                    held.take_all()
                seen.append(protocol.is_writable)
                assert seen == [False, True]
                assert protocol.transport.get_write_buffer_size() == 0
            finally:
                connection.socket_transport = real
                client.close()

    _run(test())


def test_a_paused_connection_receives_little(tmp_path: Path) -> None:
    sent = bytes(8 * 1024 * 1024)

    async def test() -> None:
        server = _Server(tmp_path)
        async with server.running():
            client = await asyncio.to_thread(server.connect)
            (protocol,) = server.protocols
            protocol.transport.pause_reading()
            assert not protocol.transport.is_reading()
            client.setblocking(False)
            taken = 0
            with contextlib.suppress(ssl.SSLWantWriteError):
                while taken < len(sent):
                    taken += client.send(sent[taken : taken + 65_536])
            assert taken < len(sent)
            await asyncio.sleep(0.05)
            assert not protocol.received
            assert protocol.transport._connection._incoming.pending <= 128 * 1024
            protocol.transport.resume_reading()
            client.settimeout(_TIMEOUT_SECONDS)
            await asyncio.to_thread(client.sendall, sent[taken:])
            await _until(lambda: len(protocol.received) >= len(sent) - 65_536)
            client.close()

    _run(test())


@pytest.mark.parametrize("is_announced", [True, False])
def test_a_client_that_closes_its_side_still_gets_the_response(tmp_path: Path, is_announced: bool) -> None:
    """The client sends close_notify, or only the end of the stream, as some clients do."""
    answer = b"r" * 1_000_000

    async def test() -> None:
        server = _Server(tmp_path)
        server.answer = answer
        async with server.running():
            incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
            tls = server.authority.context().wrap_bio(incoming, outgoing, server_hostname="127.0.0.1")
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            while True:
                try:
                    tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    writer.write(outgoing.read())
                    incoming.write(await reader.read(65_536))
            tls.write(b"request")
            with contextlib.suppress(ssl.SSLError):
                if is_announced:
                    tls.unwrap()
            writer.write(outgoing.read())
            await _until(lambda: server.protocols)
            (protocol,) = server.protocols
            writer.write_eof()
            received = bytearray()
            with contextlib.suppress(ssl.SSLZeroReturnError):
                while True:
                    with contextlib.suppress(ssl.SSLWantReadError):
                        while part := tls.read(65_536):
                            received += part
                        break
                    incoming.write(await reader.read(65_536))
            assert protocol.received == b"request"
            assert received == answer
            await _until(lambda: protocol.events == ["eof", "lost"])
            await _close(writer)

    _run(test())


def test_the_certificate_of_a_client_names_its_principal(tmp_path: Path) -> None:
    async def test() -> None:
        server = _Server(tmp_path, client_auth=ClientAuth.REQUIRED, client_ca=tmp_path / "authority.pem")
        async with server.running():
            mason = server.authority.issue("mason").context(server.authority)
            client = await asyncio.to_thread(server.connect, mason)
            await _until(lambda: server.protocols)
            assert str(server.protocols[0].transport.get_extra_info("principal")) == "User:MASON"
            client.close()

    _run(test())


def test_clients_with_a_wrong_certificate_or_none_are_rejected(tmp_path: Path) -> None:
    """The log says why, and the protocol never sees them."""

    async def test(logs: list[dict[str, object]]) -> None:
        (tmp_path / "x").mkdir()
        stranger = Authority(tmp_path / "x", "another authority")
        server = _Server(tmp_path, client_auth=ClientAuth.REQUIRED, client_ca=tmp_path / "authority.pem")
        async with server.running():
            expired = server.authority.issue("late", is_expired=True).context(server.authority)
            wrong = stranger.issue("stranger").context(server.authority)
            for context in (server.authority.context(), expired, wrong):
                with contextlib.suppress(OSError), await asyncio.to_thread(server.connect, context) as client:
                    assert not await asyncio.to_thread(client.recv, 1)
            await _until(lambda: server.outcomes().get("failed") == 3)
            assert not server.protocols
        text = " | ".join(f"{each['reason']} ({each['remedy']})" for each in logs)
        assert "peer did not return a certificate" in text
        assert "certificate has expired" in text
        assert "unable to get local issuer certificate" in text
        assert "ssl_ca_location" in text

    with capture_logs() as logs:
        _run(test(logs))  # type: ignore[arg-type]


def test_a_client_that_distrusts_the_listener_is_logged(tmp_path: Path) -> None:
    async def test() -> None:
        server = _Server(tmp_path)
        async with server.running():
            (tmp_path / "x").mkdir()
            with pytest.raises(ssl.SSLCertVerificationError):
                await asyncio.to_thread(server.connect, Authority(tmp_path / "x", "stranger").context())
            await _until(lambda: server.outcomes().get("failed") == 1)

    with capture_logs() as logs:
        _run(test())
    assert "unknown ca" in logs[0]["reason"]
    assert "ssl.truststore.location" in logs[0]["remedy"]


@pytest.mark.parametrize(
    ("sent", "part"),
    [
        (b"\0\0\0\x10\0\x12\0\3", "security.protocol=SSL"),
        (b"GET / HTTP/1.1\r\n\r\n", "https://"),
        (b"\x80\x80\x80\x80", "no TLS hello"),
    ],
)
def test_plain_text_is_recognized(tmp_path: Path, sent: bytes, part: str) -> None:
    async def test() -> None:
        server = _Server(tmp_path)
        async with server.running():
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(sent[:1])
            await asyncio.sleep(0.01)
            writer.write(sent[1:])
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            await _close(writer)
        assert server.outcomes() == {"foreign": 1}

    with capture_logs() as logs:
        _run(test())
    assert part in logs[0]["reason"]


def test_thousands_of_slow_handshakes_leave_room_for_others(tmp_path: Path) -> None:
    """Never more than the limit are open, and others of the same address go first."""

    async def test() -> None:
        server = _Server(tmp_path)
        async with server.running():
            local = ("127.0.0.2", 0)
            early, early_writer = await asyncio.open_connection("127.0.0.1", server.port, local_addr=local)
            slow = []
            for number in range(300):
                slow.append(await asyncio.open_connection("127.0.0.1", server.port))
                assert len(server.handshakes) <= 10
                if number % 100 == 99:
                    client = await asyncio.to_thread(server.connect)
                    client.close()
            await _until(lambda: server.outcomes().get("evicted", 0) + len(server.handshakes) == 301)
            assert server.outcomes()["complete"] == 3
            assert not early.at_eof()
            server.handshakes.abort()
            assert len(server.handshakes) == 0
            await _close(early_writer)
            for _, writer in slow:
                await _close(writer)

    _run(test())


def test_a_handshake_has_a_deadline(tmp_path: Path) -> None:
    async def test() -> None:
        server = _Server(tmp_path)
        server.handshakes.seconds = 0.05
        async with server.running():
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"\x16\x03\x01\x02")
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
            await _close(writer)
            assert server.outcomes() == {"timeout": 1}

    _run(test())


def test_a_reloaded_certificate_is_for_new_connections(tmp_path: Path) -> None:
    async def test() -> None:
        server = _Server(tmp_path)
        async with server.running():
            old = await asyncio.to_thread(server.connect)
            server.authority.issue("server", "127.0.0.1")
            server.listener.certificate.refresh()
            new = await asyncio.to_thread(server.connect)
            assert old.getpeercert(binary_form=True) != new.getpeercert(binary_form=True)
            await asyncio.to_thread(old.sendall, b"still here")
            await _until(lambda: server.protocols[0].received == b"still here")
            old.close()
            new.close()

    _run(test())
