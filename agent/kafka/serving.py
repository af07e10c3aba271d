"""Puts the Kafka face of an agent together: it becomes a broker, then it listens."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from agent.cluster.brokers import Brokers
from agent.http.server import bind
from agent.kafka.connection.server import KafkaServer
from agent.kafka.dispatch import Dispatch
from agent.kafka.table import APIS
from catalog.model import Broker
from core.errors import InvalidInputError

if TYPE_CHECKING:
    from agent.cluster.session import Session
    from agent.kafka.services import Services
    from agent.runtime.pools import Pools
    from agent.settings import AgentSettings
    from catalog.open import Catalog
    from core.clock import Clock

_EVERYWHERE = frozenset({"0.0.0.0", "::", ""})  # noqa: S104  # compared with, not bound to


def bind_for_clients(settings: AgentSettings) -> socket.socket | None:
    """The socket for Kafka clients, which does not listen yet; None when none are served."""
    if settings.kafka_host is None:
        return None
    return bind(settings.kafka_host, settings.kafka_port)


async def become_broker(
    listener: socket.socket,
    *,
    settings: AgentSettings,
    catalog: Catalog,
    pools: Pools,
    clock: Clock,
    session: Session,
    node_id: int,
    has_local_logs: bool,
) -> Brokers:
    """What stands for this agent as `node_id`; a broker to others once its session is registered as `own`."""
    host, port = advertised_address(listener, settings)
    return Brokers(
        catalog.brokers,
        Broker(node_id=node_id, host=host, port=port, rack=settings.rack, has_local_logs=has_local_logs),
        cluster_id=await pools.catalog.run(catalog.brokers.cluster_id),
        pool=pools.catalog,
        clock=clock,
        standing=session,
        silent_ms=settings.broker_silent_ms,
    )


def advertised_address(listener: socket.socket, settings: AgentSettings) -> tuple[str, int]:
    """The host and port that clients are told."""
    host, port = listener.getsockname()[:2]
    if settings.kafka_advertised is not None:
        told_host, _, told_port = settings.kafka_advertised.rpartition(":")
        if not told_host or not told_port.isdecimal() or int(told_port) > 65535:
            raise InvalidInputError(
                f"the advertised address {settings.kafka_advertised!r} is not HOST:PORT",
                remedy="give what clients can connect to, such as broker-1.example.org:9092",
            )
        # Port 0 stands for the one that was taken.
        return told_host.removeprefix("[").removesuffix("]"), int(told_port) or port
    return (socket.gethostname() if host in _EVERYWHERE else host), port


def new_server(services: Services, listener: socket.socket) -> KafkaServer:
    """A server of all APIs; start it."""
    return KafkaServer(Dispatch(APIS, services), listener, services)
