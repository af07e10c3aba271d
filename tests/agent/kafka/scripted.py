"""A connection with a scripted transport and a scripted dispatcher."""

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
from agent.kafka.connection.incoming_memory import IncomingMemory
from agent.kafka.connection.limits import ConnectionLimits, LoginLimits, SlowClientPolicy
from agent.runtime.byte_budget import ByteBudget
from agent.runtime.cooperative_yield import IterationBudget
from core.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from agent.kafka.codec.writing import Buffers
    from agent.kafka.dispatcher import Response
    from agent.security.identity import Client

_LONG_SECONDS = 3600.0
LONG = 400_000
"""Size of a long response, which repeats its number."""
_QUIET_ITERATIONS = 20
"""After so many iterations of the loop without a change, nothing happens any more."""


class ScriptedTransport:
    """A transport that records writes, and whether the connection reads.

    While it is full, nothing leaves it. While `is_draining`, one byte leaves with each call of
    `get_write_buffer_size`. With `fills_up`, the next write fills it.
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
        """Let the client stop or continue reading."""
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
        """Ignore the limit."""

    def get_extra_info(self, _: str, default: object = None) -> object:
        """Return no peer address, and no principal."""
        return default


class ScriptedDispatcher:
    """Responds to a request with its number. A request is a number of eight bytes, a letter, and padding.

    On the fast path:
    - `o`: a response; `h`: one that retains memory; `g`: a long one that retains memory;
    - `0`: no response; `x`: an error;
    - `l`: a deferred response after `committed`; `s`: the same, ignoring cancellation; `e`: a deferred error.

    In a coroutine:
    - `c`: a response; `w`: one after `committed`; `b`: a long one; `n`: no response; `y`: an error.
    """

    def __init__(self) -> None:
        self.committed = asyncio.Event()
        self.handled: list[int] = []
        self.arrivals: list[float] = []  # of requests in a coroutine
        self.now = 0.0
        self.retained = 0

    def try_fast_path(self, frame: memoryview, _: Client) -> Response:
        kind = chr(frame[8])
        if kind == "x":
            raise MalformedMessageError("an invalid request")
        if kind not in "ohg0lse":
            return None
        self._note(frame)
        number = bytes(frame[:8])
        if kind in "hg":
            self.retained += 1
            return RetainedBuffers([number * (LONG // 8 if kind == "g" else 1)], [self._release])
        if kind in "lse":
            return partial(self._committed, frame)
        return [number] if kind == "o" else []

    def arrival_time(self) -> float:
        return self.now

    async def handle(
        self, frame: memoryview, client: Client, *, arrived_at: float, was_tried: bool = False
    ) -> Response:
        self.arrivals.append(arrived_at)
        if not was_tried:
            response = self.try_fast_path(frame, client)
            if response is not None:
                return response
        await asyncio.sleep(0)
        kind = chr(frame[8])
        if kind == "y":
            raise MalformedMessageError("another invalid request")
        self._note(frame)
        if kind == "w":
            await self.committed.wait()
        return None if kind == "n" else [bytes(frame[:8]) * (LONG // 8 if kind == "b" else 1)]

    def outlives_client(self, frame: memoryview) -> bool:
        return chr(frame[8]) in "0ln"

    def _note(self, frame: memoryview) -> None:
        self.handled.append(int.from_bytes(frame[:8], "big"))

    def _release(self) -> None:
        self.retained -= 1

    async def _committed(self, frame: memoryview) -> Buffers:
        kind = chr(frame[8])
        with contextlib.suppress(*[asyncio.CancelledError] if kind == "s" else []):
            await self.committed.wait()
        if kind == "e":
            raise RuntimeError("the deferred response failed")
        return [bytes(frame[:4]), bytes(frame[4:8])]


class ScriptedLogin:
    """A login that admits every request, and ends with the one that the test announces."""

    expects_bare_tokens = is_failed = is_authenticated = False
    ends_next = False
    host = user = ""

    @property
    def is_current(self) -> bool:
        return self.is_authenticated

    def admits(self, _: int) -> bool:
        self.is_authenticated = self.is_authenticated or self.ends_next
        return True


class Scripted:
    """A connection and a client that sends as long as the connection reads."""

    def __init__(
        self,
        *,
        pending: int = 64,
        budget: int | ByteBudget = 10_000_000,
        slow_clients: SlowClientPolicy | None = None,
        memory: IncomingMemory | None = None,
        login: ScriptedLogin | None = None,
        login_memory: IncomingMemory | None = None,
    ) -> None:
        self.transport = ScriptedTransport()
        self.dispatcher = ScriptedDispatcher()
        budget = ByteBudget("requests", budget) if isinstance(budget, int) else budget
        self.memory = memory or IncomingMemory(budget)
        self.budget = self.memory.budget
        self.is_gone = False
        self.sent: list[tuple[int, str]] = []
        self._stream = b""
        limits = ConnectionLimits(
            max_request_bytes=10_000_000,
            max_pending_requests=pending,
            slow_clients=slow_clients or SlowClientPolicy.of(60, 60, memory=()),
            login=LoginLimits(max_request_bytes=10_000, seconds=60),
        )
        self.connection = Connection(
            cast("Any", self.dispatcher),
            self.memory,
            IterationBudget(SystemClock(), seconds=_LONG_SECONDS),
            limits,
            memoryview(bytearray(RECEIVE_BYTES)),
            listener_name="PLAINTEXT",
            on_open=lambda _: True,
            on_close=self._gone,
            login=cast("Any", login),
            login_memory=login_memory,
        )
        self.transport.protocol = self.connection
        self.connection.connection_made(cast("Any", self.transport))

    def _gone(self, _: Connection) -> None:
        self.is_gone = True

    def send(self, kinds: str, *, size: int = 9) -> None:
        """Send one request of each kind. They arrive as far as the connection reads."""
        for kind in kinds:
            self._stream += self.frame(kind, size)
        self.arrive()

    def begin(self, kind: str, *, size: int, count: int, before: bytes = b"") -> bytes:
        """Send `before` and the first `count` bytes of a request; return the rest for `send_bytes`."""
        frame = self.frame(kind, size)
        self.send_bytes(before + frame[:count])
        return frame[count:]

    def send_bytes(self, data: bytes) -> None:
        """Send these bytes."""
        self._stream += data
        self.arrive()

    def frame(self, kind: str, size: int) -> bytes:
        """Return the next request."""
        body = struct.pack(">qc", len(self.sent), kind.encode()).ljust(size, b".")
        self.sent.append((len(self.sent), kind))
        return struct.pack(">i", len(body)) + body

    def send_length(self, length: int) -> None:
        """Send the length of a request and nothing more."""
        self.send_bytes(struct.pack(">i", length))

    def arrive(self) -> None:
        """Deliver what was sent, as far as the connection reads."""
        while self._stream and self.transport.is_reading and not self.transport.is_closed:
            room = self.connection.get_buffer(-1)
            count = min(len(room), len(self._stream))
            room[:count] = self._stream[:count]
            self._stream = self._stream[count:]
            self.connection.buffer_updated(count)

    @property
    def is_read_to_the_end(self) -> bool:
        """True if the connection has read everything that was sent."""
        return not self._stream

    @property
    def responses(self) -> list[int]:
        """The numbers of all responses, in order."""
        return [number for (number,) in struct.iter_unpack(">q", b"".join(self.transport.writes))]

    async def run_until_idle(self) -> None:
        """Run the loop until nothing changes any more."""
        quiet = 0
        before: object = None
        while quiet < _QUIET_ITERATIONS:
            self.arrive()
            await asyncio.sleep(0)
            state = (len(self._stream), len(self.transport.writes), len(self.dispatcher.handled))
            quiet = quiet + 1 if state == before else 0
            before = state

    def lose(self) -> None:
        """Lose the connection."""
        if not self.is_gone and self.transport.protocol is not None:
            self.transport.is_closed = True
            self.transport.protocol = None
            self.connection.connection_lost(None)
