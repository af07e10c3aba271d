"""One client's connection: requests in, answers out in the same order.

Requests are taken one after the other; an answer that is still to come (`Later`) does not keep the next
request waiting, so produce requests of a pipelining client share a flight to the store. How many requests a
connection may have open is bounded, and so are the bytes of those that are not taken yet: beyond either, and
while answers do not leave, nothing more is received. What lies here counts in a budget that all connections
share; while that is used up, nothing is received of those that have anything open.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, cast

import structlog
from typing_extensions import override

from agent.kafka.codec import MalformedMessageError
from agent.kafka.connection.frames import FrameReceiver
from agent.kafka.connection.open_request import OpenRequest
from agent.kafka.connection.outgoing import Outgoing
from agent.runtime.errors import BusyError

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.kafka.connection.limits import ConnectionLimits
    from agent.kafka.dispatch import Answer, Dispatch
    from agent.runtime.byte_budget import ByteBudget

_log = structlog.get_logger(__name__)
_RETRY_SECONDS = 0.02
# What may stand in a socket's buffer and is in no budget any more.
_HIGH_WATER_BYTES = 256 * 1024
# A frame of which only a part has come counts from this size on, so that small ones never wait for memory.
_UNCOUNTED_BYTES = 4 * 1024
# Of requests that are not taken yet, and of answers whose turn has not come: beyond it no more are received,
# or taken.
_MAX_WAITING_BYTES = 1024 * 1024


class Connection(asyncio.BufferedProtocol):
    """One connection, from its begin to its end. Belongs to the event loop."""

    def __init__(
        self,
        dispatch: Dispatch,
        budget: ByteBudget,
        limits: ConnectionLimits,
        shared: memoryview,
        *,
        made: Callable[[Connection], bool],
        gone: Callable[[Connection], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._dispatch = dispatch
        self._budget = budget
        self._limits = limits
        self._made = made
        self._gone = gone
        self._frames: deque[memoryview] = deque()
        self._answers: deque[OpenRequest] = deque()
        self._receiver = FrameReceiver(
            shared, limit=limits.max_request_bytes, admit=self._admit, deliver=self._deliver
        )
        self._transport: asyncio.Transport | None = None
        self._outgoing: Outgoing | None = None  # as long as there is a transport
        self.host = ""
        self._held = 0  # of the budget
        self._coming = 0  # of that, for a frame that has not come as a whole
        self._untaken = 0  # bytes of all frames
        self._ready = 0  # bytes of answers whose turn has not come
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
        self.last_active = self._loop.time()
        self.closed_for = ""  # why, where that is counted

    @property
    def is_idle(self) -> bool:
        """Whether nothing is open; half a request does not count as open."""
        return not self._frames and not self._answers and self._taker is None

    def is_silent_since(self, moment: float) -> bool:
        """Whether nothing happened since, and nothing is open, or of use to a client that may have gone."""
        return self.last_active < moment and (self.is_idle or self._is_finishing)

    def keeps_waiting_since(self, moment: float) -> bool:
        """Whether half a request holds memory, and nothing more of it has come since."""
        return self._coming > 0 and self._is_receiving and self.last_active < moment

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's are none by inheritance
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._outgoing = Outgoing(self._loop, self._transport)
        peer = transport.get_extra_info("peername")
        self.host = str(peer[0]) if peer else ""
        if self._is_finishing:
            self._transport.abort()
        elif not self._made(self):
            self.abort("refused")

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.room()

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._loop.time()
        try:
            self._receiver.received(nbytes)
        except MalformedMessageError as error:
            if not self._is_finishing:
                self._give_up(error)
            return
        if self._receiver.is_blocked:
            self._retry = self._loop.call_later(_RETRY_SECONDS, self._try_again)
        self._steer()

    @override
    def eof_received(self) -> bool:
        """Nothing more comes: answer what came, then close, as Kafka does, which hears of it no sooner."""
        self._is_finishing = True
        self._steer()
        self._close_if_finished()
        return True

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
        self._ready = 0
        self._moved.set()
        self._finish_writes()
        self._hold(self._untaken + len(self._current or b"") - self._held)
        self._gone(self)

    def _finish_writes(self) -> None:
        """Of what is open when the client has gone, let only writes go on (those with acks 0 above all)."""
        self._frames = deque(frame for frame in self._frames if self._dispatch.outlives_client(frame))
        self._untaken = sum([len(frame) for frame in self._frames])
        if self._current is not None and self._dispatch.outlives_client(self._current):
            return
        self._current = None
        if self._taker is not None:
            self._taker.cancel()
            self._taker = None
        if self._frames:
            self._taker = self._loop.create_task(self._take(), name="kafka requests")

    def abort(self, reason: str = "") -> None:
        """Close at once."""
        self.closed_for = self.closed_for or reason
        if self._transport is not None:
            self._outgoing = None
            self._transport.abort()

    def finish(self) -> None:
        """Take nothing new, answer what was taken, then close."""
        self._is_finishing = True
        self._drop_frames()
        self._steer()
        self._close_if_finished()

    def _drop_frames(self) -> None:
        self._frames.clear()
        self._hold(-self._untaken)
        self._untaken = 0

    def _close_if_finished(self) -> None:
        if self._is_finishing and self.is_idle:
            self._close()

    def _close(self) -> None:
        """As soon as what was written has left; from now on nothing more is."""
        if self._transport is not None:
            self._send_held()
            self._outgoing = None
            self._transport.close()

    def _give_up(self, error: Exception) -> None:
        """End for what is wrong with a request: nothing behind it is taken, those before it are answered."""
        self._tell(error)
        self._is_finishing = True
        self._steer()
        self._close_if_finished()

    def _tell(self, error: Exception) -> None:
        """Why the connection is closed; what is no fault of the client's is one of ours."""
        if isinstance(error, MalformedMessageError):
            _log.info("a Kafka connection is closed", client=self.host, reason=str(error))
            return
        _log.error("a Kafka connection is closed after an unexpected error", client=self.host, exc_info=error)

    def _admit(self, length: int) -> bool:
        """Hold memory for a frame of which more is to come."""
        if length <= _UNCOUNTED_BYTES:
            return True
        try:
            self._budget.reserve(length)
        except BusyError:
            return False
        self._held += length
        self._coming = length
        return True

    def _hold(self, count: int) -> None:
        """Count so many bytes more, or less."""
        self._held += count
        if count > 0:
            self._budget.add(count)
        elif count:
            self._budget.release(-count)

    def _try_again(self) -> None:
        self._retry = None
        if not self._is_finishing and not self._receiver.retry():
            self._retry = self._loop.call_later(_RETRY_SECONDS, self._try_again)
        self._steer()

    def _steer(self) -> None:
        """Receive, or do not, as the connection's state wants it."""
        if self._transport is None or self._transport.is_closing():
            return
        count = len(self._frames) + len(self._answers)
        full = (
            count >= self._limits.max_pending_requests
            or self._untaken > _MAX_WAITING_BYTES
            or (count > 0 and self._budget.is_full)
        )
        wanted = not (full or self._receiver.is_blocked or self._is_finishing)
        if wanted != self._is_receiving:
            self._is_receiving = wanted
            if wanted:
                self.last_active = self._loop.time()  # who was not read could not do anything
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _deliver(self, frame: memoryview) -> None:
        held, self._coming = self._coming, 0
        if self._is_finishing:
            return
        if self._taker is None and self._has_room:
            try:
                answer = self._dispatch.take_at_once(frame, self.host)
            except Exception as error:  # noqa: BLE001  # one client's trouble is not another's
                self._give_up(error)
                return
            if answer is not None:
                self._open(frame, answer, held)
                return
            self._tried = frame
        if not held:
            self._hold(len(frame))
        self._frames.append(frame)
        self._untaken += len(frame)
        if self._taker is None:
            self._taker = self._loop.create_task(self._take(), name="kafka requests")

    async def _take(self) -> None:
        try:
            while self._frames:
                await self._room()
                if not self._frames:
                    break
                self._current = frame = self._frames.popleft()
                self._untaken -= len(frame)
                was_tried, self._tried = frame is self._tried, None
                self._steer()
                answer = await self._dispatch.take(frame, self.host, was_tried=was_tried)
                if self._current is not frame:
                    OpenRequest(answer).release()
                    return  # the client has gone, and what was held for it
                self._current = None
                self._open(frame, answer, len(frame))
                del frame
        except Exception as error:  # noqa: BLE001  # as above
            if self._taker is asyncio.current_task():
                self._drop_frames()
                self._hold(-len(self._current or b""))
                self._give_up(error)
        finally:
            if self._taker is asyncio.current_task():
                self._current = None
                self._taker = None
        self._close_if_finished()

    def _open(self, frame: memoryview, answer: Answer, held: int) -> None:
        """See to it that the answer leaves when its turn comes; `held` bytes are counted for the request."""
        request = OpenRequest(answer)
        if self._outgoing is None:
            request.release()
            self._hold(-held)
            return
        if not self._answers and self._writable.is_set() and not callable(answer):
            # Nobody's turn comes before, and nothing is in its way.
            request.write_to(self._outgoing)
            if self._writable.is_set():
                request.release()
                self._hold(-held)
                if not self._is_receiving:
                    self._steer()
                return
            request.release_small()
        request.count(frame)
        self._hold(request.held - held)
        self._ready += request.ready
        self._answers.append(request)
        if self._answerer is None:
            self._answerer = self._loop.create_task(self._answer(), name="kafka answers")
        self._steer()

    @property
    def _has_room(self) -> bool:
        """Whether the answers before have left far enough for another one to be made."""
        return (
            self._writable.is_set()
            and len(self._answers) < self._limits.max_pending_requests
            and self._ready <= _MAX_WAITING_BYTES
        )

    async def _room(self) -> None:
        """Until there is."""
        while self._transport is not None and not self._has_room:
            self._moved.clear()
            await self._moved.wait()

    async def _answer(self) -> None:
        try:
            while self._answers:
                request = self._answers[0]
                if not await self._send(request):
                    _log.info("a Kafka client does not read its answers", client=self.host)
                    self.abort("unread")
                    break
                if self._transport is None:
                    break  # lost meanwhile, and all was let go of
                self._answers.popleft()
                self._left(request)
                self._moved.set()
                self.last_active = self._loop.time()
                self._steer()
        except Exception as error:  # noqa: BLE001  # as above
            self._tell(error)
            self._drop_answers()
        finally:
            self._answerer = None
            self._send_held()
        self._close_if_finished()

    def _drop_answers(self) -> None:
        """Close: one of them cannot be given, and those behind it must not be taken for it."""
        self._is_finishing = True
        self._drop_frames()
        for request in self._answers:
            self._left(request)
        self._answers.clear()
        self._close()

    def _send_held(self) -> None:
        """What is ready leaves now."""
        if self._outgoing is not None:
            self._outgoing.flush()

    def _left(self, request: OpenRequest) -> None:
        """The answer is out, or will never be: let go of what the request held."""
        self._ready -= request.ready
        request.release()
        self._hold(-request.held)

    async def _send(self, request: OpenRequest) -> bool:
        """Hand over the answer in its turn; whether the client reads."""
        if callable(request.answer):
            request.answer = await request.answer()
        if self._outgoing is None:
            return True
        request.write_to(self._outgoing, more=len(self._answers) > 1)
        if self._writable.is_set():
            return True
        request.release_small()
        return await self._outgoing.drained(
            self._writable, self._limits.patience, lambda: request.holds_memory or self._held > 0
        )
