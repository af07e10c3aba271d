"""The Kafka server: accepts connections up to their quotas, and closes idle and stalled ones."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from functools import partial
from typing import TYPE_CHECKING

import structlog

from agent.kafka.connection.connection import Connection
from agent.kafka.connection.creation_rate import MAX_CLOSING, SERVED, CreationRate
from agent.kafka.connection.frames import RECEIVE_BYTES
from agent.kafka.connection.incoming_memory import MAX_LOGIN_BYTES, IncomingMemory
from agent.kafka.connection.limits import ConnectionLimits, LoginLimits, SlowClientPolicy
from agent.quotas.rates import Windows
from agent.runtime.byte_budget import MIN_BYTES_PER_SECOND, ByteBudget
from agent.runtime.cooperative_yield import IterationBudget
from agent.runtime.health import start_essential_task, stop_task
from agent.runtime.sockets import address_of
from agent.runtime.waiting_clients import WaitingClients
from agent.security.login import SaslLogin

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Hashable, Mapping

    from agent.kafka.connection.creation_rate import Admission
    from agent.kafka.dispatcher import RequestDispatcher
    from agent.kafka.services import KafkaServices
    from agent.listeners import KafkaListener
    from agent.security.tls.listeners import TlsListeners
    from agent.security.tls.transport import TlsConnection, TlsListener

_log = structlog.get_logger(__name__)
_SWEEP_SECONDS = 5.0
_QUIET_SECONDS = 60.0


class ConnectionQuotas:
    """Kafka's `max.connections` and `max.connections.per.ip`. Belongs to the event loop.

    Beyond `max.connections`, Kafka's brokers delay accepting the connection. Here, a connection beyond either
    quota is closed at once, because any other agent can serve the client. The server first closes connections
    that have never sent a request.

    `monotonic` returns seconds; rejections are logged at most once in `_QUIET_SECONDS`.
    """

    def __init__(self, max_connections: int, max_per_ip: int, monotonic: Callable[[], float]) -> None:
        self._max_connections = max_connections
        self._max_per_ip = max_per_ip
        self._monotonic = monotonic
        self._hosts: dict[Hashable, str] = {}
        self._counts: Counter[str] = Counter()
        self._quiet_until = monotonic()

    def __len__(self) -> int:
        return len(self._hosts)

    @property
    def is_full(self) -> bool:
        """Return True if there are `max.connections` connections."""
        return len(self._hosts) >= self._max_connections

    def acquire(self, connection: Hashable, host: str) -> bool:
        """Count a connection from that host; return False if it exceeds a quota."""
        if len(self._hosts) >= self._max_connections:
            self._log_rejection("max_connections", self._max_connections, host)
            return False
        if self._counts[host] >= self._max_per_ip:
            self._log_rejection("max_connections_per_ip", self._max_per_ip, host)
            return False
        self._hosts[connection] = host
        self._counts[host] += 1
        return True

    def has_space(self, host: str, others: int) -> bool:
        """Return False if that host, with `others` that are not counted yet, exceeds its quota."""
        if self._counts[host] + others < self._max_per_ip:
            return True
        self._log_rejection("max_connections_per_ip", self._max_per_ip, host)
        return False

    def release(self, connection: Hashable) -> None:
        """Stop counting a connection. Has no effect on a connection that was rejected."""
        host = self._hosts.pop(connection, None)
        if host is None:
            return
        self._counts[host] -= 1
        if not self._counts[host]:
            del self._counts[host]

    def _log_rejection(self, setting: str, limit: int, host: str) -> None:
        now = self._monotonic()
        if now >= self._quiet_until:
            self._quiet_until = now + _QUIET_SECONDS
            _log.warning("Kafka connections are rejected", setting=setting, limit=limit, client=host)


class KafkaServer:
    """The protocol on the bound sockets of all listeners. Belongs to the event loop.

    `addresses` has the address of each listener by its name.
    """

    def __init__(
        self,
        dispatcher: RequestDispatcher,
        listeners: Mapping[KafkaListener, socket.socket],
        services: KafkaServices,
        tls: TlsListeners,
    ) -> None:
        settings = services.settings
        self.addresses = {each.name: address_of(bound) for each, bound in listeners.items()}
        self._dispatcher = dispatcher
        self._listeners = listeners
        self._tls = tls
        self._budget = services.request_budget
        self._memory = IncomingMemory(services.request_budget)
        self._login_memory = IncomingMemory(ByteBudget("logins", MAX_LOGIN_BYTES), trusts_lengths=False)
        self._metrics = services.metrics
        self._settings = settings
        self._limits = ConnectionLimits(
            max_request_bytes=settings.max_request_bytes,
            max_pending_requests=settings.kafka_max_pending_requests,
            slow_clients=SlowClientPolicy.of(
                settings.kafka_slow_reader_ms / 1000,
                settings.kafka_scarce_memory_ms / 1000,
                memory=(services.request_budget, services.read_path.budget),
            ),
            login=LoginLimits(
                max_request_bytes=min(
                    settings.authentication.sasl_server_max_receive_size, settings.max_request_bytes
                ),
                seconds=settings.authentication.authentication_timeout_ms / 1000,
            ),
        )
        self._authentication = services.authentication
        self._unauthenticated = WaitingClients[Connection]()
        self._loop_share = IterationBudget(services.clock)
        self._receive_buffer = memoryview(bytearray(RECEIVE_BYTES))
        self._quotas = ConnectionQuotas(
            settings.kafka_max_connections,
            settings.kafka_max_connections_per_ip,
            asyncio.get_running_loop().time,
        )
        self._creation_rate = CreationRate(
            settings.kafka_max_connection_creation_rate,
            services.quotas,
            Windows(count=settings.quota_window_num, window_ms=1000 * settings.quota_window_size_seconds),
            asyncio.get_running_loop().time,
        )
        self._closing: set[Connection] = set()  # those that are closed after a delay
        self._connections: set[Connection] = set()
        self._silent: deque[Connection] = deque()  # in the order of their arrival; some have sent requests
        self._servers: list[asyncio.Server] = []
        self._sweeping: asyncio.Task[None] | None = None
        self._is_stopping = False
        self._empty = asyncio.Event()
        self._empty.set()

    async def start(self) -> None:
        """Start to accept connections."""
        loop = asyncio.get_running_loop()
        for listener, bound in self._listeners.items():
            tls = self._tls.of(listener)
            accept: Callable[[], asyncio.BaseProtocol] = (
                partial(self._accept, listener, self._admit)
                if tls is None
                else partial(self._accept_tls, listener, tls)
            )
            self._servers.append(await loop.create_server(accept, sock=bound, backlog=2048))
        self._sweeping = start_essential_task(self._sweep(), name="kafka idle connections")

    @property
    def is_running(self) -> bool:
        """Return True if the listeners accept connections, and the task that closes idle ones runs."""
        return (
            len(self._servers) == len(self._listeners)
            and all(each.is_serving() for each in self._servers)
            and self._sweeping is not None
            and not self._sweeping.done()
        )

    async def stop(self, seconds: float) -> None:
        """Stop accepting, respond within `seconds` to requests in progress, then close everything."""
        await stop_task(self._sweeping)
        self._is_stopping = True
        for server in self._servers:
            server.close()
        self._tls.handshakes.abort()
        for connection in list(self._connections):
            connection.finish()
        try:
            await asyncio.wait_for(self._wait_until_empty(), seconds)
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()

    async def _wait_until_empty(self) -> None:
        await self._empty.wait()
        for server in self._servers:
            await server.wait_closed()
        await self._empty.wait()

    def _accept_tls(self, listener: KafkaListener, tls: TlsListener) -> TlsConnection:
        """Ask for the rates and the quotas before the handshake; the delay of a connection follows it."""
        admission = SERVED

        def admits(host: str) -> bool:
            nonlocal admission
            admission = self._creation_rate.admit(host)
            reason = "" if admission.is_served else "connection_rate"
            if not reason and not self._quotas.has_space(host, self._tls.handshakes.count(host)):
                reason = "quota"
            if reason:
                self._metrics.kafka_connections_closed.labels(reason).inc()
            return not reason

        def admit(connection: Connection) -> bool:
            return self._serve(connection, admission)

        return tls.connection(partial(self._accept, listener, admit), admits)

    def _accept(self, listener: KafkaListener, admit: Callable[[Connection], bool]) -> Connection:
        connection = Connection(
            self._dispatcher,
            self._memory,
            self._loop_share,
            self._limits,
            self._receive_buffer,
            listener_name=listener.name,
            on_open=admit,
            on_close=self._remove,
            login=(
                SaslLogin(self._authentication, listener.mechanisms, listener.name)
                if listener.protocol.has_sasl
                else None
            ),
            on_login=self._note_login,
            login_memory=self._login_memory if listener.protocol.has_sasl else None,
        )
        if self._is_stopping:  # accepted while the listener was being closed
            connection.finish()
        self._connections.add(connection)
        self._empty.clear()
        return connection

    def _admit(self, connection: Connection) -> bool:
        admission = self._creation_rate.admit(connection.client.host)
        if not admission.is_served:
            return self._close_later(connection, admission.delay_seconds)
        return self._serve(connection, admission)

    def _serve(self, connection: Connection, admission: Admission) -> bool:
        """Serve a connection within the rates, unless it exceeds a quota."""
        if admission.delay_seconds:
            self._mute_soon(connection, admission.delay_seconds)
        if self._quotas.is_full:
            self._close_silent()
        is_admitted = self._quotas.acquire(connection, connection.client.host)
        if is_admitted:
            self._silent.append(connection)
            if connection.client.login is not None:
                self._note_unauthenticated(connection)
        self._metrics.kafka_connections.set(len(self._quotas))
        return is_admitted

    def _close_later(self, connection: Connection, seconds: float) -> bool:
        """Close a connection after a delay; return False if it is to be closed at once."""
        if not seconds or len(self._closing) >= MAX_CLOSING:
            return False
        self._closing.add(connection)
        self._mute_soon(connection, 2 * seconds)  # longer than it stays open
        asyncio.get_running_loop().call_later(seconds, connection.abort, "connection_rate")
        return True

    @staticmethod
    def _mute_soon(connection: Connection, seconds: float) -> None:
        """Mute a new connection once its transport reads: before, uvloop ignores a pause."""
        asyncio.get_running_loop().call_soon(connection.mute, seconds)

    def _note_unauthenticated(self, connection: Connection) -> None:
        """Count a connection until its client has logged in; beyond the bound, close another one."""
        if len(self._unauthenticated) >= self._settings.authentication.max_unauthenticated_connections:
            evicted = self._unauthenticated.to_evict()
            self._note_login(evicted)
            self._quotas.release(evicted)
            evicted.abort("unauthenticated")
        self._unauthenticated.add(connection, connection.client.host)
        self._metrics.unauthenticated_connections.set(len(self._unauthenticated))

    def _note_login(self, connection: Connection) -> None:
        self._unauthenticated.remove(connection)
        self._metrics.unauthenticated_connections.set(len(self._unauthenticated))

    def _close_silent(self) -> None:
        """Close the oldest connection that has never sent a request, if there is one."""
        while self._silent:
            oldest = self._silent.popleft()
            if oldest in self._connections and not oldest.has_requested:
                self._quotas.release(oldest)
                oldest.abort("silent")
                return

    def _remove(self, connection: Connection) -> None:
        self._quotas.release(connection)
        self._note_login(connection)
        self._metrics.kafka_connections.set(len(self._quotas))
        if connection.close_reason:
            self._metrics.kafka_connections_closed.labels(connection.close_reason).inc()
        self._connections.discard(connection)
        self._closing.discard(connection)
        if not self._connections:
            self._empty.set()

    async def _sweep(self) -> None:
        """Close idle connections, including those that sent only part of a request."""
        idle_seconds = self._settings.kafka_idle_ms / 1000
        policy = self._limits.slow_clients
        loop = asyncio.get_running_loop()
        while True:
            before = loop.time()
            await asyncio.sleep(min(_SWEEP_SECONDS, idle_seconds, policy.check_seconds))
            now = loop.time()
            for connection in list(self._connections):
                connection.end_mute_if_closed()
                if connection.is_idle_since(now - idle_seconds):
                    connection.abort("idle")
            self._silent = deque(
                [each for each in self._silent if each in self._connections and not each.has_requested]
            )
            self._close_slow_senders(now - before, policy.max_checks_while_scarce)

    def _close_slow_senders(self, seconds: float, max_checks: int) -> None:
        """While request memory is scarce, close connections that retain some for a request and send slowly.

        More than one check must find a connection slow: after a delay of the event loop, the rest of the
        request may already be in the socket.
        """
        min_bytes = MIN_BYTES_PER_SECOND * seconds if self._budget.is_scarce else 0
        for connection in list(self._connections):
            if connection.slow_checks(min_bytes) >= max_checks:
                _log.info("a Kafka client sends a request too slowly", client=connection.client.host)
                connection.abort("slow_request")
