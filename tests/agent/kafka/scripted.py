"""A connection between a transport and a dispatch that do what a test says."""

from __future__ import annotations

import asyncio
import contextlib
import struct
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from agent.kafka.api_definition import RetainedBuffers
from agent.kafka.codec import MalformedMessageError
from agent.kafka.connection.connection import Connection
from agent.kafka.connection.frames import RECEIVE_BYTES
from agent.kafka.connection.limits import ConnectionLimits, SlowClientPolicy
from agent.runtime.byte_budget import ByteBudget

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.codec.writing import Buffers
    from agent.kafka.dispatcher import Response

LONG = 400_000
"""Bytes of a long answer: its number, again and again."""
_QUIET_TURNS = 20
"""So many turns of the loop in which nothing happens are the end of everything that happens by itself."""


class ScriptedTransport:
    """Notes each write and whether it is read.

    Nothing leaves it while it is full, or a byte whenever it is asked while `is_draining`. One that
    `fills_up` is full with the next write.
    """

    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.is_reading = True
        self.is_closed = False
        self.waiting = 0
        self.is_draining = False
        self.fills_up = False
        self.protocol: Connection | None = None
        self._is_full = False

    def write(self, data: bytes) -> None:
        assert not self.is_closed
        self.writes.append(data)
        if self.fills_up:
            self.fills_up = False
            self.fill(full=True)
        if self._is_full:
            self.waiting += len(data)

    def writelines(self, parts: Sequence[bytes]) -> None:
        self.write(b"".join(parts))

    def fill(self, *, full: bool) -> None:
        """The client stops reading, or goes on."""
        if full == self._is_full or self.protocol is None or self.is_closed:
            return
        self._is_full = full
        if full:
            self.protocol.pause_writing()
        else:
            self.waiting = 0
            self.protocol.resume_writing()

    def get_write_buffer_size(self) -> int:
        if self.is_draining:
            self.waiting -= 1
        return self.waiting

    def pause_reading(self) -> None:
        assert self.is_reading
        self.is_reading = False

    def resume_reading(self) -> None:
        assert not self.is_reading
        assert not self.is_closed
        self.is_reading = True

    def is_closing(self) -> bool:
        return self.is_closed

    def abort(self) -> None:
        self.is_closed = True
        if self.protocol is not None:
            asyncio.get_running_loop().call_soon(self.protocol.connection_lost, None)
            self.protocol = None

    close = abort

    def set_write_buffer_limits(self, *, high: int) -> None:
        """There is no bound."""

    def get_extra_info(self, _: str) -> None:
        """It has no peer."""


