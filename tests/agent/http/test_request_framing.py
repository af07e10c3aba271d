"""Requests whose end two HTTP parsers could see differently, trailers, and redirects."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from typing import TYPE_CHECKING

import pytest

from agent.http.relative_redirects import RelativeRedirects
from agent.http.transport.connection import LimitedProtocol
from agent.listeners import HttpAuthentication, HttpListener
from catalog.security.scram import ScramMechanism, new_credential

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

    from catalog.open import Catalog
    from core.ids import Ids
    from tests.agent.running_agents import Agents

pytestmark = pytest.mark.anyio
_POST = b"POST /v1/topics HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
_CHUNKED = _POST + b"Transfer-Encoding: chunked\r\n\r\n"
_SECOND = b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n"
_AMBIGUOUS = {
    "equal lengths": _POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "other lengths": _POST + b"Content-Length: 3\r\nContent-Length: 9\r\n\r\nabc",
    "list of lengths": _POST + b"Content-Length: 3, 3\r\n\r\nabc",
    "signed length": _POST + b"Content-Length: +3\r\n\r\nabc",
    "overflow of a length": _POST + b"Content-Length: 18446744073709551617\r\n\r\nabc",
    "length, then chunks": _POST + b"Content-Length: 44\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks, then length": _POST + b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
    "identity": _POST + b"Transfer-Encoding: identity\r\n\r\n",
    "unknown coding": _POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "chunks, then identity": _POST + b"Transfer-Encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    "chunks twice": _POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "space before a colon": _POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "vertical tab": _POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "folded line": _POST + b"Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n",
    "line feeds": b"GET /livez HTTP/1.1\nHost: localhost\n\n",
    "carriage return": b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: a\rb\r\n\r\n",
    "NUL": b"GET /livez HTTP/1.1\r\nHost: localhost\r\nX: a\0b\r\n\r\n",
    "line feed after a chunk's size": _CHUNKED + b"2;\nxx\r\n0\r\n\r\n",
    "no line end after a chunk": _CHUNKED + b"2\r\nabXX0\r\n\r\n",
    "overflow of a chunk's size": _CHUNKED + b"ffffffffffffffffff\r\nab",
}


async def _status(address: str, request: bytes) -> bytes:
    """Return the status of the response to a request."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    line = await asyncio.wait_for(reader.readline(), 60)
    writer.close()
    return line.split()[1]


async def test_an_ambiguous_request_is_rejected_and_no_second_one_served(agents: Agents) -> None:
    async with agents.running() as running:
        host, _, port = str(running.agent.http.servers[0].address).rpartition(":")
        for name, request in _AMBIGUOUS.items():
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(request + _SECOND)
            received = await asyncio.wait_for(reader.read(), 60)  # until the agent closes the connection
            writer.close()
            assert received.startswith(b"HTTP/1.1 400 "), name
            assert received.count(b"HTTP/1.1") == 1, name


async def test_a_trailer_is_no_header(agents: Agents, catalog: Catalog, ids: Ids) -> None:
    """A proxy that checks or sets headers does not look at trailers."""
    catalog.users.alter(upsertions=[("ada", new_credential(ScramMechanism.SHA_256, "secret", ids))])
    listeners = (
        HttpListener(name="OPEN", port=0),
        HttpListener(name="CLOSED", port=0, authentication=(HttpAuthentication.BASIC,)),
    )
    async with agents.running(http_listeners=listeners) as running:
        servers = {each.name: str(each.address) for each in running.agent.http.servers}
        foreign = _CHUNKED + b"2\r\n{}\r\n0\r\nHost: foreign.example\r\n\r\n"
        assert await _status(servers["OPEN"], foreign) == b"422"
        login = _CHUNKED + b"2\r\n{}\r\n0\r\nAuthorization: Basic " + b64encode(b"ada:secret") + b"\r\n\r\n"
        assert await _status(servers["CLOSED"], login) == b"401"


@pytest.mark.parametrize("method", [b"GET", b"POST"])
async def test_a_long_trailer_ends_the_connection(
    agents: Agents, method: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its memory is bounded as that of a head, also before a login.

    The client sends a piece once the agent has received the one before: unread bytes would make the agent's
    system drop the response.
    """
    received_bytes = 0
    receive = LimitedProtocol.data_received

    def counting(protocol: LimitedProtocol, data: bytes) -> None:
        nonlocal received_bytes
        receive(protocol, data)
        received_bytes += len(data)

    monkeypatch.setattr(LimitedProtocol, "data_received", counting)
    listener = HttpListener(port=0, authentication=(HttpAuthentication.BASIC,))
    async with agents.running(http_listeners=(listener,)) as running:
        host, _, port = str(running.agent.http.servers[0].address).rpartition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = method + b" /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
        received_bytes = sent = 0
        for piece in (head, b"0\r\nX: ", *[b"a" * 1024] * 64):
            writer.write(piece)
            sent += len(piece)
            async with asyncio.timeout(60):
                while received_bytes < sent:  # noqa: ASYNC110  # the agent runs in the same loop
                    await asyncio.sleep(0)
        (connection,) = running.agent.http.servers[0]._server.server_state.connections
        assert not connection.transport.is_closing()
        writer.write(b"a")
        received = await asyncio.wait_for(reader.read(), 60)  # until the agent closes the connection
        writer.close()
    assert received.endswith(b"\r\n\r\nThe trailer of the request is too large.")


async def test_a_large_chunk_is_no_trailer(agents: Agents) -> None:
    """Sizes of chunks that end a packet do not count the chunks before them."""
    chunk, size = b" " * 200_000, b"%x\r\n" % 200_000
    apart, together = (size, chunk, b"\r\n") * 4, (size, *(chunk + b"\r\n" + size,) * 3, chunk + b"\r\n")
    async with agents.running() as running:
        host, _, port = str(running.agent.http.servers[0].address).rpartition(":")
        for parts in (apart, together):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
            for part in parts:
                writer.write(part)
                await writer.drain()
                await asyncio.sleep(0)
            writer.write(b"0\r\nX: y\r\n\r\nGET /livez HTTP/1.0\r\nHost: localhost\r\n\r\n")
            received = await asyncio.wait_for(reader.read(), 60)
            writer.close()
            assert received.count(b"HTTP/1.1 200 ") == 2, received


async def test_a_redirect_names_no_host(agents: Agents) -> None:
    async with agents.running() as running:
        host, _, port = str(running.agent.http.servers[0].address).rpartition(":")
        for path, target in (
            (b"/docs/", b"/docs"),
            (b"/docs/?a=//b", b"/docs?a=//b"),
            (b"/docs/assets", b"/docs/assets/"),
            (b"/v1/topics/", b"/v1/topics"),
        ):
            reader, writer = await asyncio.open_connection(host, int(port))
            writer.write(b"GET " + path + b" HTTP/1.0\r\nHost: localhost\r\n\r\n")
            received = await asyncio.wait_for(reader.read(), 60)
            writer.close()
            assert received.startswith(b"HTTP/1.1 307 ")
            assert b"\r\nlocation: " + target + b"\r\n" in received


async def test_a_redirect_to_two_slashes_names_no_host() -> None:
    async def redirect(_scope: Scope, _receive: Receive, send: Send) -> None:
        headers = [(b"location", b"https://foreign.example//other.example/a?b")]
        await send({"type": "http.response.start", "status": 307, "headers": headers})

    async def receive() -> Message:
        raise AssertionError

    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    await RelativeRedirects(redirect)({"type": "http"}, receive, send)
    assert sent[0]["headers"] == [(b"location", b"/other.example/a?b")]
