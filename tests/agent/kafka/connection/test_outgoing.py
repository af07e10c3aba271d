"""How answers leave a connection: in order, and in few writes."""

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


def _outgoing() -> tuple[ResponseWriter, ScriptedTransport]:
    transport = ScriptedTransport()
    return ResponseWriter(asyncio.get_running_loop(), cast("asyncio.Transport", transport)), transport


async def test_what_is_held_back_leaves_in_one_write_in_the_loops_next_turn() -> None:
    outgoing, transport = _outgoing()
    for part in (b"a", b"b", b"c"):
        outgoing.write_soon([part])
    assert transport.writes == []
    await asyncio.sleep(0)
    assert transport.writes == [b"abc"]
    await asyncio.sleep(0)
    assert transport.writes == [b"abc"]


async def test_what_cannot_wait_takes_along_what_does() -> None:
    outgoing, transport = _outgoing()
    outgoing.write_soon([b"a"])
    outgoing.write([b"b", b"c"])
    outgoing.write([b"d"])
    outgoing.write([])
    await asyncio.sleep(0)
    assert transport.writes == [b"abc", b"d"]


async def test_only_so_much_is_held_back() -> None:
    outgoing, transport = _outgoing()
    outgoing.write_soon([b"a"])
    outgoing.write_soon([_LARGE])
    assert transport.writes == [b"a" + _LARGE]


async def test_nothing_goes_to_a_transport_that_is_closed() -> None:
    outgoing, transport = _outgoing()
    outgoing.write_soon([b"a"])
    transport.close()
    await asyncio.sleep(0)
    outgoing.write_soon([b"b"])
    outgoing.discard()
    await asyncio.sleep(0)
    assert transport.writes == []


async def test_answers_that_are_ready_together_leave_together() -> None:
    """Of many requests that wait for one file; a lone one's leaves by itself."""
    scripted = Scripted()
    writes = scripted.transport.writes
    scripted.send("l" * 40)
    await asyncio.sleep(0)
    assert writes == []
    scripted.dispatch.committed.set()
    await scripted.settle()
    assert scripted.answered == list(range(40))
    assert len(writes) == 1
    writes.clear()
    scripted.send("l")
    await scripted.settle()
    assert scripted.answered == [40]
    assert len(writes) == 1
    scripted.lose()


async def test_a_reader_that_takes_little_is_seen_long_before_the_transport_moves() -> None:
    """The system's buffer takes megabytes, and more only when a part of them was read."""
    loop = asyncio.get_running_loop()
    made: asyncio.Future[asyncio.Transport] = loop.create_future()

    class Full(asyncio.Protocol):
        @override
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.set_result(cast("asyncio.Transport", transport))

    server = await loop.create_server(Full, "127.0.0.1", 0)
    with contextlib.closing(socket.create_connection(server.sockets[0].getsockname())) as reader:
        transport = await made
        outgoing = ResponseWriter(loop, transport)
        outgoing.write([bytes(2**25)])
        before, waiting = outgoing.unsent_bytes(), transport.get_write_buffer_size()
        taken = 0
        while outgoing.unsent_bytes() == before:
            taken += len(reader.recv(2**14))
        assert waiting <= before <= 2**25
        assert taken < 2**20
        assert transport.get_write_buffer_size() == waiting
        transport.abort()
    server.close()
    await asyncio.sleep(0)
    assert outgoing.unsent_bytes() == transport.get_write_buffer_size()
