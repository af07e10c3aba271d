"""A client that says exactly what a test wants it to, on a plain socket."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

from agent.kafka.codec import Cursor, Message, Output, Struct
from agent.kafka.codec.messages import api_key_of

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_PATIENCE_SECONDS = 120.0


def request_frame(
    name: str,
    version: int,
    correlation_id: int,
    request: Struct,
    *,
    tail: bytes = b"",
    client_id: str | None = None,
) -> bytes:
    """A whole frame; `tail` is put behind the request, where nothing should be."""
    message = Message.of(name, version)
    out = Output()
    message.write_request(out, request)
    text = b"" if client_id is None else client_id.encode()
    length = -1 if client_id is None else len(text)
    header = struct.pack(">hhih", api_key_of(name), version, correlation_id, length) + text
    if message.is_flexible:
        header += b"\0"
    body = header + b"".join(out.buffers()) + tail
    return struct.pack(">i", len(body)) + body


class Wire:
    """One connection."""

    def __init__(self, address: tuple[str, int], *, client_id: str | None = None) -> None:
        self.client_id = client_id
        self.socket = socket.create_connection(address, timeout=_PATIENCE_SECONDS)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> tuple[int, memoryview] | None:
        """The next answer as (correlation id, what follows it), or None when the connection was closed."""
        head = self._exactly(8)
        if head is None:
            return None
        size, correlation_id = struct.unpack(">ii", head)
        body = self._exactly(size - 4)
        return None if body is None else (correlation_id, memoryview(body))

    def ask(self, name: str, version: int, request: Struct, *, tail: bytes = b"") -> Struct:
        """The answer to one request."""
        self.send(request_frame(name, version, 7, request, tail=tail, client_id=self.client_id))
        answer = self.receive()
        assert answer is not None
        correlation_id, body = answer
        assert correlation_id == 7
        return read_response(name, version, body)

    def is_closed(self) -> bool:
        """Whether the agent closes the connection without a word."""
        try:
            return self.socket.recv(1) == b""
        except ConnectionResetError:
            return True

    def _exactly(self, count: int) -> bytes | None:
        data = b""
        while len(data) < count:
            try:
                part = self.socket.recv(count - len(data))
            except ConnectionResetError:
                return None
            if not part:
                return None
            data += part
        return data


def read_response(name: str, version: int, body: memoryview) -> Struct:
    """What an answer says; `body` begins behind the correlation id."""
    message = Message.of(name, version)
    skipped = 1 if message.is_flexible and name != "api_versions" else 0
    answer: Struct = message.read_response(Cursor(body, skipped))
    return answer
