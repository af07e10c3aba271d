"""Runs uvicorn in the agent's event loop, without signal handlers or logging setup, on a bound socket."""

from __future__ import annotations

import asyncio
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

import uvicorn
from typing_extensions import override

from agent.http.transport.connection import protocol_of
from agent.runtime.sockets import address_of
from core.addresses import is_loopback

if TYPE_CHECKING:
    import socket
    from collections.abc import Generator

    from starlette.types import ASGIApp

    from agent.http.transport.connection import HttpLimits, LimitedProtocol
    from agent.listeners import HttpListener
    from agent.security.tls.listeners import TlsListeners
    from agent.security.tls.transport import TlsConnection, TlsListener

_TICK_SECONDS = 1.0  # the resolution of the Date header


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


def _connect(tls: TlsListener, protocol: type[LimitedProtocol], **arguments: Any) -> TlsConnection:  # noqa: ANN401 - those of uvicorn
    return tls.connection(partial(protocol, **arguments))


class HttpServer:
    """Serves one application on the bound socket of one listener."""

    def __init__(
        self,
        app: ASGIApp,
        listener: HttpListener,
        bound: socket.socket,
        *,
        limits: HttpLimits,
        tls: TlsListeners,
    ) -> None:
        self._bound = bound
        self._tls = tls
        protocol = protocol_of(limits, listener, is_local=is_loopback(bound.getsockname()[0]))
        own = tls.of(listener)
        self.name = listener.name
        self.address = address_of(bound)
        self._server = _Server(
            uvicorn.Config(
                app,
                http=protocol if own is None else partial(_connect, own, protocol),  # type: ignore[arg-type]  # uvicorn calls it
                log_config=None,
                access_log=False,
                lifespan="off",
                server_header=False,
                proxy_headers=False,  # or clients would choose the address that ACLs and logs have
                ws="none",
                limit_concurrency=limits.max_connections + 1,  # reached if each of them has an open request
            )
        )
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Start to serve, and return when clients can connect."""
        self._serving = asyncio.get_running_loop().create_task(
            self._server.serve(sockets=[self._bound]), name="http"
        )
        listening = asyncio.ensure_future(self._server.listening.wait())
        await asyncio.wait({listening, self._serving}, return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            listening.cancel()
            await self._serving
            raise RuntimeError("the HTTP server stopped before it accepted connections")

    @property
    def is_running(self) -> bool:
        """Return True while it serves."""
        return self._serving is not None and not self._serving.done()

    async def stop(self, seconds: float) -> None:
        """Close the socket, and wait up to `seconds` for the open requests."""
        self._server.config.timeout_graceful_shutdown = max(1, round(seconds))
        self._tls.handshakes.abort()
        self._server.request_stop()
        if self._serving is not None:
            await self._serving
