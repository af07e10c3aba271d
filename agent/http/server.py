"""uvicorn, run inside the agent's own loop: no signals, no logging set-up, a socket that is bound already."""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import uvicorn
from typing_extensions import override
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from agent.runtime.sockets import address_of

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator

    from fastapi import FastAPI

_TICK_SECONDS = 1.0  # the date in answers has seconds


def _protocol(write_timeout_seconds: float) -> type[asyncio.Protocol]:
    """HTTP that gives up a client which takes nothing of what is ready for it."""

    class Protocol(HttpToolsProtocol):
        stalled: asyncio.TimerHandle | None = None

        @override
        def pause_writing(self) -> None:
            super().pause_writing()
            # Not `close`, which would wait until the client has taken the rest.
            self.stalled = self.loop.call_later(write_timeout_seconds, self.transport.abort)

        @override
        def resume_writing(self) -> None:
            self._is_moving()
            super().resume_writing()

        @override
        def connection_lost(self, exc: Exception | None) -> None:
            self._is_moving()
            super().connection_lost(exc)

        def _is_moving(self) -> None:
            if self.stalled is not None:
                self.stalled.cancel()
                self.stalled = None

    return Protocol


class _Server(uvicorn.Server):
    """Signals belong to the agent, others want to know when it listens, and it need not ask when to end."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Let `serve` come to its end."""
        self.should_exit = True
        self._leaving.set()

    @override
    async def main_loop(self) -> None:
        # uvicorn's own looks ten times a second whether it is to end; it has something to do once a second.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._leaving.wait(), _TICK_SECONDS)

    @contextlib.contextmanager
    @override
    def capture_signals(self) -> Generator[None]:
        yield

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


class HttpServer:
    """Serves one app on one socket."""

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
        """Serve; returns once it does."""
        self._serving = asyncio.get_running_loop().create_task(
            self._server.serve(sockets=[self._listener]), name="http"
        )
        listening = asyncio.ensure_future(self._server.listening.wait())
        await asyncio.wait({listening, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            listening.cancel()
            await self._serving
            raise RuntimeError("the HTTP server ended before it served")

    async def stop(self) -> None:
        """Take no new connection; let the requests under way finish, within the time-out."""
        self._server.leave()
        if self._serving is not None:
            await self._serving
