"""Listens for Kafka clients."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from agent.http.server import address_of
from agent.kafka.connection.connection import Connection
from agent.kafka.connection.frames import RECEIVE_BYTES
from agent.kafka.connection.limits import ConnectionLimits
from agent.kafka.connection.quotas import ConnectionQuotas
from agent.kafka.connection.slow_client_policy import SlowClientPolicy

if TYPE_CHECKING:
    import socket

    from agent.kafka.dispatch import Dispatch
    from agent.kafka.services import Services

_log = structlog.get_logger(__name__)
_SWEEP_SECONDS = 5.0


class KafkaServer:
    """Serves the protocol on one socket that is bound already. Belongs to the event loop."""

    def __init__(self, dispatch: Dispatch, listener: socket.socket, services: Services) -> None:
        settings = services.settings
        self.address = address_of(listener)
        self._dispatch = dispatch
        self._listener = listener
        self._budget = services.request_budget
        self._metrics = services.metrics
        self._settings = settings
        self._limits = ConnectionLimits(
            max_request_bytes=settings.max_request_bytes,
            max_pending_requests=settings.kafka_max_pending_requests,
            patience=SlowClientPolicy.of(
                settings.kafka_slow_reader_ms / 1000,
                settings.kafka_scarce_memory_ms / 1000,
                memory=(services.request_budget, services.read_path.budget),
            ),
        )
        self._shared = memoryview(bytearray(RECEIVE_BYTES))
        self._quotas = ConnectionQuotas(
            settings.kafka_max_connections,
            settings.kafka_max_connections_per_ip,
            asyncio.get_running_loop().time,
        )
        self._connections: set[Connection] = set()
        self._late: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self._sweeping: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._empty = asyncio.Event()
        self._empty.set()

    async def start(self) -> None:
        """Accept connections from now on."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._accept, sock=self._listener, backlog=2048)
        self._sweeping = loop.create_task(self._sweep(), name="kafka idle connections")

    async def stop(self) -> None:
        """Accept nothing new, answer what was taken, within the time-out; then close every connection."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        if self._server is None:
            return
        self._is_stopping = True
        self._server.close()
        for connection in list(self._connections):
            connection.finish()
        try:
            await asyncio.wait_for(self._wait_until_empty(), self._settings.stop_timeout_ms / 1000)
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()

    async def _wait_until_empty(self) -> None:
        await self._empty.wait()
        if self._server is not None:
            await self._server.wait_closed()
        await self._empty.wait()

    def _accept(self) -> Connection:
        connection = Connection(
            self._dispatch,
            self._budget,
            self._limits,
            self._shared,
            made=self._welcome,
            gone=self._forget,
        )
        if self._is_stopping:  # it came while the listener was being closed
            connection.finish()
        self._connections.add(connection)
        self._empty.clear()
        return connection

    def _welcome(self, connection: Connection) -> bool:
        is_welcome = self._quotas.take(connection, connection.host)
        self._metrics.kafka_connections.set(len(self._quotas))
        return is_welcome

    def _forget(self, connection: Connection) -> None:
        self._quotas.give_back(connection)
        self._metrics.kafka_connections.set(len(self._quotas))
        if connection.closed_for:
            self._metrics.kafka_connections_closed.labels(connection.closed_for).inc()
        self._connections.discard(connection)
        if not self._connections:
            self._empty.set()

    async def _sweep(self) -> None:
        """Close connections on which nothing happens, those with half a request among them."""
        most, scarce = self._settings.kafka_idle_ms / 1000, self._limits.patience.scarce_seconds
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(min(_SWEEP_SECONDS, most, self._limits.patience.look_seconds))
            now = loop.time()
            for connection in list(self._connections):
                if connection.is_silent_since(now - most):
                    connection.abort("idle")
            self._close_late(now - scarce)

    def _close_late(self, moment: float) -> None:
        """While the requests' memory is scarce: close those that keep some for half a request since then.

        They are given another look: if the loop was held up, the rest may have come long ago.
        """
        late: set[Connection] = set()
        if self._budget.is_scarce:
            late = {each for each in self._connections if each.keeps_waiting_since(moment)}
        for connection in late & self._late:
            _log.info("a Kafka client does not send the rest of its request", client=connection.host)
            connection.abort("unsent")
        self._late = late - self._late
