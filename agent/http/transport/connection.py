"""One connection of an HTTP client: uvicorn's protocol, with limits on what a client sends and how slowly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import structlog
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agent.runtime.foreign_protocols import FIRST_BYTES, on_http_port
from agent.security.identity import ANONYMOUS, Client

if TYPE_CHECKING:
    import asyncio

    from agent.listeners import HttpListener

_log = structlog.get_logger(__name__)
_MAX_HEAD_BYTES = 64 * 1024  # also of the trailer of a chunked body
_MAX_HEADERS = 256
_MAX_PIPELINED = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Bounds on the connections of HTTP clients.

    A client without an open request must send the head of its next one within `head_seconds`, and must read
    the next part of a response within `write_seconds`.
    """

    head_seconds: float
    write_seconds: float
    max_connections: int


class RequestHeadError(ValueError):
    """The head of a request exceeds a limit."""


class LimitedProtocol(HttpToolsProtocol):
    """One connection. All connections of a server share `silent`.

    `silent` has the connections without an open request. The one that has had none for the longest time comes
    first: it is closed if there are too many connections.
    """

    limits: ClassVar[HttpLimits]
    listener: ClassVar[HttpListener]
    is_local: ClassVar[bool]
    silent: ClassVar[dict[LimitedProtocol, None]]
    identity: Client  # set when the connection is made
    stalled: asyncio.TimerHandle | None = None
    head_timeout: asyncio.TimerHandle | None = None
    is_in_head = False
    is_after_chunk_size = False  # the trailer of the body may follow
    head_bytes = 0
    read_bytes = 0
    is_known_http = False

    @override
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        super().connection_made(transport)
        host = self.client[0] if self.client else ""
        self.identity = Client(host, self.listener.name, transport.get_extra_info("principal", ANONYMOUS))
        self._await_head()
        if len(self.connections) > self.limits.max_connections:
            longest = next(iter(self.silent))
            if longest is not self:
                longest.end_head()
                self.connections.discard(longest)  # at once, because uvicorn counts them
                longest.transport.abort()

    @override
    def data_received(self, data: bytes) -> None:
        if not self.is_known_http:
            self.is_known_http = True
            if (sent := on_http_port(data[:FIRST_BYTES])) is not None:
                host = self.client[0] if self.client else "unknown"
                _log.warning("a client of the HTTP listener is disconnected", client=host, reason=sent)
                self.transport.abort()
                return
        self.read_bytes = len(data)
        super().data_received(data)
        if self.is_in_head or self.is_after_chunk_size:
            self.head_bytes += len(data)
            if self.head_bytes > _MAX_HEAD_BYTES and not self.transport.is_closing():
                part = "head" if self.is_in_head else "trailer"
                self.send_400_response(f"The {part} of the request is too large.")

    @override
    def on_message_begin(self) -> None:
        if len(self.pipeline) >= _MAX_PIPELINED:
            raise RequestHeadError("too many requests without a response")
        self.is_in_head = True
        self.is_after_chunk_size = False
        self.head_bytes = 0
        super().on_message_begin()
        self.scope["state"].update(listener=self.listener, client=self.identity, is_local=self.is_local)

    @override
    def on_header(self, name: bytes, value: bytes) -> None:
        if not self.is_in_head:
            return  # a field of a trailer: it must not count as a header (RFC 9110, 6.5.1)
        if len(self.headers) >= _MAX_HEADERS:
            raise RequestHeadError("too many headers")
        super().on_header(name, value)

    @override
    def on_headers_complete(self) -> None:
        self.is_in_head = False
        self.end_head()
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """Count what follows the size of a chunk until a byte of the chunk arrives: it may be a trailer."""
        self.is_after_chunk_size = True
        self.head_bytes = -self.read_bytes  # the chunks before it may be in the same bytes

    def on_chunk_complete(self) -> None:
        """Note the end of a chunk, or of the trailer."""
        self.is_after_chunk_size = False

    @override
    def on_body(self, body: bytes) -> None:
        self.is_after_chunk_size = False
        if self.scope["method"] == "POST":  # other bodies have no meaning, and no route would read them
            super().on_body(body)

    @override
    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.pipeline and self.cycle.response_complete and not self.transport.is_closing():
            self._await_head()

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        # `close` would wait until the client has read the rest.
        self.stalled = self.loop.call_later(self.limits.write_seconds, self.transport.abort)

    @override
    def resume_writing(self) -> None:
        self._cancel_timeout()
        super().resume_writing()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timeout()
        self.end_head()
        super().connection_lost(exc)

    def _await_head(self) -> None:
        self.end_head()
        self.silent[self] = None
        self.head_timeout = self.loop.call_later(self.limits.head_seconds, self._end_silence)

    def _end_silence(self) -> None:
        """Close the connection, after the client has read the rest of the last response."""
        if self.transport.get_write_buffer_size():
            self.head_timeout = self.loop.call_later(self.limits.write_seconds, self.transport.abort)
        else:
            self.transport.abort()

    def end_head(self) -> None:
        """Note that a request is open, or that the connection ends."""
        self.silent.pop(self, None)
        if self.head_timeout is not None:
            self.head_timeout.cancel()
            self.head_timeout = None

    def _cancel_timeout(self) -> None:
        if self.stalled is not None:
            self.stalled.cancel()
            self.stalled = None


def protocol_of(
    limits: HttpLimits, listener: HttpListener, *, is_local: bool = False
) -> type[LimitedProtocol]:
    """Return the protocol class of one server; `is_local` if only this machine can connect."""

    class Protocol(LimitedProtocol):
        pass

    Protocol.limits = limits
    Protocol.listener = listener
    Protocol.is_local = is_local
    Protocol.silent = {}
    return Protocol
