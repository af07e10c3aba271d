"""The HTTP front end of an agent: its routes and listeners."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from agent.http.app import create_app
from agent.http.authentication import HttpAuthenticator
from agent.http.context import HttpContext
from agent.http.records.producer import RecordProducer
from agent.http.transport.connection import HttpLimits
from agent.http.transport.server import HttpServer

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from agent.assembly.access_control import AccessControl
    from agent.assembly.data_path import DataPath
    from agent.assembly.resources import Resources
    from agent.listeners import HttpListener
    from agent.runtime.health import Health
    from agent.security.tls.listeners import TlsListeners


class HttpFrontEnd:
    """The HTTP listeners of one agent."""

    def __init__(
        self, resources: Resources, data: DataPath, access: AccessControl, health: Health, tls: TlsListeners
    ) -> None:
        self._settings = resources.settings
        self._metrics = resources.metrics
        self._access = access
        self._tls = tls
        self.servers: tuple[HttpServer, ...] = ()
        self._context = HttpContext(
            settings=resources.settings,
            topics=resources.catalog.topics,
            directory=data.directory,
            producer=RecordProducer(data.appends, resources.pools, clock=resources.clock, ids=resources.ids),
            read_path=data.read_path,
            quotas=access.quotas,
            pools=resources.pools,
            request_budget=resources.request_budget,
            parsing_budget=resources.parsing_budget,
            metrics=resources.metrics,
            ids=resources.ids,
            health=health,
            authorizer=access.authorizer,
        )

    async def start(self, listeners: Mapping[HttpListener, socket.socket]) -> None:
        """Serve on these sockets."""
        app = create_app(self._context)
        limits = HttpLimits(
            head_seconds=self._settings.http_head_timeout_ms / 1000,
            write_seconds=self._settings.write_timeout_ms / 1000,
            max_connections=self._settings.http_max_connections,
        )
        for listener, bound in listeners.items():
            served = HttpAuthenticator(app, listener, self._access.authentication, self._metrics)
            server = HttpServer(served, listener, bound, limits=limits, tls=self._tls)
            self.servers = (*self.servers, server)
            await server.start()

    @property
    def addresses(self) -> dict[str, str]:
        """The address of each listener by its name, as HOST:PORT."""
        return {each.name: each.address for each in self.servers}

    def running(self) -> dict[str, Callable[[], bool]]:
        """Return the essential parts, and whether they run."""
        return {"http_listener": lambda: all(each.is_running for each in self.servers)}

    async def stop(self, seconds: float) -> None:
        """Respond within `seconds` to the requests in progress, and accept no others."""
        await asyncio.gather(*(each.stop(seconds) for each in self.servers))
