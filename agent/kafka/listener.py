"""The Kafka listener of an agent: the address that it advertises, and its registration as a broker."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from agent.cluster.brokers import Brokers
from catalog.model import Broker
from core.errors import InvalidInputError

if TYPE_CHECKING:
    from agent.cluster.session import Session
    from agent.runtime.pools import Pools
    from agent.settings import AgentSettings
    from catalog.open import Catalog
    from core.clock import Clock

_ALL_INTERFACES = frozenset({"0.0.0.0", "::", ""})  # noqa: S104  # compared with, not bound to


async def create_brokers(
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
    """Return the live brokers with this agent as `node_id`.

    Other agents see it as a broker once its session is registered with `Brokers.own`.
    """
    host, port = advertised_address(listener, settings)
    return Brokers(
        catalog.brokers,
        Broker(node_id=node_id, host=host, port=port, rack=settings.rack, has_local_logs=has_local_logs),
        cluster_id=await pools.catalog.run(catalog.brokers.cluster_id),
        pool=pools.groups,  # each request of a group looks up the live brokers
        clock=clock,
        liveness=session,
        silent_ms=settings.broker_silent_ms,
    )


def advertised_address(listener: socket.socket, settings: AgentSettings) -> tuple[str, int]:
    """Return the host and port for clients to connect to (Kafka's `advertised.listeners`)."""
    host, port = listener.getsockname()[:2]
    if settings.kafka_advertised is not None:
        advertised_host, _, advertised_port = settings.kafka_advertised.rpartition(":")
        if not advertised_host or not advertised_port.isdecimal() or int(advertised_port) > 65535:
            raise InvalidInputError(
                f"the advertised address {settings.kafka_advertised!r} is not HOST:PORT",
                remedy="set an address that clients can connect to, such as broker-1.example.org:9092",
            )
        # Port 0 stands for the port of the listener.
        return advertised_host.removeprefix("[").removesuffix("]"), int(advertised_port) or port
    return (socket.gethostname() if host in _ALL_INTERFACES else host), port
