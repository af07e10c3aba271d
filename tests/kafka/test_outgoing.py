"""How answers leave a connection: in order, and in few writes."""

from __future__ import annotations

import asyncio
import struct
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest

from agent.byte_budget import ByteBudget
from agent.kafka.connection import Connection, ConnectionLimits
from agent.kafka.frames import RECEIVE_BYTES
from agent.kafka.outgoing import Outgoing

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

pytestmark = pytest.mark.anyio

_LARGE = b"x" * 100_000


class _Transport:
    """Notes each write."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_closed = False

    def write(self, data: bytes) -> None:
        self.writes.append(data)

    def writelines(self, parts: Sequence[bytes]) -> None:
        self.writes.append(b"".join(parts))

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_closed = True

    close = abort

    def set_write_buffer_limits(self, *, high: int) -> None:
        """There is no bound."""

    def get_extra_info(self, _: str) -> None:
        """It has no peer."""


def _outgoing() -> tuple[Outgoing, _Transport]:
    transport = _Transport()
    return Outgoing(asyncio.get_running_loop(), cast("asyncio.Transport", transport)), transport


async def test_what_is_held_back_leaves_in_one_write_in_the_loops_next_turn() -> None:
    outgoing, transport = _outgoing()
    for part in (b"a", b"b", b"c"):
        outgoing.hold([part])
    assert transport.writes == []
    await asyncio.sleep(0)
    assert transport.writes == [b"abc"]
    await asyncio.sleep(0)
    assert transport.writes == [b"abc"]


async def test_what_cannot_wait_takes_along_what_does() -> None:
    outgoing, transport = _outgoing()
    outgoing.hold([b"a"])
    outgoing.write([b"b", b"c"])
    outgoing.write([b"d"])
    outgoing.write([])
    await asyncio.sleep(0)
    assert transport.writes == [b"abc", b"d"]


async def test_only_so_much_is_held_back() -> None:
    outgoing, transport = _outgoing()
    outgoing.hold([b"a"])
    outgoing.hold([_LARGE])
    assert transport.writes == [b"a" + _LARGE]


async def test_nothing_goes_to_a_transport_that_is_closed() -> None:
    outgoing, transport = _outgoing()
    outgoing.hold([b"a"])
    transport.close()
    await asyncio.sleep(0)
    outgoing.hold([b"b"])
    outgoing.drop()
    await asyncio.sleep(0)
    assert transport.writes == []


class _Waiting:
    """A dispatch whose requests all wait for one event; each answer is the request's number."""

    def __init__(self) -> None:
        self.committed = asyncio.Event()

    def take_at_once(self, frame: memoryview, _: str) -> Callable[[], Awaitable[list[bytes]]]:
        return partial(self._answer, bytes(frame))

    async def _answer(self, frame: bytes) -> list[bytes]:
        await self.committed.wait()
        return [frame[:1], frame[1:]]


async def _turns_until_idle(connection: Connection) -> None:
    while not connection.is_idle:  # noqa: ASYNC110  # there is no event for it
        await asyncio.sleep(0)


async def test_answers_that_are_ready_together_leave_together() -> None:
    """Of many requests that wait for one file; a lone one's leaves without another turn of the loop."""
    dispatch, transport = _Waiting(), _Transport()
    connection = Connection(
        cast("Any", dispatch),
        ByteBudget("requests", 1_000_000),
        ConnectionLimits(max_request_bytes=1000, max_pending_requests=64, slow_reader_seconds=1),
        memoryview(bytearray(RECEIVE_BYTES)),
        lambda _: None,
    )
    connection.connection_made(cast("Any", transport))

    def send(*numbers: int) -> list[bytes]:
        bodies = [struct.pack(">q", number) for number in numbers]
        frames = b"".join(struct.pack(">i", len(body)) + body for body in bodies)
        connection.get_buffer(-1)[: len(frames)] = frames
        connection.buffer_updated(len(frames))
        return bodies

    bodies = send(*range(40))
    await asyncio.sleep(0)
    assert transport.writes == []
    dispatch.committed.set()
    await _turns_until_idle(connection)
    assert b"".join(transport.writes) == b"".join(bodies)
    assert len(transport.writes) == 1
    transport.writes.clear()
    bodies = send(99)
    await _turns_until_idle(connection)
    assert transport.writes == bodies
    connection.connection_lost(None)
