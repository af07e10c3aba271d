"""Health on a separate listener: a probe gets a response even if the other listeners hang.

It serves GET and HEAD of `/livez`, `/readyz` and `/healthz`, one request for each connection. A client has
`_SECONDS` for all of it, and beyond `_MAX_CONNECTIONS` the oldest connection is closed. So no client can keep
others from their response. The routes of the same names on the HTTP listener give the same responses.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final

import orjson

from agent.runtime.sockets import address_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Mapping

    from agent.runtime.health import Health

_SECONDS: Final = 5.0
_MAX_CONNECTIONS: Final = 64
_MAX_REQUEST_BYTES: Final = 8 * 1024
_REASONS: Final = {200: "OK", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


def health_report(problems: Mapping[str, str], warnings: Mapping[str, str]) -> tuple[int, bytes]:
    """Return the status and the JSON of a response to a probe."""
    report = {
        "status": "unhealthy" if problems else "ok",
        "problems": dict(problems),
        "warnings": dict(warnings),
    }
    return 503 if problems else 200, orjson.dumps(report)


def respond(health: Health, path: str) -> tuple[int, bytes]:
    """Return the status and the body for a path."""
    if path == "/livez":
        return health_report(health.live_problems(), {})
    if path in {"/readyz", "/healthz"}:
        return health_report(health.ready_problems(), health.warnings())
    return 404, b'{"error":{"code":"path_not_found","message":"only /livez, /readyz and /healthz are here"}}'


class HealthListener:
    """The server on one bound socket. Belongs to the control loop."""

    def __init__(self, health: Health, listener: socket.socket) -> None:
        self.address = address_of(listener)
        self._health = health
        self._listener = listener
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.StreamWriter, None] = {}

    async def start(self) -> None:
        """Start to serve."""
        self._server = await asyncio.start_server(
            self._serve, sock=self._listener, limit=_MAX_REQUEST_BYTES, backlog=_MAX_CONNECTIONS
        )

    async def stop(self) -> None:
        """Close the socket and all connections."""
        if self._server is not None:
            self._server.close()
        for writer in list(self._open):
            writer.transport.abort()

    @property
    def is_running(self) -> bool:
        """Return True while it accepts connections."""
        return self._server is not None and self._server.is_serving()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open[writer] = None
        if len(self._open) > _MAX_CONNECTIONS:
            next(iter(self._open)).transport.abort()
        try:
            async with asyncio.timeout(_SECONDS):
                head = await reader.readuntil(b"\r\n\r\n")
                writer.write(self._response(head))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the client sends no request, or has gone
        finally:
            self._open.pop(writer, None)
            writer.transport.abort()

    def _response(self, head: bytes) -> bytes:
        method, _, rest = head.partition(b" ")
        path = rest.partition(b" ")[0].partition(b"?")[0].decode("latin-1")
        status, body = (405, b"") if method not in {b"GET", b"HEAD"} else respond(self._health, path)
        lines = (
            f"HTTP/1.1 {status} {_REASONS[status]}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        return lines.encode() + (b"" if method == b"HEAD" else body)
