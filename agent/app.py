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
import os
import socket
from functools import partial
from typing import TYPE_CHECKING

import structlog

from agent.cluster.catalog_epoch import CatalogEpoch, EpochInLoop
from agent.cluster.session import Session
from agent.cluster.topic_directory import TopicDirectory
from agent.groups.consumer_lag import ConsumerLag
from agent.groups.coordinator import GroupCoordinator
from agent.groups.metrics import GroupCollector
from agent.http.app import create_app
from agent.http.authentication import HttpAuthenticator
from agent.http.context import HttpContext
from agent.http.records.producer import RecordProducer
from agent.http.transport.connection import HttpLimits
from agent.http.transport.server import HttpServer
from agent.kafka.api_registry import APIS
from agent.kafka.apis.rejected import UNSERVED_APIS
from agent.kafka.automatic_topics import AutomaticTopics
from agent.kafka.connection.server import KafkaServer
from agent.kafka.dispatcher import RequestDispatcher
from agent.kafka.fetch_sessions import FetchSessions
from agent.kafka.listener import create_brokers
from agent.kafka.services import KafkaServices
from agent.local_topics.service import LocalLogService
from agent.maintenance import AgentMaintenance
from agent.metrics_snapshot import metrics_snapshot
from agent.quotas.follower import QuotaFollower
from agent.read.caches.block_cache import BlockCache
from agent.read.caches.cache_memory import CacheMemory
from agent.read.caches.catalog_cache import BoundsCache
from agent.read.caches.range_cache import RangeCache
from agent.read.commit_notifier import CommitNotifier
from agent.read.hot_tail import HotTail
from agent.read.log_lookup import LogLookup
from agent.read.memory_reads import MemoryReads
from agent.read.object_reader import ObjectReader
from agent.read.read_path import ReadPath
from agent.read.timestamp_lookup import TimestampLookup
from agent.runtime.byte_budget import ByteBudget
from agent.runtime.health import CallHealth, Health, LoopLag
from agent.runtime.metrics import AgentMetrics, CatalogCollector, CatalogServerCollector, StoreCollector
from agent.runtime.pools import Pools
from agent.runtime.probes import DiskProbe, Probe
from agent.runtime.retry import RetryPolicy
from agent.runtime.slow_start_warning import warn_if_slow
from agent.runtime.sockets import bind, listen
from agent.security.acl_follower import AclFollower
from agent.security.audit import AuditLog
from agent.security.authentication import Authentication
from agent.security.authorizer import Authorizer
from agent.security.exposure import check_authorization, check_exposure
from agent.security.tls.listeners import TlsListeners
from agent.supervision.control_loop import ControlLoop, run_in
from agent.supervision.supervisor import Supervisor
from agent.transactions.coordinator import TransactionCoordinator
from agent.warm_up import warm_up
from agent.write.acknowledged_commits import AcknowledgedCommits
from agent.write.commit_listeners import AppendMetrics, CommitAnnouncer
from agent.write.loss_recovery import LossRecovery
from agent.write.write_path import WritePath
from catalog.security.acls import ACL_CHANNEL
from catalog.transactions.local_partitions import MARKER_CHANNEL
from core.outage import Outage
from object_store.binding import probe as probe_identity

if TYPE_CHECKING:
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


async def _run_before(deadline: float, what: str, step: Awaitable[None]) -> None:
    """Run one step of the stop in the time that is left."""
    left = deadline - asyncio.get_running_loop().time()
    try:
        await asyncio.wait_for(step, max(left, _MIN_STEP_SECONDS))
    except TimeoutError:
        _log.error("a step of the agent's stop timed out", step=what)


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


