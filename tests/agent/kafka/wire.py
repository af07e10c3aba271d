"""A Kafka client on a plain socket that sends exactly the bytes of a test."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

from agent.kafka.codec import Cursor, Message, Output, Struct
from agent.kafka.codec.messages import api_key_of

if TYPE_CHECKING:
    import ssl
    from types import TracebackType
    from typing import Self

    from agent.kafka.codec.schema import StructSchema

_TIMEOUT_SECONDS = 120.0


def request_frame(
    name: str,
    version: int,
    correlation_id: int,
    request: Struct,
    *,
    tail: bytes = b"",
    client_id: str | None = None,
) -> bytes:
    """Return a whole frame; `tail` are trailing bytes after the request."""
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
    """One connection to an agent, with TLS if a context is given."""

    def __init__(
        self, address: tuple[str, int], *, client_id: str | None = None, tls: ssl.SSLContext | None = None
    ) -> None:
        self.client_id = client_id
        self.socket = socket.create_connection(address, timeout=_TIMEOUT_SECONDS)
        if tls is not None:
            self.socket = tls.wrap_socket(self.socket, server_hostname=address[0])

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self) -> tuple[int, memoryview] | None:
        """Return correlation id and body of the next response, or None if the connection is closed."""
        head = self._exactly(8)
        if head is None:
            return None
        size, correlation_id = struct.unpack(">ii", head)
        body = self._exactly(size - 4)
        return None if body is None else (correlation_id, memoryview(body))

    def ask(self, name: str, version: int, request: Struct, *, tail: bytes = b"") -> Struct:
        """Send a request and return its response."""
        self.send(request_frame(name, version, 7, request, tail=tail, client_id=self.client_id))
        response = self.receive()
        assert response is not None
        correlation_id, body = response
        assert correlation_id == 7
        return read_response(name, version, body)

    def is_closed(self) -> bool:
        """Return True if the agent closes the connection without a response."""
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
    """Decode a response; `body` starts after the correlation id."""
    message = Message.of(name, version)
    skipped = 1 if message.is_flexible and name != "api_versions" else 0
    response: Struct = message.read_response(Cursor(body, skipped))
    return response


# Without these, requests would be rejected before their strings are checked.
_VALID_NUMBERS = {
    "acks": -1,
    "session_timeout": 45_000,
    "rebalance_timeout": 60_000,
    "timeout": 1000,
    "num_partitions": 1,
    "replication_factor": 1,
    "generation_id_or_member_epoch": -1,
}


def filled_request(schema: StructSchema, text: str, **chosen: object) -> Struct:
    """Return a request with `text` in every string, one item in every array, and `chosen` fields."""
    values: dict[str, object] = {}
    for field in schema.fields:
        value: object = field.default
        if field.struct is not None:
            value = filled_request(field.struct, text, **chosen)
        elif field.kind == "string":
            value = text
        if field.is_array:
            value = [value if field.struct is not None or field.kind == "string" else 0]
        values[field.name] = chosen.get(field.name, _VALID_NUMBERS.get(field.name, value))
    return Struct(**values)
