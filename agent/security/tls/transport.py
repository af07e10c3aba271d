"""TLS between a socket's transport and a protocol, with the same bounds and life cycle as without TLS.

The event loop's own TLS encrypts all written bytes at once and then reports an empty buffer. A client that
reads nothing could so make an agent hold large responses that no budget counts. Here, plain bytes wait in
`TlsTransport` as the views that were written. They are encrypted only when the socket takes them, and count
as unsent until then. `pause_reading` stops the socket as well.

A client that closes its side still gets its responses, as without TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections import deque
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from typing_extensions import override

from agent.runtime.foreign_protocols import FIRST_BYTES, on_tls_port
from agent.security.identity import ANONYMOUS, Principal
from agent.security.tls.distinguished_name import subject_of
from agent.security.tls.handshakes import log_failure
from agent.security.tls.principal_mapping import NoMatchingRuleError, PrincipalMapper

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.security.tls.certificates import Certificate
    from agent.security.tls.handshakes import Handshakes

_log = structlog.get_logger(__name__)
_RECEIVE_BYTES: Final = 64 * 1024
_HIGH_WATER_BYTES: Final = 64 * 1024  # of encrypted bytes that wait for the socket
_STEP_BYTES: Final = 64 * 1024  # that are encrypted together; OpenSSL keeps buffers as large as they were
_RECORD_BYTES: Final = 16 * 1024  # smaller buffers are joined, because each would be a record
_MAX_STEPS: Final = 4  # before other connections get their turn


class TlsListener:
    """The certificate, rules and receive buffer that all connections of a listener share.

    `maps_principals` is False if clients authenticate by SASL, and certificates only restrict who connects.
    """

    def __init__(
        self,
        name: str,
        certificate: Certificate,
        handshakes: Handshakes,
        *,
        rules: str,
        maps_principals: bool = True,
    ) -> None:
        self.name = name
        self.certificate = certificate
        self.handshakes = handshakes
        self.buffer = memoryview(bytearray(_RECEIVE_BYTES))
        self._mapper = PrincipalMapper(rules) if maps_principals else None

    def principal_of(self, connection: ssl.SSLObject) -> Principal:
        """Return the principal of a client; raise NoMatchingRuleError if no rule applies to its subject."""
        subject = connection.getpeercert(binary_form=True)
        if subject is None or self._mapper is None:
            return ANONYMOUS
        return Principal("User", self._mapper.name_of(subject_of(subject)))

    def connection(
        self,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        admits: Callable[[str], bool] = lambda _: True,
    ) -> TlsConnection:
        """Return the protocol of a new connection; it makes the inner protocol after the handshake.

        `admits` is asked for the client's address before the handshake, which is much work.
        """
        return TlsConnection(self, make_protocol, admits)


class TlsConnection(asyncio.BufferedProtocol):
    """The encrypted side of one connection. Belongs to the event loop."""

    def __init__(
        self,
        listener: TlsListener,
        make_protocol: Callable[[], asyncio.BaseProtocol],
        admits: Callable[[str], bool],
    ) -> None:
        self._listener = listener
        self._make_protocol = make_protocol
        self._admits = admits
        self._loop = asyncio.get_running_loop()
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self.tls = listener.certificate.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.socket_transport: asyncio.Transport | None = None
        self.principal = ANONYMOUS
        self._protocol: asyncio.BaseProtocol | None = None  # after the handshake
        self._transport: TlsTransport | None = TlsTransport(self)
        self._timeout: asyncio.TimerHandle | None = None
        self._first = b""
        self._is_known_tls = False
        self._is_reading = True
        self._has_eof = False  # of the socket
        self._is_ended = False  # the protocol knows that nothing more will come
        self.can_write = True

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.socket_transport = cast("asyncio.Transport", transport)  # uvloop's do not inherit from it
        if not self._admits(self.host):
            self.abort()
            return
        self.socket_transport.set_write_buffer_limits(high=_HIGH_WATER_BYTES)
        self._timeout = self._loop.call_later(self._listener.handshakes.seconds, self._time_out)
        self._listener.handshakes.begin(self)

    @override
    def get_buffer(self, sizehint: int) -> memoryview:
        return self._listener.buffer

    @override
    def buffer_updated(self, nbytes: int) -> None:
        data = self._listener.buffer[:nbytes]
        if not self._is_known_tls and self._is_foreign(bytes(data[:FIRST_BYTES])):
            return
        self._incoming.write(data)
        if self._protocol is None:
            self._shake_hands()
        else:
            self.read()

    def _is_foreign(self, data: bytes) -> bool:
        """Return True, and close, if the client does not speak TLS."""
        self._first += data
        if len(self._first) < FIRST_BYTES:
            return False
        self._is_known_tls = True
        if (sent := on_tls_port(self._first)) is None:
            return False
        _log.warning(
            "a client of a listener with TLS is disconnected",
            listener=self._listener.name,
            client=self.host,
            reason=sent,
        )
        self._end_handshake("foreign")
        self.abort()
        return True

    @property
    def host(self) -> str:
        """Address of the client without its port."""
        transport = self.socket_transport
        peer = None if transport is None else transport.get_extra_info("peername")
        return str(peer[0]) if peer else ""

    def _time_out(self) -> None:
        self._end_handshake("timeout")
        self.abort()

    def _end_handshake(self, outcome: str) -> None:
        self._listener.handshakes.end(self, outcome)
        if self._timeout is not None:
            self._timeout.cancel()
            self._timeout = None

    def _shake_hands(self) -> None:
        try:
            self.tls.do_handshake()
        except ssl.SSLWantReadError:
            self.send()
        except ssl.SSLError as error:
            self._end_handshake("failed")
            log_failure(self._listener.name, self.host, error)
            self._send_alert()
        else:
            self.send()
            self._open()

    def _send_alert(self) -> None:
        self.send()
        if self.socket_transport is not None:
            self.socket_transport.close()

    def _open(self) -> None:
        """Hand the connection to its protocol, unless no rule applies to the client's certificate."""
        try:
            self.principal = self._listener.principal_of(self.tls)
        except NoMatchingRuleError as error:
            self._end_handshake("failed")
            _log.warning(
                "a client is rejected", listener=self._listener.name, client=self.host, reason=str(error)
            )
            self.abort()
            return
        self._end_handshake("complete")
        assert self._transport is not None
        self._protocol = self._make_protocol()
        self._protocol.connection_made(self._transport)
        self.read()

    def read(self) -> None:
        """Decrypt what has arrived, until the protocol pauses."""
        try:
            while self._may_read and self._receive():
                pass
        except ssl.SSLError as error:
            _log.info(
                "a TLS connection fails", listener=self._listener.name, client=self.host, reason=error.reason
            )
            self._send_alert()
            return
        self.send()
        if self._has_eof and self._may_read:
            self._end_input()

    @property
    def _may_read(self) -> bool:
        return (
            self._is_reading
            and not self._is_ended
            and self._transport is not None
            and not self._transport.is_closing()
        )

    def _receive(self) -> bool:
        """Pass one buffer of plain bytes to the protocol; return False if there were none."""
        protocol = self._protocol
        if not self._incoming.pending and not self.tls.pending():
            return False
        if isinstance(protocol, asyncio.BufferedProtocol):
            buffer = memoryview(protocol.get_buffer(-1))
            filled = self._fill(buffer)
            if filled:
                protocol.buffer_updated(filled)
            return filled == len(buffer)
        buffer = memoryview(bytearray(_RECEIVE_BYTES))
        filled = self._fill(buffer)
        if filled:
            cast("asyncio.Protocol", protocol).data_received(bytes(buffer[:filled]))
        return filled == len(buffer)

    def _fill(self, buffer: memoryview) -> int:
        """Decrypt into a buffer; return the number of bytes. Note the end of the client's side."""
        filled = 0
        try:
            while filled < len(buffer):
                count = self._read_into(buffer[filled:])
                if not count:
                    self._has_eof = True
                    break
                filled += count
                if not self._incoming.pending and not self.tls.pending():
                    break
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            self._has_eof = True
        return filled

    def _read_into(self, buffer: memoryview) -> int:
        count = self.tls.read(len(buffer), buffer)
        return cast("int", count)  # as it is with a buffer

    @override
    def eof_received(self) -> bool:
        """Note that the client closed its side; the protocol decides whether to write more."""
        if self._protocol is None:
            return False
        self._has_eof = True
        self.read()
        return self.socket_transport is not None

    def _end_input(self) -> None:
        self._is_ended = True
        if not cast("asyncio.Protocol", self._protocol).eof_received() and self._transport is not None:
            self._transport.close()

    def pause_reading(self) -> None:
        """Receive nothing more from the socket."""
        self._is_reading = False
        if self.socket_transport is not None and not self.socket_transport.is_closing():
            self.socket_transport.pause_reading()

    def resume_reading(self) -> None:
        """Receive again, first what was decrypted or has arrived before."""
        if self._is_reading:
            return
        self._is_reading = True
        if self.socket_transport is not None and not self.socket_transport.is_closing():
            self.socket_transport.resume_reading()
            self._loop.call_soon(self._read_rest)

    def _read_rest(self) -> None:
        if self._protocol is not None and self.socket_transport is not None:
            self.read()

    @property
    def is_reading(self) -> bool:
        """Return True unless the protocol has paused."""
        return self._is_reading

    def send(self) -> None:
        """Pass encrypted bytes to the socket."""
        data = self._outgoing.read()
        if data and self.socket_transport is not None:
            self.socket_transport.write(data)

    def abort(self) -> None:
        """Close at once."""
        if self._transport is not None:
            self._transport.discard()
        if self.socket_transport is not None:
            self.socket_transport.abort()

    @override
    def pause_writing(self) -> None:
        self.can_write = False

    @override
    def resume_writing(self) -> None:
        self.can_write = True
        if self._transport is not None:
            self._transport.pump()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._end_handshake("lost")
        self.socket_transport = None
        transport, self._transport = self._transport, None  # no cycle, which would keep OpenSSL's buffers
        if transport is not None:
            transport.discard()
        if self._protocol is not None:
            protocol, self._protocol = self._protocol, None
            protocol.connection_lost(exc)

    def protocol(self) -> asyncio.BaseProtocol | None:
        """Return the protocol, None before the handshake and after the end."""
        return self._protocol


