"""One client's connection: requests come in, responses go out in the same order.

Requests are handled one at a time. A pending response (`DeferredResponse`) does not delay the next request,
so that the produce requests of a pipelining client share one ingestion file.

Memory is bounded in three ways. The connection limits the number of its open requests, and the bytes of
requests that are not handled yet. Above either limit, or while the client does not read its responses, the
connection stops receiving. All connections share a budget for these bytes. Those whose clients have not
logged in share a separate small budget. While a budget is full, its connections with open requests stop
receiving.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, cast

import structlog
from typing_extensions import override

from agent.kafka.codec import MalformedMessageError
from agent.kafka.connection.frames import MIN_FRAME_BYTES, ForeignProtocolError, FrameReceiver, memory_of
from agent.kafka.connection.incoming_memory import MIN_COUNTED_BYTES
from agent.kafka.connection.responses import QueuedResponse, ResponseWriter
from agent.security.errors import AuthenticationFailedError, LoginUnavailableError
from agent.security.identity import ANONYMOUS, Client, Principal

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.kafka.connection.incoming_memory import IncomingMemory
    from agent.kafka.connection.limits import ConnectionLimits
    from agent.kafka.dispatcher import RequestDispatcher, Response
    from agent.runtime.cooperative_yield import IterationBudget
    from agent.security.login import SaslLogin

_log = structlog.get_logger(__name__)
_RETRY_SECONDS = 0.02
_HIGH_WATER_BYTES = 256 * 1024  # of the transport's write buffer, which no budget counts
# Bound on requests that are not handled yet, and on responses that wait for earlier ones. Beyond it the
# connection receives, or handles, no more requests.
_MAX_WAITING_BYTES = 1024 * 1024

_MAX_FRAMES_BEFORE_LOGIN = 4  # a single read may bring thousands


class LoginRefusedError(MalformedMessageError):
    """The client sent something else than its login. Its connection is closed without a response."""


class SessionExpiredError(MalformedMessageError):
    """The session of the client has ended (KIP-368). Its connection is closed without a response."""


class _WaitingFrame(NamedTuple):
    """A request that waits for earlier ones, and a monotonic time that is not after its arrival."""

    frame: memoryview
    arrived_at: float


class Connection(asyncio.BufferedProtocol):
    """One connection, from accept to close. Belongs to the event loop.

    `on_open` returns False for a connection that is to be rejected. `on_close` is called once. `login` is
    None if the listener has no SASL. With it, only requests of the login are handled until `on_login` is
    called, and the bounds of a login hold. Until then, `login_memory` is used in place of `memory`.
    """

    def __init__(
        self,
        dispatcher: RequestDispatcher,
        memory: IncomingMemory,
        loop_share: IterationBudget,
        limits: ConnectionLimits,
        receive_buffer: memoryview,
        *,
        listener_name: str,
        on_open: Callable[[Connection], bool],
        on_close: Callable[[Connection], None],
        login: SaslLogin | None = None,
        on_login: Callable[[Connection], None] = lambda _: None,
        login_memory: IncomingMemory | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._dispatcher = dispatcher
        self._request_memory = memory
        self._memory = memory if login_memory is None else login_memory  # until the client has logged in
        self._loop_share = loop_share
        self._limits = limits
        self._on_open = on_open
        self._on_close = on_close
        self._on_login = on_login
        self._login_end: asyncio.TimerHandle | None = None
        self._max_pending = limits.max_pending_requests
        self._frames: deque[_WaitingFrame] = deque()
        self._responses: deque[QueuedResponse] = deque()
        self._receiver = FrameReceiver(
            receive_buffer,
            max_frame_bytes=limits.max_request_bytes,
            reserve=self._reserve,
            has_room=lambda: self._memory.has_room,
            deliver=self._deliver,
        )
        self._transport: asyncio.Transport | None = None
        self._writer: ResponseWriter | None = None  # set while the transport accepts writes
        self.client = Client("", listener_name, mute=self.mute)
        self.client.login = login
        if login is not None:
            self._max_pending = limits.login.max_pending_requests
            self._receiver.set_bounds(MIN_FRAME_BYTES, limits.login.max_request_bytes)
        self._counted_bytes = 0  # in the budget
        self._incoming_bytes = 0  # of the counted bytes, those of an incomplete frame
        self._received_bytes = 0  # since the last check of the rate
        self._slow_checks = 0
        self._frame_bytes = 0  # of all queued frames
        self._ready_bytes = 0  # of responses that wait for earlier ones
        self._current: memoryview | None = None
        self._tried: memoryview | None = None  # a frame that the fast path rejected
        self._handling: asyncio.Task[None] | None = None
        self._sending: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        self._muted: asyncio.TimerHandle | None = None  # set while the client is throttled
        self._mute_ends = 0.0  # uvloop's handle does not know it if the time is near
        self._progress = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._is_receiving = True
        self._is_finishing = False
        self.last_active = self._loop.time()
        self.has_requested = False  # True once a whole request has arrived
        self.close_reason = ""  # set where the metric of closed connections counts it

    @property
    def has_no_requests(self) -> bool:
        """True if no request is open. An incomplete request is not open."""
        return not self._frames and not self._responses and self._handling is None

    def is_idle_since(self, moment: float) -> bool:
        """Return True if nothing was received or sent since `moment`, and the client expects no response.

        A client whose connection is finishing may be gone, so its open requests do not count.
        """
        return self.last_active < moment and (self.has_no_requests or self._is_finishing)

    def slow_checks(self, min_bytes: float) -> int:
        """Count a check of the rate at which an incomplete request with memory arrives.

        Return how many checks in a row have found that fewer than `min_bytes` have arrived since the one
        before. Time in which the connection did not receive does not count.
        """
        received, self._received_bytes = self._received_bytes, 0
        is_slow = self._incoming_bytes > 0 and self._is_receiving and received < min_bytes
        self._slow_checks = self._slow_checks + 1 if is_slow else 0
        return self._slow_checks

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's transports do not inherit from it
        self._transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._writer = ResponseWriter(self._loop, self._transport)
        peer = transport.get_extra_info("peername")
        self.client.host = str(peer[0]) if peer else ""
        self.client.principal = transport.get_extra_info("principal", ANONYMOUS)
        if self._is_finishing:
            self._transport.abort()
        elif not self._on_open(self):
            self.abort("quota")
        elif self.client.login is not None:
            self.client.login.host = self.client.host
            self._login_end = self._loop.call_later(self._limits.login.seconds, self.abort, "login_timeout")

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._receiver.buffer()

    @override
    def buffer_updated(self, nbytes: int) -> None:
        self.last_active = self._loop.time()
        self._received_bytes += nbytes
        try:
            self._receiver.received(nbytes)
        except MalformedMessageError as error:
            if not self._is_finishing:
                self._fail(error)
            return
        if self._receiver.is_blocked:
            self._retry = self._loop.call_later(_RETRY_SECONDS, self._retry_reservation)
        self._update_reading()

    @override
    def eof_received(self) -> bool:
        """Respond to the requests that arrived, then close, as Kafka does."""
        self._is_finishing = True
        self._update_reading()
        self._close_if_finished()
        return True

    @override
    def pause_writing(self) -> None:
        self._writable.clear()

    @override
    def resume_writing(self) -> None:
        self._writable.set()
        self._progress.set()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._writer is not None:
            self._writer.discard()
            self._writer = None
        if self._sending is not None:
            self._sending.cancel()
        for timer in (self._retry, self._muted, self._login_end):
            if timer is not None:
                timer.cancel()
        for response in self._responses:
            response.release()
        self._responses.clear()
        self._ready_bytes = 0
        self._progress.set()
        self._keep_writes()
        self._memory.end(self)
        self._count_bytes(self._frame_bytes + memory_of(self._current) - self._counted_bytes)
        self._on_close(self)

    def _keep_writes(self) -> None:
        """After the client has gone, continue only requests that write, above all those with acks 0."""
        self._frames = deque(each for each in self._frames if self._dispatcher.outlives_client(each.frame))
        self._frame_bytes = sum([memory_of(each.frame) for each in self._frames])
        if self._current is not None and self._dispatcher.outlives_client(self._current):
            return
        self._current = None
        if self._handling is not None:
            self._handling.cancel()
            self._handling = None
        if self._frames:
            self._handling = self._loop.create_task(self._handle_frames(), name="kafka requests")

    def abort(self, reason: str = "") -> None:
        """Close at once, without sending what is buffered."""
        self.close_reason = self.close_reason or reason
        if self._transport is not None:
            self._writer = None
            self._transport.abort()

    def mute(self, seconds: float) -> None:
        """Receive nothing for so long, because the client is throttled; a longer mute holds.

        Requests that have arrived are handled, and a request that has arrived in part is received, so that
        none of them retains memory meanwhile.
        """
        until = self._loop.time() + seconds
        if self._transport is None or (self._muted is not None and self._mute_ends >= until):
            return
        if self._muted is not None:
            self._muted.cancel()
        self._mute_ends = until
        self._muted = self._loop.call_at(until, self._unmute)
        self._update_reading()

    def _unmute(self) -> None:
        if self._muted is not None:
            self._muted.cancel()
            self._muted = None
            self._update_reading()

    def end_mute_if_closed(self) -> None:
        """End the mute if the client has closed its side. Nothing else shows it while nothing is received."""
        if self._muted is not None and self._writer is not None and self._writer.peer_has_closed():
            self._unmute()

    def finish(self) -> None:
        """Drop queued requests, respond to those already handled, then close."""
        self._is_finishing = True
        self._drop_frames()
        self._update_reading()
        self._close_if_finished()

    def _drop_frames(self) -> None:
        self._frames.clear()
        self._count_bytes(-self._frame_bytes)
        self._frame_bytes = 0

    def _close_if_finished(self) -> None:
        if self._is_finishing and self.has_no_requests:
            self._close()

    def _close(self) -> None:
        """Close once the transport has sent its buffer, and write nothing more."""
        if self._transport is not None:
            self._flush()
            self._writer = None
            self._transport.close()

    def _fail(self, error: Exception) -> None:
        """Close because of a bad request. Earlier requests get their responses, later ones are ignored."""
        self._log_failure(error)
        self._is_finishing = True
        self._update_reading()
        self._close_if_finished()

    def _log_failure(self, error: Exception) -> None:
        """Log why the connection is closed: a client's fault as information, any other error as our own."""
        if isinstance(error, ForeignProtocolError):
            _log.warning(
                "a client of the Kafka listener is disconnected", client=self.client.host, reason=str(error)
            )
            return
        if isinstance(error, MalformedMessageError):
            _log.info("a Kafka connection is closed", client=self.client.host, reason=str(error))
            return
        _log.error(
            "a Kafka connection is closed after an unexpected error", client=self.client.host, exc_info=error
        )

    def _reserve(self, held: int, received: int, length: int) -> int:
        """Reserve more memory for an incomplete frame; return how much is reserved now."""
        if length <= MIN_COUNTED_BYTES:
            return length
        self._incoming_bytes = self._memory.reserve(self, held, received, length)
        self._counted_bytes += self._incoming_bytes - held
        return self._incoming_bytes

    def _count_bytes(self, change: int) -> None:
        """Count so many bytes more, or fewer, in the budget. These bytes are in memory already."""
        self._counted_bytes += change
        if change > 0:
            self._memory.budget.reserve_unchecked(change)
        elif change:
            self._memory.budget.release(-change)

    def _retry_reservation(self) -> None:
        self._retry = None
        if not self._is_finishing and not self._receiver.retry():
            self._retry = self._loop.call_later(_RETRY_SECONDS, self._retry_reservation)
        self._update_reading()

    def _update_reading(self) -> None:
        """Pause or resume receiving, as the bounds demand."""
        if self._transport is None or self._transport.is_closing():
            return
        count = len(self._frames) + len(self._responses)
        is_full = (
            count >= self._max_pending
            or self._frame_bytes > _MAX_WAITING_BYTES
            or (count > 0 and self._memory.budget.is_full)
        )
        is_muted = self._muted is not None and not self._receiver.has_buffer
        wanted = not (is_full or is_muted or self._receiver.is_blocked or self._is_finishing)
        if wanted != self._is_receiving:
            self._is_receiving = wanted
            if wanted:
                self.last_active = self._loop.time()  # the client could not be active while paused
                self._slow_checks = 0
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def _deliver(self, frame: memoryview) -> None:
        self.has_requested = True
        counted, self._incoming_bytes = self._incoming_bytes, 0
        if counted:
            self._memory.end(self)
        if self._is_finishing:
            return
        login = self.client.login
        if login is not None and not login.is_authenticated and len(self._frames) >= _MAX_FRAMES_BEFORE_LOGIN:
            self._fail(LoginRefusedError("the client must log in before it sends more requests"))
            return
        is_allowed = login is None or login.is_current
        if is_allowed and self._handling is None and self._can_handle_more and not self._loop_share.is_spent:
            try:
                response = self._dispatcher.try_fast_path(frame, self.client)
            except Exception as error:  # noqa: BLE001  # an error closes this connection and no other
                self._fail(error)
                return
            if response is not None:
                self._enqueue(frame, response, counted)
                return
            self._tried = frame
        if not counted:
            self._count_bytes(memory_of(frame))
        self._frames.append(_WaitingFrame(frame, self._dispatcher.arrival_time()))
        self._frame_bytes += memory_of(frame)
        if self._handling is None:
            self._handling = self._loop.create_task(self._handle_frames(), name="kafka requests")

    async def _handle_frames(self) -> None:
        try:
            while self._frames:
                await self._wait_until_more_can_be_handled()
                await self._loop_share.wait()
                if not self._frames:
                    break
                frame, arrived_at = self._frames.popleft()
                self._current = frame
                self._frame_bytes -= memory_of(frame)
                was_tried, self._tried = frame is self._tried, None
                self._update_reading()
                response = await self._respond(frame, arrived_at, was_tried=was_tried)
                if self._current is not frame:
                    QueuedResponse(response).release()
                    return  # the client has gone, and `connection_lost` released the frame
                self._current = None
                self._enqueue(frame, response, memory_of(frame))
                del frame
        except Exception as error:  # noqa: BLE001  # as above
            if self._handling is asyncio.current_task():
                self._drop_frames()
                self._count_bytes(-memory_of(self._current))
                self._fail(error)
        finally:
            if self._handling is asyncio.current_task():
                self._current = None
                self._handling = None
        self._close_if_finished()

    async def _respond(self, frame: memoryview, arrived_at: float, *, was_tried: bool) -> Response:
        """Handle a request, if the client may send it now."""
        login = self.client.login
        if login is None:
            return await self._dispatcher.handle(
                frame, self.client, arrived_at=arrived_at, was_tried=was_tried
            )
        was_authenticated = login.is_authenticated
        if login.expects_bare_tokens:
            response = await _respond_to_bare_token(login, frame)
        elif login.admits(int.from_bytes(frame[:2], "big")):
            response = await self._dispatcher.handle(
                frame, self.client, arrived_at=arrived_at, was_tried=was_tried
            )
        elif login.is_authenticated:
            self.close_reason = "session_expired"
            raise SessionExpiredError("the session has expired")
        else:
            await login.fail("unexpected_request")
            raise LoginRefusedError("the client must log in first")
        self._follow(login, was_authenticated=was_authenticated)
        return response

    def _follow(self, login: SaslLogin, *, was_authenticated: bool) -> None:
        """Apply the bounds of the state that a login has reached."""
        if login.is_failed:
            self.client.principal = ANONYMOUS
            self.close_reason = "login_failed"
            self._is_finishing = True
            self._drop_frames()
            self._update_reading()
            return
        limits, least = self._limits, 1 if login.expects_bare_tokens else MIN_FRAME_BYTES
        if not login.is_authenticated:
            self._receiver.set_bounds(least, limits.login.max_request_bytes)
        elif not was_authenticated:
            self.client.principal = Principal("User", login.user or "")
            self._receiver.set_bounds(least, limits.max_request_bytes)
            self._max_pending = limits.max_pending_requests
            self._use_request_memory()
            if self._login_end is not None:
                self._login_end.cancel()
            self._on_login(self)

    def _use_request_memory(self) -> None:
        """Count what is in memory in the budget of requests from now on."""
        counted = self._counted_bytes
        self._count_bytes(-counted)
        self._memory.end(self)
        self._memory = self._request_memory
        self._count_bytes(counted)

    def _enqueue(self, frame: memoryview, response: Response, counted: int) -> None:
        """Send the response after all earlier ones. The budget counts `counted` bytes for the request."""
        queued = QueuedResponse(response)
        if self._writer is None:
            queued.release()
            self._count_bytes(-counted)
            return
        if not self._responses and self._writable.is_set() and not callable(response):
            # No earlier response is pending and the transport can take more: write without a task.
            queued.write_to(self._writer)
            if self._writable.is_set():
                queued.release()
                self._count_bytes(-counted)
                if not self._is_receiving:
                    self._update_reading()
                return
            queued.release_if_small()
        queued.count(memory_of(frame))
        self._count_bytes(queued.counted_bytes - counted)
        self._ready_bytes += queued.ready_bytes
        self._responses.append(queued)
        if self._sending is None:
            self._sending = self._loop.create_task(self._send_responses(), name="kafka responses")
        self._update_reading()

    @property
    def _can_handle_more(self) -> bool:
        """True if enough of the earlier responses has left to make another one."""
        return (
            self._writable.is_set()
            and len(self._responses) < self._max_pending
            and self._ready_bytes <= _MAX_WAITING_BYTES
        )

    async def _wait_until_more_can_be_handled(self) -> None:
        while self._transport is not None and not self._can_handle_more:
            self._progress.clear()
            await self._progress.wait()

    async def _send_responses(self) -> None:
        try:
            while self._responses:
                queued = self._responses[0]
                if not await self._send(queued):
                    _log.info("a Kafka client does not read its responses", client=self.client.host)
                    self.abort("slow_reader")
                    break
                if self._transport is None:
                    break  # `connection_lost` has released everything
                self._responses.popleft()
                self._release(queued)
                self._progress.set()
                self.last_active = self._loop.time()
                self._update_reading()
        except Exception as error:  # noqa: BLE001  # as above
            self._log_failure(error)
            self._drop_responses()
        finally:
            self._sending = None
            self._flush()
        self._close_if_finished()

    def _drop_responses(self) -> None:
        """Close because one response failed: the client would take a later response for it."""
        self._is_finishing = True
        self._drop_frames()
        for queued in self._responses:
            self._release(queued)
        self._responses.clear()
        self._close()

    def _flush(self) -> None:
        if self._writer is not None:
            self._writer.flush()

    def _release(self, queued: QueuedResponse) -> None:
        """Release the memory of a response that has left or is dropped, and of its request."""
        self._ready_bytes -= queued.ready_bytes
        queued.release()
        self._count_bytes(-queued.counted_bytes)

    async def _send(self, queued: QueuedResponse) -> bool:
        """Write the first queued response; return False if the client does not read."""
        if callable(queued.response):
            queued.response = await queued.response()
        if self._writer is None:
            return True
        queued.write_to(self._writer, more_follow=len(self._responses) > 1)
        if self._writable.is_set():
            return True
        queued.release_if_small()
        return await self._writer.wait_until_writable(
            self._writable,
            self._limits.slow_clients,
            lambda: queued.retains_memory or self._counted_bytes > 0,
        )


async def _respond_to_bare_token(login: SaslLogin, token: memoryview) -> Response:
    """Return the mechanism's response with its length. Without a request, a failure has no response."""
    try:
        step = await login.authenticate(bytes(token))
    except (AuthenticationFailedError, LoginUnavailableError) as error:
        raise LoginRefusedError(error.message) from None
    return [len(step.message).to_bytes(4, "big"), step.message]
