"""Runs uvicorn in the agent's event loop, without signal handlers or logging setup, on a bound socket."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import structlog
import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agent.runtime.foreign_protocols import FIRST_BYTES, on_http_port
from agent.runtime.sockets import address_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator

    from fastapi import FastAPI

_log = structlog.get_logger(__name__)
_TICK_SECONDS = 1.0  # the resolution of the Date header


def _protocol(write_timeout_seconds: float) -> type[asyncio.Protocol]:
    """Return a protocol class that disconnects clients that do not read their responses."""

    class Protocol(HttpToolsProtocol):
        stalled: asyncio.TimerHandle | None = None
        is_known_http = False

        @override
        def data_received(self, data: bytes) -> None:
            if not self.is_known_http:
                self.is_known_http = True
                if (sent := on_http_port(data[:FIRST_BYTES])) is not None:
                    host = self.client[0] if self.client else "unknown"
                    _log.warning("a client of the HTTP listener is disconnected", client=host, reason=sent)
                    self.transport.abort()
                    return
            super().data_received(data)

        @override
        def pause_writing(self) -> None:
            super().pause_writing()
            # `close` would wait until the client has read the rest.
            self.stalled = self.loop.call_later(write_timeout_seconds, self.transport.abort)

        @override
        def resume_writing(self) -> None:
            self._cancel_timeout()
            super().resume_writing()

        @override
        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel_timeout()
            super().connection_lost(exc)

        def _cancel_timeout(self) -> None:
            if self.stalled is not None:
                self.stalled.cancel()
                self.stalled = None

    return Protocol


class _Server(uvicorn.Server):
    """A uvicorn server without signal handlers.

    `listening` is set when it accepts connections, and `request_stop` wakes it up.
    """

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._stop_requested = asyncio.Event()

    def request_stop(self) -> None:
        """Make `serve` return."""
        self.should_exit = True
        self._stop_requested.set()

    @override
    async def main_loop(self) -> None:
        # uvicorn polls for its end ten times a second, but has work only once a second.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stop_requested.wait(), _TICK_SECONDS)

    @contextlib.contextmanager
    @override
    def capture_signals(self) -> Generator[None]:
        yield

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


class HttpServer:
    """Serves one application on one socket."""

    def __init__(
        self,
        app: FastAPI,
        listener: socket.socket,
        *,
        stop_timeout_seconds: float,
        write_timeout_seconds: float,
        max_connections: int,
    ) -> None:
        self._listener = listener
        self.address = address_of(listener)
        self._server = _Server(
            uvicorn.Config(
                app,
                http=_protocol(write_timeout_seconds),
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                limit_concurrency=max_connections,
                timeout_graceful_shutdown=max(1, round(stop_timeout_seconds)),
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to serve, and return when clients can connect."""
        self._serving = asyncio.get_running_loop().create_task(
            self._server.serve(sockets=[self._listener]), name="http"
        )
        listening = asyncio.ensure_future(self._server.listening.wait())
        await asyncio.wait({listening, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            listening.cancel()
            await self._serving
            raise RuntimeError("the HTTP server stopped before it accepted connections")

    async def stop(self) -> None:
        """Close the socket, and wait until the open requests finish or time out."""
        self._server.request_stop()
        if self._serving is not None:
            await self._serving