class Agent:
    """One agent over a store and a catalog, which the caller closes.

    Create it inside a running event loop. `start` serves. `stop` may be called once, after `start`. The agent
    calls `request_stop` if a migration of the catalog excludes its version, and keeps the error in
    `exclusion`. It does the same if one of its essential parts ends, with the error in `failure`. It calls
    `on_stuck` in another thread if the event loop is stuck.
    """

    authentication: Authentication
    exclusion: SchemaVersionError | None = None
    failure: BackgroundTaskError | None = None
    _http: tuple[HttpServer, ...] = ()
    _kafka: KafkaServer | None = None
    _groups: GroupCoordinator | None = None
    _lag: ConsumerLag | None = None
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
        self._catalog = catalog
        self._clock = clock
        self._ids = ids
        self._loop = asyncio.get_running_loop()
        self._control = ControlLoop()
        self.metrics = AgentMetrics()
        self.health = Health()
        unready_seconds = settings.unready_after_ms / 1000
        self.store_health = CallHealth(clock, limit_seconds=unready_seconds)
        self.catalog_health = CallHealth(clock, limit_seconds=unready_seconds)
        self.disk_health = CallHealth(clock, limit_seconds=unready_seconds)
        self.health.warn("lost_commits", catalog.incarnations.warning)
        self._probe_store = probe_store or store
        self._probes: dict[str, Probe] = {}
        self.loop_lag = LoopLag(clock)
        self.pools = Pools.open(settings, catalog.dedicate_thread)
        retry = RetryPolicy(
            attempts=settings.write_attempts,
            first_pause=settings.retry_pause_ms / 1000,
            max_pause=settings.max_retry_pause_ms / 1000,
            ids=ids,
        )
        self.epoch = CatalogEpoch()
        acknowledged = AcknowledgedCommits(clock)
        recovery = LossRecovery(
            catalog,
            store,
            acknowledged,
            automatic=settings.automatic_readoption,
            silent_ms=settings.broker_silent_ms,
            pool=self.pools.catalog,
            metrics=self.metrics,
        )
        self.session = Session(
            catalog.sessions,
            description=f"agent on {socket.gethostname()}, process {os.getpid()}",
            pool=self.pools.session,
            ids=ids,
            clock=clock,
            interval_ms=settings.heartbeat_interval_ms,
            silent_ms=settings.broker_silent_ms,
            health=self.catalog_health,
            on_excluded=self._stop_excluded,
            epoch=EpochInLoop(self.epoch, self._loop),
            recover=lambda *lost: run_in(self._loop, recovery.run(*lost)),
        )
        self.blocks = BlockCache(CacheMemory(settings.cache_bytes))
        self.tail = HotTail(settings.tail_bytes)
        bounds_cache = self._bounds_cache = BoundsCache(
            clock, ttl_ms=settings.bounds_cache_ms, limit=settings.max_cached_bounds
        )
        # Identifies this agent in notifications of commits; its sessions may change.
        origin = ids.new_uuid()
        self._announcer = CommitAnnouncer(
            partial(catalog.commits.announce, origin=origin), self.pools.catalog
        )
        self.acl_follower = self._follow_acls()
        self.directory = TopicDirectory(
            catalog.topics, pool=self.pools.catalog, clock=clock, cache_ms=settings.topic_cache_ms
        )
        self.local_logs = LocalLogService(
            settings=settings,
            catalog=catalog,
            directory=self.directory,
            pools=self.pools,
            clock=clock,
            ids=ids,
            epoch=self.epoch,
        )
        self.commit_notifier = CommitNotifier(
            catalog.watcher(ignored_origin=origin, listeners=self._listeners()),
            bounds_cache,
            outage=Outage("notifications of commits", clock=clock, ids=ids),
        )
        self.write_path = WritePath(
            settings=settings,
            store=store,
            log=catalog.commits,
            session=self.session,
            pools=self.pools,
            retry=retry,
            clock=clock,
            ids=ids,
            metrics=self.metrics,
            store_health=self.store_health,
            epoch=self.epoch,
            # Tail and bounds before the notifier, so that woken fetches find the new records.
            listeners=(
                acknowledged,
                self.tail,
                bounds_cache,
                AppendMetrics(self.metrics),
                self.directory,
                self.local_logs.tail_cache,
                self.commit_notifier,
                self._announcer,
            ),
        )
        self.appends = self.local_logs.create_router(self.write_path)
        reader = ObjectReader(
            store,
            RangeCache(self.blocks.memory),
            self.pools,
            gap=settings.coalesce_gap_bytes,
            limit=settings.max_read_bytes,
            health=self.store_health,
        )
        self._timestamps = TimestampLookup(
            catalog.extents, reader, self.pools, settings, self.local_logs.reader
        )
        log_lookup = LogLookup(
            settings=settings,
            bounds=catalog.topics,
            extents=catalog.extents,
            bounds_cache=bounds_cache,
            pool=self.pools.lookups,
            clock=clock,
            epoch=self.epoch,
            is_current=catalog.incarnations.is_current,
        )
        self.read_path = ReadPath(
            settings=settings,
            log=log_lookup,
            tail=self.tail,
            blocks=self.blocks,
            local_reader=self.local_logs.reader,
            timestamps=self._timestamps,
            find_aborted=catalog.transaction_lookups.aborted,
            reader=reader,
            commit_notifier=self.commit_notifier,
            pools=self.pools,
            clock=clock,
            metrics=self.metrics,
        )
        self._memory_reads = MemoryReads(
            tail=self.tail,
            blocks=self.blocks,
            bounds=bounds_cache,
            budget=self.read_path.budget,
            commit_notifier=self.commit_notifier,
            clock=clock,
            metrics=self.metrics,
            max_fetch_bytes=settings.max_fetch_bytes,
            poll_seconds=settings.poll_interval_ms / 1000,
        )
        self.request_budget = ByteBudget("the memory for request bodies", settings.max_requests_bytes)
        self.parsing_budget = ByteBudget("the memory for parsed requests", settings.max_parsed_bytes)
        self.quotas = QuotaFollower.of_agent(
            settings,
            catalog.client_quotas,
            pool=self.pools.catalog,
            clock=clock,
            outage=Outage("client quotas", clock=clock, ids=ids),
            metrics=self.metrics,
        )
        self.fetch_sessions = FetchSessions(
            clock=clock,
            ids=ids,
            max_sessions=settings.max_fetch_sessions,
            max_partitions=settings.max_fetch_session_partitions,
            evict_ms=settings.fetch_session_evict_ms,
        )
        self.epoch.on_change(
            self.tail.clear,
            self.blocks.clear,
            log_lookup.clear,
            self.directory.clear,
            self.fetch_sessions.clear,
            self.commit_notifier.release_waiters,
        )
        self.metrics.expose(
            StoreCollector(store, self._probe_store),
            CatalogCollector(catalog),
            CatalogServerCollector(catalog.server),
            metrics_snapshot(
                write_path=self.write_path,
                read_path=self.read_path,
                tail=self.tail,
                cache=reader.cache,
                blocks=self.blocks,
                local_logs=self.local_logs,
                fetch_sessions=self.fetch_sessions,
                request_budget=self.request_budget,
                parsing_budget=self.parsing_budget,
                pools=self.pools,
                loop_lag=self.loop_lag,
                epoch=self.epoch,
                incarnations=catalog.incarnations,
            ),
        )
        self._maintenance = AgentMaintenance(maintenance, self.metrics)
        self._services = HttpContext(
            settings=settings,
            topics=catalog.topics,
            directory=self.directory,
            producer=RecordProducer(self.appends, self.pools, clock=clock, ids=ids),
            read_path=self.read_path,
            quotas=self.quotas,
            pools=self.pools,
            request_budget=self.request_budget,
            parsing_budget=self.parsing_budget,
            metrics=self.metrics,
            ids=ids,
            health=self.health,
            authorizer=self._authorizer,
        )
        self._automatic_topics = AutomaticTopics(
            catalog=catalog,
            directory=self.directory,
            pools=self.pools,
            partitions=settings.default_partitions,
            local_tier=settings.local_tier,
        )
        self._tls = TlsListeners(settings, self.metrics)
        self._request_stop = request_stop
        self._supervisor = Supervisor(
            self._control,
            self.health,
            self.loop_lag,
            on_failure=self._stop_failed,
            on_stuck=on_stuck,
            stuck_seconds=settings.stuck_loop_ms / 1000,
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
                self.authentication = self._create_authentication()
                kafka = {each: _bind(each, opened, settings) for each in settings.kafka_listeners}
                self._control.start()
                await self._warm_up()
                await self.quotas.start()
                for bound in (*http.values(), *kafka.values()):
                    listen(bound)
                services = await self._start_session(kafka)
                if self.acl_follower is not None:
                    await self.acl_follower.start()
                self.write_path.start()
                self.commit_notifier.start()
                self.loop_lag.start()
                self._tls.start()
                await self._start_http(http)
                addresses = _named("http", {each.name: each.address for each in self._http})
                if services is not None:
                    dispatcher = RequestDispatcher((*APIS, *UNSERVED_APIS), services)
                    self._kafka = KafkaServer(dispatcher, kafka, services, self._tls)
                    await self._kafka.start()
                    addresses |= _named("kafka", self._kafka.addresses)
                self._maintenance.start()
                self._start_health()
                addresses["health"] = await self._supervisor.start(health)
            except BaseException:
                opened.close()
                await self.stop()
                raise
            opened.pop_all()
        return addresses

    def _create_authentication(self) -> Authentication:
        return Authentication(
            self.settings,
            users=self._catalog.users,
            pools=self.pools,
            metrics=self.metrics,
            clock=self._clock,
            ids=self._ids,
        )

    async def _start_http(self, listeners: Mapping[HttpListener, socket.socket]) -> None:
        app = create_app(self._services)
        limits = HttpLimits(
            head_seconds=self.settings.http_head_timeout_ms / 1000,
            write_seconds=self.settings.write_timeout_ms / 1000,
            max_connections=self.settings.http_max_connections,
        )
        for listener, bound in listeners.items():
            served = HttpAuthenticator(app, listener, self.authentication, self.metrics)
            server = HttpServer(served, listener, bound, limits=limits, tls=self._tls)
            self._http = (*self._http, server)
            await server.start()

    def _start_health(self) -> None:
        """Start the probes, and register the parts of the agent that its health depends on."""
        catalog_probe = self._catalog.probe(self.settings.probe_timeout_ms / 1000)
        self._add_probe("catalog", catalog_probe.check, self.catalog_health)
        self._add_probe("object_store", partial(probe_identity, self._probe_store), self.store_health)
        storage = self.local_logs.storage
        if storage is not None:
            manager = storage.manager
            timeout_seconds = self.settings.probe_timeout_ms / 1000 / max(len(manager.live_directories), 1)
            disks = DiskProbe(lambda: manager.live_directories, timeout_seconds=timeout_seconds)
            self._add_probe("disks", disks.check, self.disk_health)
        health = self.health
        health.require_live("event_loop", self.loop_lag.problem)
        health.require_running("event_loop_watch", lambda: self.loop_lag.is_running)
        health.require_running("heartbeats", lambda: self.session.is_running)
        health.require_running("commits", lambda: self.write_path.is_running)
        health.require_running("notifications", lambda: self.commit_notifier.is_running)
        health.require_running("quotas", lambda: self.quotas.is_running)
        if (markers := self.local_logs.markers) is not None:
            health.require_running("transaction_markers", lambda: markers.is_running)
        if (follower := self.acl_follower) is not None:
            health.require_running("acls", lambda: follower.is_running)
        health.require_running("maintenance", lambda: self._maintenance.is_running)
        health.require_running("certificates", lambda: self._tls.is_running)
        health.require_running("http_listener", lambda: all(each.is_running for each in self._http))
        kafka, groups = self._kafka, self._groups
        if kafka is not None and groups is not None:
            health.require_running("kafka_listener", lambda: kafka.is_running)
            health.require_running("groups", lambda: groups.is_running)
        health.require_ready("session", self.session.problem)
        health.require_ready("agent", lambda: "is stopping" if self._stopping else None)

    def _add_probe(self, dependency: str, call: Callable[[], object], health: CallHealth) -> None:
        health.succeeded()  # it has just worked, at the start
        probe = self._probes[dependency] = Probe(
            dependency,
            call,
            health,
            interval_seconds=self.settings.probe_interval_ms / 1000,
            clock=self._clock,
            ids=self._ids,
        )
        self.health.require_running(f"{dependency}_probe", lambda: probe.is_running)
        self.health.require_ready(dependency, health.problem)
        probe.start()

    async def _warm_up(self) -> None:
        """Warm up before clients can connect: a client without a connection can choose another agent."""
        with warn_if_slow(_COMPILING):
            await self.pools.kernels.run(warm_up)

    async def _start_session(self, listeners: Mapping[KafkaListener, socket.socket]) -> KafkaServices | None:
        """Register the agent; as a broker, if it serves Kafka clients."""
        with warn_if_slow("opening local logs, and recovering those that were not closed"):
            node_id = await self.local_logs.open()
        if not listeners:
            await self._control.run(self.session.start())
            return None
        brokers = await create_brokers(
            listeners,
            settings=self.settings,
            catalog=self._catalog,
            pools=self.pools,
            clock=self._clock,
            session=self.session,
            node_id=node_id,
            has_local_logs=self.local_logs.is_enabled,
        )
        await self._control.run(self.session.start(brokers.own))
        leaders = await self.local_logs.lead_partitions(brokers, self.commit_notifier)
        self._groups = GroupCoordinator(
            groups=self._catalog.groups,
            offsets=self._catalog.group_offsets,
            topics=self._catalog.topics,
            configs=self._catalog.group_configs,
            brokers=brokers,
            pool=self.pools.groups,
            clock=self._clock,
            ids=self._ids,
            settings=self.settings.groups,
            catalog_health=self.catalog_health,
            rules=lambda: None if self._authorizer is None else self._authorizer.rules,
        )
        self._lag = ConsumerLag(
            self._catalog.group_offsets,
            brokers,
            pool=self.pools.catalog,
            clock=self._clock,
            ids=self._ids,
            interval_ms=self.settings.groups.consumer_lag_interval_ms,
            max_partitions=self.settings.groups.consumer_lag_max_partitions,
        )
        self.metrics.expose(GroupCollector(self._groups.cache), self._lag)
        self._groups.start()
        if self.settings.groups.consumer_lag_max_partitions:
            self._lag.start()
        return KafkaServices(
            settings=self.settings,
            catalog=self._catalog,
            directory=self.directory,
            automatic_topics=self._automatic_topics,
            appends=self.appends,
            local_logs=self.local_logs.reader,
            leaders=leaders,
            transactions=self._coordinate_transactions(),
            read_path=self.read_path,
            memory_reads=self._memory_reads,
            timestamps=self._timestamps,
            brokers=brokers,
            epoch=self.epoch,
            groups=self._groups,
            fetch_sessions=self.fetch_sessions,
            quotas=self.quotas,
            pools=self.pools,
            authentication=self.authentication,
            request_budget=self.request_budget,
            parsing_budget=self.parsing_budget,
            metrics=self.metrics,
            clock=self._clock,
            ids=self._ids,
            authorizer=self._authorizer,
            acl_follower=self.acl_follower,
        )

    def _coordinate_transactions(self) -> TransactionCoordinator:
        return TransactionCoordinator(
            self._catalog.transactions,
            self.pools.catalog,
            self.tail,
            self.epoch,
            self.metrics,
            on_change=(
                self._bounds_cache.invalidate,
                self.commit_notifier.wake,
                self._announcer.announce,
            ),
            on_pending_markers=self.local_logs.announce_markers,
        )

    def _follow_acls(self) -> AclFollower | None:
        """Return what keeps the authorizer's ACLs current; None if every client may do everything."""
        if not self.settings.authorizer_enable:
            return None
        audit = AuditLog(
            self._clock,
            lines_per_second=self.settings.audit_log_lines_per_second,
            denied=self.metrics.authorizations_denied,
            suppressed=self.metrics.audit_lines_suppressed,
        )
        authorizer = Authorizer(
            super_users=self.settings.super_users,
            allow_everyone=self.settings.allow_everyone_if_no_acl_found,
            audit=audit,
        )
        follower = AclFollower(
            self._catalog.acls,
            authorizer,
            clock=self._clock,
            outage=Outage("comparison of the ACLs with the catalog", clock=self._clock, ids=self._ids),
            poll_seconds=self.settings.acl_poll_ms / 1000,
        )
        self.metrics.expose(follower.collector())
        return follower

    @property
    def _authorizer(self) -> Authorizer | None:
        return None if self.acl_follower is None else self.acl_follower.authorizer

    def _listeners(self) -> dict[str, Callable[[], None]]:
        """Return the functions to call for notifications of other channels than those of commits."""
        listeners: dict[str, Callable[[], None]] = {}
        if self.acl_follower is not None:
            listeners[ACL_CHANNEL] = self.acl_follower.notify
        if self.settings.local_root is not None or self.settings.local_directories:
            listeners[MARKER_CHANNEL] = self.local_logs.notify_markers
        return listeners

    def _stop_excluded(self, error: SchemaVersionError) -> None:
        """Let the process stop this agent, because a migration excludes this version of Siltstone."""
        _log.error("the schema of the catalog excludes this version", reason=str(error))
        self.exclusion = error
        self._loop.call_soon_threadsafe(self._request_stop)

    async def _drain(self) -> None:
        """Serve for as long as load balancers need to notice, unless the agent should serve no longer."""
        if self.exclusion is not None:
            await self._control.run(self.session.stop())  # so that this version commits nothing more
        elif self.failure is None:
            await asyncio.sleep(self.settings.drain_ms / 1000)

    async def _stop_serving(self, seconds: float) -> None:
        """Respond within `seconds` to the requests in progress, and accept no others."""
        self.commit_notifier.close()
        self.write_path.drain()
        if self._groups is not None:
            self._groups.release()
        if self._kafka is not None:
            await self._kafka.stop(seconds)
        await self._automatic_topics.stop()
        if self._groups is not None:
            await self._groups.stop()
        if self._lag is not None:
            await self._lag.stop()
        await self.quotas.stop()
        await asyncio.gather(*(each.stop(seconds) for each in self._http))
        await self._tls.stop()

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
        await self.read_path.read_ahead.stop()
        if self.failure is None:
            await _run_before(deadline, "commit accepted records", self.write_path.stop())
        await self.write_path.abandon()
        await _run_before(deadline, "close the local logs", self.local_logs.stop())
        await _run_before(deadline, "announce the last commits", self._announcer.stop())
        await _run_before(deadline, "stop maintenance", maintenance)
        if self._control.is_running:
            await _run_before(deadline, "end the session", self._control.run(self.session.stop()))
        await _run_before(deadline, "stop listening for commits", self.commit_notifier.stop())
        if self.acl_follower is not None:
            await self.acl_follower.stop()
        await self.loop_lag.stop()
        for probe in self._probes.values():
            probe.stop()
        await self._supervisor.stop()
        await self._control.stop()
        self.pools.close(wait=False)
        await _run_before(deadline, "finish running calls", self.pools.idle())
