"""An agent: its parts, started in order and stopped in reverse order.

Stopping loses nothing that was accepted:

1. `/readyz` reports the stop for `drain_ms`.
2. No new connection is accepted, and waiting fetches return what is available.
3. Open files are flushed at once, and every append is acknowledged.
4. The session ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING

import structlog

from agent.assembly.access_control import AccessControl
from agent.assembly.data_path import DataPath
from agent.assembly.http_front_end import HttpFrontEnd
from agent.assembly.kafka_front_end import KafkaFrontEnd
from agent.assembly.monitoring import Monitoring
from agent.assembly.resources import Resources
from agent.assembly.session import create_session
from agent.cluster.catalog_epoch import CatalogEpoch
from agent.maintenance import AgentMaintenance
from agent.metrics_snapshot import metrics_snapshot
from agent.runtime.byte_budget import ByteBudget
from agent.runtime.metrics import AgentMetrics, CatalogCollector, CatalogServerCollector, StoreCollector
from agent.runtime.pools import Pools
from agent.runtime.slow_start_warning import warn_if_slow
from agent.runtime.sockets import bind, listen
from agent.security.exposure import check_authorization, check_exposure
from agent.security.tls.listeners import TlsListeners
from agent.supervision.control_loop import ControlLoop
from agent.supervision.supervisor import Supervisor
from agent.warm_up import warm_up
from agent.write.acknowledged_commits import AcknowledgedCommits
from catalog.security.acls import ACL_CHANNEL

if TYPE_CHECKING:
    import socket
    from collections.abc import Awaitable, Callable, Mapping

    from agent.listeners import HttpListener, KafkaListener
    from agent.settings import AgentSettings
    from catalog.errors import SchemaVersionError
    from catalog.open import Catalog
    from core.clock import Clock
    from core.errors import BackgroundTaskError
    from core.ids import Ids
    from maintenance.runner import MaintenanceRunner
    from object_store.interface import ObjectStore

_log = structlog.get_logger(__name__)
_MIN_STEP_SECONDS = 1.0
_COMPILING = (
    "compiling kernels, because `siltstone warm-kernels` has not run here; clients cannot connect until then"
)


class Agent:
    """One agent over a store and a catalog, which the caller closes.

    Create it inside a running event loop. `start` serves. `stop` may be called once, after `start`. The agent
    calls `request_stop` if a migration of the catalog excludes its version, and keeps the error in
    `exclusion`. It does the same if one of its essential parts ends, with the error in `failure`. It calls
    `on_stuck` in another thread if the event loop is stuck.
    """

    exclusion: SchemaVersionError | None = None
    failure: BackgroundTaskError | None = None
    _stopping = False

    def __init__(
        self,
        *,
        settings: AgentSettings,
        store: ObjectStore,
        catalog: Catalog,
        clock: Clock,
        ids: Ids,
        probe_store: ObjectStore | None = None,
        request_stop: Callable[[], None] = lambda: None,
        on_stuck: Callable[[], None] = lambda: None,
        maintenance: MaintenanceRunner | None = None,
    ) -> None:
        self.settings = settings
        self._request_stop = request_stop
        self._probe_store = probe_store or store
        self._loop = asyncio.get_running_loop()
        self._control = ControlLoop()
        self.metrics = AgentMetrics()
        resources = self.resources = Resources(
            settings=settings,
            store=store,
            catalog=catalog,
            clock=clock,
            ids=ids,
            pools=Pools.open(settings, catalog.dedicate_thread),
            metrics=self.metrics,
            epoch=CatalogEpoch(),
            request_budget=ByteBudget("the memory for request bodies", settings.max_requests_bytes),
            parsing_budget=ByteBudget("the memory for parsed requests", settings.max_parsed_bytes),
        )
        monitoring = self.monitoring = Monitoring(settings, clock, ids)
        monitoring.health.warn("lost_commits", catalog.incarnations.warning)
        self.access = AccessControl(resources)
        acknowledged = AcknowledgedCommits(clock)
        self.session = create_session(
            resources,
            acknowledged,
            monitoring.catalog,
            monitoring.heartbeats,
            on_excluded=self._stop_excluded,
            restore_local=lambda: self.data.local_logs.restore_lost(),  # noqa: PLW0108  # `data` follows
        )
        follower = self.access.acl_follower
        channels = {} if follower is None else {ACL_CHANNEL: follower.notify}
        self.data = DataPath(resources, self.session, acknowledged, monitoring.store, channels)
        self._tls = TlsListeners(settings, self.metrics)
        self.http = HttpFrontEnd(resources, self.data, self.access, monitoring.health, self._tls)
        self.kafka = KafkaFrontEnd(
            resources, self.data, self.access, monitoring.catalog, monitoring.loop_lag, self._tls
        )
        resources.epoch.on_change(
            self.data.clear, self.kafka.fetch_sessions.clear, self.data.commit_notifier.release_waiters
        )
        self._maintenance = AgentMaintenance(maintenance, self.metrics)
        self._supervisor = Supervisor(
            self._control,
            monitoring.health,
            monitoring.loop_lag,
            on_failure=self._stop_failed,
            on_stuck=on_stuck,
            stuck_seconds=settings.stuck_loop_ms / 1000,
        )
        self.metrics.expose(
            StoreCollector(store, self._probe_store),
            CatalogCollector(catalog),
            CatalogServerCollector(catalog.server),
            metrics_snapshot(resources, self.data, self.kafka.fetch_sessions, monitoring.loop_lag),
            self.data.local_logs.log_collector(),
        )

    async def start(self) -> dict[str, str]:
        """Serve, and return the addresses as HOST:PORT.

        They are those of `health`, and of the first listener for each protocol, by its name. Other listeners
        are `PROTOCOL.LISTENER`.
        """
        settings = self.settings
        check_authorization(
            (*settings.http_listeners, *settings.kafka_listeners), authorizes=settings.authorizer_enable
        )
        with contextlib.ExitStack() as opened:
            try:
                http = {each: _bind(each, opened, settings) for each in settings.http_listeners}
                health = opened.enter_context(bind(settings.health_host, settings.health_port))
                self.access.create_authentication()
                kafka = {each: _bind(each, opened, settings) for each in settings.kafka_listeners}
                self._control.start()
                # Before clients can connect: a client without a connection can choose another agent.
                with warn_if_slow(_COMPILING):
                    await self.resources.pools.kernels.run(warm_up)
                await self.access.quotas.start()
                for bound in (*http.values(), *kafka.values()):
                    listen(bound)
                await self.kafka.register(kafka, self.session, self._control)
                await self.access.follow_acls()
                self.data.start()
                self.monitoring.loop_lag.start()
                self._tls.start()
                await self.http.start(http)
                addresses = _named("http", self.http.addresses)
                addresses |= _named("kafka", await self.kafka.serve(kafka))
                self._maintenance.start()
                self._start_monitoring()
                addresses["health"] = await self._supervisor.start(health)
            except BaseException:
                opened.close()
                await self.stop()
                raise
            opened.pop_all()
        return addresses

    def _start_monitoring(self) -> None:
        storage = self.data.local_logs.storage
        manager = None if storage is None else storage.manager
        self.monitoring.start(self.resources.catalog, self._probe_store, manager)
        self.monitoring.require(
            {
                "heartbeats": lambda: self.session.is_running,
                **self.data.running(),
                **self.access.running(),
                "maintenance": lambda: self._maintenance.is_running,
                "certificates": lambda: self._tls.is_running,
                **self.http.running(),
                **self.kafka.running(),
            }
        )
        health = self.monitoring.health
        health.require_ready("session", self.session.problem)
        health.require_ready("agent", lambda: "is stopping" if self._stopping else None)

    def _stop_excluded(self, error: SchemaVersionError) -> None:
        """Let the process stop this agent, because a migration excludes this version of Siltstone."""
        _log.error("the schema of the catalog excludes this version", reason=str(error))
        self.exclusion = error
        self._loop.call_soon_threadsafe(self._request_stop)

    def _stop_failed(self, error: BackgroundTaskError) -> None:
        """Let the process stop this agent, because a part of it has ended."""
        self.failure = error
        self._loop.call_soon_threadsafe(self._request_stop)

    async def stop(self) -> None:
        """Stop in order. Everything that was accepted is completed, unless `stop_timeout_ms` is too short.

        After that time, each remaining step has at most `_MIN_STEP_SECONDS`, and pending work is abandoned.
        """
        self._stopping = True
        self._supervisor.stop_watching()
        await self._drain()
        stop_seconds = self.settings.stop_timeout_ms / 1000
        deadline = self._loop.time() + stop_seconds
        # At the same time: a round may be in a call to a store that does not respond.
        maintenance = self._loop.create_task(self._maintenance.stop(), name="stop maintenance")
        # What clients wait for may never come from an agent that has failed.
        await self._stop_serving(stop_seconds if self.failure is None else 0)
        data = self.data
        await data.read_path.read_ahead.stop()
        if self.failure is None:
            await _run_before(deadline, "commit accepted records", data.write_path.stop())
        await data.write_path.abandon()
        self.monitoring.stop_probes()
        await _run_before(deadline, "close the local logs", data.local_logs.stop())
        await _run_before(deadline, "announce the last commits", data.announcer.stop())
        await _run_before(deadline, "stop maintenance", maintenance)
        if self._control.is_running:
            await _run_before(deadline, "end the session", self._control.run(self.session.stop()))
        await _run_before(deadline, "stop listening for commits", data.commit_notifier.stop())
        await self.access.stop()
        await self.monitoring.stop()
        await self._supervisor.stop()
        await self._control.stop()

    async def _drain(self) -> None:
        """Serve for as long as load balancers need to notice, unless the agent should serve no longer."""
        if self.exclusion is not None:
            await self._control.run(self.session.stop())  # so that this version commits nothing more
        elif self.failure is None:
            await asyncio.sleep(self.settings.drain_ms / 1000)

    async def _stop_serving(self, seconds: float) -> None:
        """Respond within `seconds` to the requests in progress, and accept no others."""
        self.data.commit_notifier.close()
        self.data.write_path.drain()
        await self.kafka.stop(seconds)
        await self.access.quotas.stop()
        await self.http.stop(seconds)
        await self._tls.stop()


def _bind(
    listener: KafkaListener | HttpListener, opened: contextlib.ExitStack, settings: AgentSettings
) -> socket.socket:
    bound = opened.enter_context(bind(listener.host, listener.port))
    check_exposure(listener, bound, allow_insecure=settings.allow_insecure_listeners)
    return bound


def _named(protocol: str, addresses: Mapping[str, str]) -> dict[str, str]:
    """Return the first listener's address by the name of the protocol, others by `PROTOCOL.LISTENER`."""
    keys = (protocol if not number else f"{protocol}.{name}" for number, name in enumerate(addresses))
    return dict(zip(keys, addresses.values(), strict=True))


async def _run_before(deadline: float, what: str, step: Awaitable[None]) -> None:
    """Run one step of the stop in the time that is left."""
    left = deadline - asyncio.get_running_loop().time()
    try:
        await asyncio.wait_for(step, max(left, _MIN_STEP_SECONDS))
    except TimeoutError:
        _log.error("a step of the agent's stop timed out", step=what)
