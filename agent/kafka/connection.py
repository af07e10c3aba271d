"""One client's connection: requests in, answers out in the same order.

Requests are taken one after the other; an answer that is still to come (`Later`) does not keep the next
request waiting, so produce requests of a pipelining client share a flight to the store. How many requests a
connection may have open is bounded: beyond it, and while answers do not leave, nothing more is received.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import structlog
from typing_extensions import override

from agent.errors import BusyError
from agent.kafka.api import HeldBuffers
from agent.kafka.codec import MalformedMessageError
from agent.kafka.frames import RECEIVE_BYTES, FrameReceiver
from agent.kafka.outgoing import Outgoing

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.byte_budget import ByteBudget
    from agent.kafka.dispatch import Answer, Dispatch

_log = structlog.get_logger(__name__)
_RETRY_SECONDS = 0.02
# What may stand in a socket's buffer and is in no budget any more.
_HIGH_WATER_BYTES = 256 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """Bounds of one connection; times are seconds."""

    max_request_bytes: int
    max_pending_requests: int
    slow_reader_seconds: float


@dataclass(slots=True)
class _Open:
    """A request whose answer has not left: its place in the order of answers."""

    held: int
    answer: Answer
    is_written: bool = False

    def write_to(self, outgoing: Outgoing, *, more: bool = False) -> None:
        """Hand the answer's bytes over, once; what holds memory holds it until they have left.

        With `more` others are about to follow, and it may wait for them.
        """
        if self.is_written:
            return
        self.is_written = True
        if isinstance(self.answer, HeldBuffers):
            outgoing.write(self.answer.buffers)
        elif isinstance(self.answer, list):  # an empty one is the answer with acks 0
            (outgoing.hold if more else outgoing.write)(self.answer)

    def release(self) -> None:
        """Let go of the memory that the answer holds."""
        if isinstance(self.answer, HeldBuffers):
            self.answer.release()
            self.answer = None


class Connection(asyncio.BufferedProtocol):
    """One connection, from its begin to its end. Belongs to the event loop."""

    def __init__(
        self,
        dispatch: Dispatch,
        budget: ByteBudget,
        limits: ConnectionLimits,
        shared: memoryview,
        gone: Callable[[Connection], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._dispatch = dispatch
        self._budget = budget
        self._limits = limits
        self._gone = gone
        self._frames: deque[memoryview] = deque()
        self._answers: deque[_Open] = deque()
        self._receiver = FrameReceiver(
            shared, limit=limits.max_request_bytes, admit=self._admit, deliver=self._deliver
        )
        self._transport: asyncio.Transport | None = None
        self._outgoing: Outgoing | None = None  # as long as there is a transport
        self._host = ""
        self._held = 0
        self._current: memoryview | None = None
        self._tried: memoryview | None = None  # a frame that could not be taken at once
        self._taker: asyncio.Task[None] | None = None
        self._answerer: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._moved = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._is_receiving = True
        self._is_finishing = False
        self._is_given_up = False
        self.last_active = self._loop.time()

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open; half a request does not count as open."""
        return not self._frames and not self._answers and self._taker is None

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by inheritance
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._outgoing = Outgoing(self._loop, self._transport)
        peer = transport.get_extra_info("peername")
        self._host = str(peer[0]) if peer else ""
        if self._is_finishing:
            self._transport.abort()

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.room()

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._loop.time()
        try:
            self._receiver.received(nbytes)
        except MalformedMessageError as error:
            self._give_up(error)
            return
        if self._receiver.is_blocked:
            self._retry = self._loop.call_later(_RETRY_SECONDS, self._try_again)
        self._steer()

    @override
    def pause_writing(self) -> None:
        self._writable.clear()

    @override
    def resume_writing(self) -> None:
        self._writable.set()
        self._moved.set()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._outgoing is not None:
            self._outgoing.drop()
            self._outgoing = None
        if self._answerer is not None:
            self._answerer.cancel()
        if self._retry is not None:
            self._retry.cancel()
        for request in self._answers:
            request.release()
        self._answers.clear()
        self._moved.set()
        self._finish_writes()
        self._budget.release(self._held)
        self._held = 0
        self._gone(self)

    def _finish_writes(self) -> None:
        """Of what is open when the client has gone, let only writes go on (those with acks 0 above all)."""
        self._frames = deque(frame for frame in self._frames if self._dispatch.outlives_client(frame))
        if self._current is not None and self._dispatch.outlives_client(self._current):
            return
        if self._taker is not None:
            self._taker.cancel()
            self._taker = None
        if self._frames:
            self._taker = self._loop.create_task(self._take(), name="kafka requests")

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.abort()

    def finish(self) -> None:
        """Take nothing new, answer what was taken, then close."""
        self._is_finishing = True
        self._frames.clear()
        self._steer()
        self._close_if_finished()

    def _close_if_finished(self) -> None:
        if self._is_finishing and self.is_idle and self._transport is not None:
            self._send_held()
            self._transport.close()

    def _give_up(self, error: Exception) -> None:
        """Close the connection for what is wrong with a request, or with us; nothing behind it is taken."""
        self._is_given_up = True
        self._frames.clear()
        if isinstance(error, MalformedMessageError):
            _log.info("a Kafka connection is closed", client=self._host, reason=str(error))
        else:
            _log.error(
                "a Kafka connection is closed after an unexpected error", client=self._host, exc_info=error
            )
        self._send_held()
        self.abort()

    def _admit(self, length: int) -> bool:
        """Hold memory for a large frame; small ones are bounded by the number of requests."""
        if length <= RECEIVE_BYTES:
            return True
        try:
            self._budget.reserve(length)
        except BusyError:
            return False
        self._held += length
        return True

    def _try_again(self) -> None:
        self._retry = None
        if not self._receiver.retry():
            self._retry = self._loop.call_later(_RETRY_SECONDS, self._try_again)
        self._steer()

    def _steer(self) -> None:
        """Receive, or do not, as the connection's state wants it."""
        if self._transport is None or self._transport.is_closing():
            return
        full = len(self._frames) + len(self._answers) >= self._limits.max_pending_requests
        wanted = not (full or self._receiver.is_blocked or self._is_finishing)
        if wanted != self._is_receiving:
            self._is_receiving = wanted
            if wanted:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _deliver(self, frame: memoryview) -> None:
        if self._is_finishing or self._is_given_up:
            return
        if self._taker is None and self._has_room:
            try:
                answer = self._dispatch.take_at_once(frame, self._host)
            except Exception as error:  # noqa: BLE001  # one client's trouble is not another's
                self._give_up(error)
                return
            if answer is not None:
                self._open(frame, answer)
                return
            self._tried = frame
        self._frames.append(frame)
        if self._taker is None:
            self._taker = self._loop.create_task(self._take(), name="kafka requests")

    async def _take(self) -> None:
        try:
            while self._frames:
                await self._room()
                if not self._frames:
                    break
                self._current = frame = self._frames.popleft()
                was_tried, self._tried = frame is self._tried, None
                answer = await self._dispatch.take(frame, self._host, was_tried=was_tried)
                self._current = None
                self._open(frame, answer)
                del frame
        except Exception as error:  # noqa: BLE001  # as above
            self._give_up(error)
        finally:
            if self._taker is asyncio.current_task():
                self._current = None
                self._taker = None
        self._close_if_finished()

    def _open(self, frame: memoryview, answer: Answer) -> None:
        """See to it that the answer to a request leaves when its turn comes."""
        request = _Open(len(frame) if len(frame) > RECEIVE_BYTES else 0, answer)
        if self._outgoing is None:
            request.release()
            return
        if not self._answers and self._writable.is_set() and isinstance(answer, HeldBuffers | list):
            # Nobody's turn comes before, and nothing is in its way.
            request.write_to(self._outgoing)
            if self._writable.is_set():
                self._left(request)
                self._steer()
                return
        self._answers.append(request)
        if self._answerer is None:
            self._answerer = self._loop.create_task(self._answer(), name="kafka answers")
        self._steer()

    @property
    def _has_room(self) -> bool:
        """Whether the answers before have left far enough for another one to be made."""
        return self._writable.is_set() and len(self._answers) < self._limits.max_pending_requests

    async def _room(self) -> None:
        """Until there is."""
        while self._transport is not None and not self._has_room:
            self._moved.clear()
            await self._moved.wait()

    async def _answer(self) -> None:
        try:
            while self._answers:
                request = self._answers[0]
                if request.answer is not None:
                    await self._send(request)
                self._answers.popleft()
                self._left(request)
                self._moved.set()
                self.last_active = self._loop.time()
                self._steer()
        except TimeoutError:
            _log.info("a Kafka client does not read its answers", client=self._host)
            self.abort()
        except Exception as error:  # noqa: BLE001  # as above
            self._give_up(error)
        finally:
            self._answerer = None
            self._send_held()
        self._close_if_finished()

    def _send_held(self) -> None:
        """What is ready leaves now."""
        if self._outgoing is not None:
            self._outgoing.flush()

    def _left(self, request: _Open) -> None:
        """The answer is out: let go of what the request held."""
        request.release()
        self._budget.release(request.held)
        self._held -= request.held

    async def _send(self, request: _Open) -> None:
        if callable(request.answer):
            request.answer = await request.answer()
        if self._outgoing is not None:
            request.write_to(self._outgoing, more=len(self._answers) > 1)
        if not self._writable.is_set():
            await asyncio.wait_for(self._writable.wait(), self._limits.slow_reader_seconds)
        request.release()