class TlsTransport(asyncio.Transport):
    """The plain side of one connection, as its protocol sees it."""

    def __init__(self, connection: TlsConnection) -> None:
        super().__init__()
        self._connection = connection
        self._loop = asyncio.get_running_loop()
        self._backlog: deque[memoryview] = deque()
        self._backlog_bytes = 0
        self._next_step: asyncio.Handle | None = None
        self._is_closing = False
        self._is_paused = False  # the protocol may not write
        self._high = _HIGH_WATER_BYTES
        self._low = _HIGH_WATER_BYTES // 4

    @override
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        connection = self._connection
        if name in {"ssl_object", "sslcontext"}:
            return connection.tls if name == "ssl_object" else connection.tls.context
        if name == "principal":
            return connection.principal
        if connection.socket_transport is None:
            return default
        return connection.socket_transport.get_extra_info(name, default)

    @override
    def is_closing(self) -> bool:
        socket_transport = self._connection.socket_transport
        return self._is_closing or socket_transport is None or socket_transport.is_closing()

    @override
    def close(self) -> None:
        """Close once everything is sent."""
        if self.is_closing():
            return
        self._is_closing = True
        self._connection.pause_reading()
        self.pump()

    @override
    def abort(self) -> None:
        self._is_closing = True
        self._connection.abort()

    @override
    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol = self._connection.protocol()
        assert protocol is not None
        return protocol

    @override
    def is_reading(self) -> bool:
        return self._connection.is_reading

    @override
    def pause_reading(self) -> None:
        self._connection.pause_reading()

    @override
    def resume_reading(self) -> None:
        if not self._is_closing:
            self._connection.resume_reading()

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = _HIGH_WATER_BYTES if high is None else high
        self._low = self._high // 4 if low is None else low

    @override
    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    @override
    def get_write_buffer_size(self) -> int:
        """Return the plain bytes that wait, and the encrypted bytes that the socket has not taken."""
        socket_transport = self._connection.socket_transport
        if socket_transport is None:
            return 0
        return self._backlog_bytes + socket_transport.get_write_buffer_size()

    @override
    def can_write_eof(self) -> bool:
        return False

    @override
    def write(self, data: bytes | bytearray | memoryview[Any]) -> None:
        self.writelines((data,))

    @override
    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview[Any]]) -> None:
        if self.is_closing():
            return
        for data in list_of_data:
            if data:
                view = memoryview(data).cast("B")
                self._backlog.append(view)
                self._backlog_bytes += len(view)
        self.pump()
        if not self._is_paused and self.get_write_buffer_size() > self._high:
            self._is_paused = True
            self.get_protocol().pause_writing()

    def pump(self) -> None:
        """Encrypt and send as much as the socket takes."""
        if self._next_step is not None:
            self._next_step.cancel()
            self._next_step = None
        for _ in range(_MAX_STEPS):
            if not self._backlog or not self._connection.can_write:
                break
            self._encrypt_step()
        else:
            if self._backlog:
                self._next_step = self._loop.call_soon(self.pump)
                return
        self._resume_protocol()
        if self._is_closing and not self._backlog:
            self._shut_down()

    def _encrypt_step(self) -> None:
        data = self._next_bytes()
        try:
            self._connection.tls.write(data)
        except ssl.SSLError:  # the connection has failed; the socket reports its end
            self.abort()
            return
        self._connection.send()

    def _next_bytes(self) -> memoryview | bytes:
        """Take bytes from the backlog: a part of a large buffer, or several small ones."""
        first = self._backlog.popleft()
        if len(first) >= _RECORD_BYTES or not self._backlog:
            if len(first) > _STEP_BYTES:
                self._backlog.appendleft(first[_STEP_BYTES:])
                first = first[:_STEP_BYTES]
            self._backlog_bytes -= len(first)
            return first
        parts, size = [first], len(first)
        while self._backlog and size + len(self._backlog[0]) <= _RECORD_BYTES:
            size += len(self._backlog[0])
            parts.append(self._backlog.popleft())
        self._backlog_bytes -= size
        return b"".join(parts)

    def _resume_protocol(self) -> None:
        """Let the protocol write again, at the latest when nothing more will be reported.

        The socket reports a drained buffer only if it was full. If it is not full, and no bytes wait, this is
        the last call.
        """
        if not self._is_paused:
            return
        is_last = not self._backlog and self._connection.can_write
        if is_last or self.get_write_buffer_size() <= self._low:
            self._is_paused = False
            protocol = self._connection.protocol()
            if protocol is not None:
                protocol.resume_writing()

    def _shut_down(self) -> None:
        """Tell the client that this was all, and close."""
        connection = self._connection
        with contextlib.suppress(ssl.SSLError, ValueError):  # not waiting for the client's
            connection.tls.unwrap()
        connection.send()
        if connection.socket_transport is not None:
            connection.socket_transport.close()

    def discard(self) -> None:
        """Drop what has not been sent."""
        self._backlog.clear()
        self._backlog_bytes = 0
        if self._next_step is not None:
            self._next_step.cancel()
            self._next_step = None