class ScriptedDispatcher:
    """Takes requests of eight bytes of number, a letter that says how, and padding; answers the number.

    `o` at once, `h` at once and holding memory, `g` likewise and at length, `0` at once without an answer,
    `l` when `committed` is set, `s` likewise and whether or not it is cancelled, `c` by a coroutine
    and `w` by one that waits for `committed`, `n` by a coroutine without an answer, `b` at length by a
    coroutine; `x` and `y` are not to be answered, as is found out at once or later, and `e` comes to nothing
    when `committed` is set.
    """

    def __init__(self) -> None:
        self.committed = asyncio.Event()
        self.taken: list[int] = []
        self.held = 0

    def try_fast_path(self, frame: memoryview, _: str) -> Response:
        kind = chr(frame[8])
        if kind == "x":
            raise MalformedMessageError("this cannot be")
        if kind not in "ohg0lse":
            return None
        self._note(frame)
        number = bytes(frame[:8])
        if kind in "hg":
            self.held += 1
            return RetainedBuffers([number * (LONG // 8 if kind == "g" else 1)], [self._release])
        if kind in "lse":
            return partial(self._committed, frame)
        return [number] if kind == "o" else []

    async def handle(self, frame: memoryview, host: str, *, was_tried: bool = False) -> Response:
        if not was_tried:
            response = self.try_fast_path(frame, host)
            if response is not None:
                return response
        await asyncio.sleep(0)
        kind = chr(frame[8])
        if kind == "y":
            raise MalformedMessageError("this cannot be either")
        self._note(frame)
        if kind == "w":
            await self.committed.wait()
        return None if kind == "n" else [bytes(frame[:8]) * (LONG // 8 if kind == "b" else 1)]

    def outlives_client(self, frame: memoryview) -> bool:
        return chr(frame[8]) in "0ln"

    def _note(self, frame: memoryview) -> None:
        self.taken.append(int.from_bytes(frame[:8], "big"))

    def _release(self) -> None:
        self.held -= 1

    async def _committed(self, frame: memoryview) -> Buffers:
        kind = chr(frame[8])
        with contextlib.suppress(*[asyncio.CancelledError] if kind == "s" else []):
            await self.committed.wait()
        if kind == "e":
            raise RuntimeError("nothing comes of it")
        return [bytes(frame[:4]), bytes(frame[4:8])]


class Scripted:
    """The connection, and a client that sends as much as is read."""

    def __init__(
        self,
        *,
        pending: int = 64,
        budget: int | ByteBudget = 10_000_000,
        slow_clients: SlowClientPolicy | None = None,
    ) -> None:
        self.transport = ScriptedTransport()
        self.dispatch = ScriptedDispatcher()
        self.budget = ByteBudget("requests", budget) if isinstance(budget, int) else budget
        self.is_gone = False
        self.sent: list[tuple[int, str]] = []
        self._stream = b""
        limits = ConnectionLimits(
            max_request_bytes=10_000_000,
            max_pending_requests=pending,
            slow_clients=slow_clients or SlowClientPolicy.of(60, 60, memory=()),
        )
        self.connection = Connection(
            cast("Any", self.dispatch),
            self.budget,
            limits,
            memoryview(bytearray(RECEIVE_BYTES)),
            on_open=lambda _: True,
            on_close=self._gone,
        )
        self.transport.protocol = self.connection
        self.connection.connection_made(cast("Any", self.transport))

    def _gone(self, _: Connection) -> None:
        self.is_gone = True

    def send(self, kinds: str, *, size: int = 9) -> None:
        """One request of each kind; they arrive as far as the connection reads."""
        for kind in kinds:
            self._stream += self.frame(kind, size)
        self.arrive()

    def begin(self, kind: str, *, size: int, count: int, before: bytes = b"") -> bytes:
        """Only the first `count` bytes of a request, behind what comes `before`; the rest is for `go_on`."""
        frame = self.frame(kind, size)
        self.go_on(before + frame[:count])
        return frame[count:]

    def go_on(self, data: bytes) -> None:
        """These bytes."""
        self._stream += data
        self.arrive()

    def frame(self, kind: str, size: int) -> bytes:
        """The next request."""
        body = struct.pack(">qc", len(self.sent), kind.encode()).ljust(size, b".")
        self.sent.append((len(self.sent), kind))
        return struct.pack(">i", len(body)) + body

    def send_length(self, length: int) -> None:
        """The begin of a request, and no more of it."""
        self.go_on(struct.pack(">i", length))

    def arrive(self) -> None:
        """Deliver what is on its way."""
        while self._stream and self.transport.is_reading and not self.transport.is_closed:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(self._stream))
            room[:count] = self._stream[:count]
            self._stream = self._stream[count:]
            self.connection.buffer_updated(count)

    @property
    def is_read_to_the_end(self) -> bool:
        """Whether nothing that was sent is still on its way."""
        return not self._stream

    @property
    def answered(self) -> list[int]:
        """The numbers of all answers, in order."""
        return [number for (number,) in struct.iter_unpack(">q", b"".join(self.transport.writes))]

    async def settle(self) -> None:
        """Until nothing happens any more by itself."""
        quiet = 0
        before: object = None
        while quiet < _QUIET_TURNS:
            self.arrive()
            await asyncio.sleep(0)
            state = (len(self._stream), len(self.transport.writes), len(self.dispatch.taken))
            quiet = quiet + 1 if state == before else 0
            before = state

    def lose(self) -> None:
        """The connection is gone."""
        if not self.is_gone and self.transport.protocol is not None:
            self.transport.is_closed = True
            self.transport.protocol = None
            self.connection.connection_lost(None)
