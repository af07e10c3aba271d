"""Responses leave a connection in order and in few writes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from typing import cast

import pytest
from typing_extensions import override

from agent.kafka.connection.responses import ResponseWriter
from tests.agent.kafka.scripted import Scripted, ScriptedTransport

pytestmark = pytest.mark.anyio

_LARGE = b"x" * 100_000


def _writer() -> tuple[ResponseWriter, ScriptedTransport]:
    transport = ScriptedTransport()
    return ResponseWriter(asyncio.get_running_loop(), cast("asyncio.Transport", transport)), transport


async def test_buffered_responses_leave_together_in_the_next_iteration_of_the_loop() -> None:
    writer, transport = _writer()
    for part in (b"a", b"b", b"c"):
        writer.write_soon([part])
    assert transport.writes == []
    await asyncio.sleep(0)
    assert transport.writes == [b"abc"]
    await asyncio.sleep(0)
    assert transport.writes == [b"abc"]


async def test_a_write_sends_buffered_responses_first() -> None:
    writer, transport = _writer()
    writer.write_soon([b"a"])
    writer.write([b"b", b"c"])
    writer.write([b"d"])
    writer.write([])
    await asyncio.sleep(0)
    assert transport.writes == [b"abc", b"d"]


async def test_the_buffer_is_flushed_when_it_is_full() -> None:
    writer, transport = _writer()
    writer.write_soon([b"a"])
    writer.write_soon([_LARGE])
    assert transport.writes == [b"a" + _LARGE]


async def test_nothing_is_written_to_a_closed_transport() -> None:
    writer, transport = _writer()
    writer.write_soon([b"a"])
    transport.close()
    await asyncio.sleep(0)
    writer.write_soon([b"b"])
    writer.discard()
    await asyncio.sleep(0)
    assert transport.writes == []


async def test_responses_that_are_ready_together_leave_in_one_write() -> None:
    """Many requests wait for one file. A single response leaves by itself."""
    scripted = Scripted()
    writes = scripted.transport.writes
    scripted.send("l" * 40)
    await asyncio.sleep(0)
    assert writes == []
    scripted.dispatcher.committed.set()
    await scripted.run_until_idle()
    assert scripted.responses == list(range(40))
    assert len(writes) == 1
    writes.clear()
    scripted.send("l")
    await scripted.run_until_idle()
    assert scripted.responses == [40]
    assert len(writes) == 1
    scripted.lose()


async def test_unsent_bytes_shrink_long_before_the_transport_buffer_does() -> None:
    """The kernel's buffer takes megabytes, and more only after the client has read a part of them."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[asyncio.Transport] = loop.create_future()

    class Full(asyncio.Protocol):
        @override
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.set_result(cast("asyncio.Transport", transport))

    server = await loop.create_server(Full, "127.0.0.1", 0)
    with contextlib.closing(socket.create_connection(server.sockets[0].getsockname())) as reader:
        transport = await made
        writer = ResponseWriter(loop, transport)
        writer.write([bytes(2**25)])
        before, waiting = writer.unsent_bytes(), transport.get_write_buffer_size()
        received = 0
        while writer.unsent_bytes() == before:
            received += len(reader.recv(2**14))
        assert waiting <= before <= 2**25
        assert received < 2**20
        assert transport.get_write_buffer_size() == waiting
        transport.abort()
    server.close()
    await asyncio.sleep(0)
    assert writer.unsent_bytes() == transport.get_write_buffer_size()
