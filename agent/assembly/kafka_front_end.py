"""The Kafka front end of an agent: the broker, the coordinators of groups and transactions, listeners."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agent.cluster.replica_cache import ReplicaCache
from agent.groups.consumer_lag import ConsumerLag
from agent.groups.coordinator import GroupCoordinator
from agent.groups.metrics import GroupCollector
from agent.kafka.api_registry import APIS
from agent.kafka.apis.unserved import UNSERVED_APIS
from agent.kafka.automatic_topics import AutomaticTopics
from agent.kafka.connection.server import KafkaServer
from agent.kafka.dispatcher import RequestDispatcher
from agent.kafka.fetch_sessions import FetchSessions
from agent.kafka.listener import create_brokers
from agent.kafka.services import KafkaServices
from agent.runtime.slow_start_warning import warn_if_slow
from agent.transactions.coordinator import TransactionCoordinator

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable, Mapping

    from agent.assembly.access_control import AccessControl
    from agent.assembly.data_path import DataPath
    from agent.assembly.resources import Resources
    from agent.cluster.brokers import Brokers
    from agent.cluster.session import Session
    from agent.listeners import KafkaListener
    from agent.local_topics.leaders import LeaderDirectory
    from agent.runtime.health import CallHealth, LoopLag
    from agent.security.tls.listeners import TlsListeners
    from agent.supervision.control_loop import ControlLoop


class KafkaFrontEnd:
    """The Kafka listeners of one agent, which may have none, and the coordinators behind them."""

    def __init__(
        self,
        resources: Resources,
        data: DataPath,
        access: AccessControl,
        catalog_health: CallHealth,
        loop_lag: LoopLag,
        tls: TlsListeners,
    ) -> None:
        settings = resources.settings
        self._resources = resources
        self._data = data
        self._access = access
        self._catalog_health = catalog_health
        self._loop_lag = loop_lag
        self._tls = tls
        self._services: KafkaServices | None = None
        self._lag: ConsumerLag | None = None
        self.server: KafkaServer | None = None
        self.groups: GroupCoordinator | None = None
        self.fetch_sessions = FetchSessions(
            clock=resources.clock,
            ids=resources.ids,
            max_sessions=settings.max_fetch_sessions,
            max_partitions=settings.max_fetch_session_partitions,
            evict_ms=settings.fetch_session_evict_ms,
        )
        self._automatic_topics = AutomaticTopics(
            catalog=resources.catalog,
            directory=data.directory,
            pools=resources.pools,
            partitions=settings.default_partitions,
            local_tier=settings.local_tier,
        )

    async def register(
        self, listeners: Mapping[KafkaListener, socket.socket], session: Session, control: ControlLoop
    ) -> None:
        """Open the local logs, and register the agent; as a broker, if it serves Kafka clients."""
        resources, local_logs = self._resources, self._data.local_logs
        with warn_if_slow("opening local logs, and recovering those that were not closed"):
            node_id = await local_logs.open()
        if not listeners:
            await control.run(session.start())
            return
        brokers = await create_brokers(
            listeners,
            settings=resources.settings,
            catalog=resources.catalog,
            pools=resources.pools,
            clock=resources.clock,
            session=session,
            node_id=node_id,
            has_local_logs=local_logs.is_enabled,
        )
        await control.run(session.start(brokers.own))
        leaders = await local_logs.lead_partitions(brokers, self._data.commit_notifier)
        groups = self._start_groups(brokers)
        self._services = self._create_services(brokers, leaders, groups)

    def _start_groups(self, brokers: Brokers) -> GroupCoordinator:
        resources, settings = self._resources, self._resources.settings.groups
        catalog, access = resources.catalog, self._access
        groups = self.groups = GroupCoordinator(
            groups=catalog.groups,
            offsets=catalog.group_offsets,
            topics=catalog.topics,
            configs=catalog.group_configs,
            brokers=brokers,
            pool=resources.pools.groups,
            clock=resources.clock,
            ids=resources.ids,
            settings=settings,
            catalog_health=self._catalog_health,
            rules=lambda: None if access.authorizer is None else access.authorizer.rules,
        )
        lag = self._lag = ConsumerLag(
            catalog.group_offsets,
            brokers,
            pool=resources.pools.catalog,
            clock=resources.clock,
            ids=resources.ids,
            interval_ms=settings.consumer_lag_interval_ms,
            max_partitions=settings.consumer_lag_max_partitions,
            local_high_watermark=self._data.local_logs.reader.high_watermark,
        )
        resources.metrics.expose(GroupCollector(groups.cache), lag)
        groups.start()
        if settings.consumer_lag_max_partitions:
            lag.start()
        return groups

    def _create_services(
        self, brokers: Brokers, leaders: LeaderDirectory, groups: GroupCoordinator
    ) -> KafkaServices:
        resources, data, access = self._resources, self._data, self._access
        return KafkaServices(
            settings=resources.settings,
            catalog=resources.catalog,
            directory=data.directory,
            automatic_topics=self._automatic_topics,
            appends=data.appends,
            failed_producers=data.failed_producers,
            local_logs=data.local_logs.reader,
            leaders=leaders,
            transactions=self._coordinate_transactions(),
            read_path=data.read_path,
            memory_reads=data.memory_reads,
            timestamps=data.timestamps,
            brokers=brokers,
            replicas=ReplicaCache(),
            epoch=resources.epoch,
            groups=groups,
            fetch_sessions=self.fetch_sessions,
            quotas=access.quotas,
            pools=resources.pools,
            authentication=access.authentication,
            request_budget=resources.request_budget,
            parsing_budget=resources.parsing_budget,
            metrics=resources.metrics,
            clock=resources.clock,
            loop_lag=self._loop_lag,
            ids=resources.ids,
            authorizer=access.authorizer,
            acl_follower=access.acl_follower,
        )

    def _coordinate_transactions(self) -> TransactionCoordinator:
        resources, data = self._resources, self._data
        return TransactionCoordinator(
            resources.catalog.transactions,
            resources.pools.catalog,
            data.tail,
            resources.epoch,
            resources.metrics,
            on_change=(
                data.bounds_cache.invalidate,
                data.commit_notifier.wake,
                data.announcer.announce,
            ),
            on_pending_markers=data.local_logs.announce_markers,
        )

    async def serve(self, listeners: Mapping[KafkaListener, socket.socket]) -> dict[str, str]:
        """Serve on these sockets; return the address of each listener by its name, as HOST:PORT."""
        if self._services is None:
            return {}
        dispatcher = RequestDispatcher((*APIS, *UNSERVED_APIS), self._services)
        server = self.server = KafkaServer(dispatcher, listeners, self._services, self._tls)
        await server.start()
        return server.addresses

    def running(self) -> dict[str, Callable[[], bool]]:
        """Return the essential parts, and whether they run."""
        server, groups = self.server, self.groups
        if server is None or groups is None:
            return {}
        return {"kafka_listener": lambda: server.is_running, "groups": lambda: groups.is_running}

    async def stop(self, seconds: float) -> None:
        """Respond within `seconds` to the requests in progress, and accept no others."""
        if self.groups is not None:
            self.groups.release()
        if self.server is not None:
            await self.server.stop(seconds)
        await self._automatic_topics.stop()
        if self.groups is not None:
            await self.groups.stop()
        if self._lag is not None:
            await self._lag.stop()
