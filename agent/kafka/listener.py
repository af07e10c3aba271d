"""The Kafka listeners of an agent: the addresses that it advertises, and its registration as a broker."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from agent.cluster.brokers import Brokers
from agent.listeners import SecurityProtocol
from catalog.model import Broker, Endpoint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from agent.cluster.session import Session
    from agent.listeners import KafkaListener
    from agent.runtime.pools import Pools
    from agent.settings import AgentSettings
    from catalog.open import Catalog
    from core.clock import Clock

_ALL_INTERFACES = frozenset({"0.0.0.0", "::", ""})  # noqa: S104  # compared with, not bound to


async def create_brokers(
    listeners: Mapping[KafkaListener, socket.socket],
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
    endpoints = tuple(
        Endpoint(each.name, *advertised_address(each, bound)) for each, bound in listeners.items()
    )
    plain = [each.protocol is SecurityProtocol.PLAINTEXT for each in listeners]
    for_commands = endpoints[plain.index(True) if any(plain) else 0]
    return Brokers(
        catalog.brokers,
        Broker(
            node_id=node_id,
            host=for_commands.host,
            port=for_commands.port,
            endpoints=endpoints,
            rack=settings.rack,
            has_local_logs=has_local_logs,
        ),
        cluster_id=await pools.catalog.run(catalog.brokers.cluster_id),
        pool=pools.groups,  # each request of a group looks up the live brokers
        clock=clock,
        liveness=session,
        silent_ms=settings.broker_silent_ms,
    )


def advertised_address(listener: KafkaListener, bound: socket.socket) -> tuple[str, int]:
    """Return the host and port for clients to connect to (Kafka's `advertised.listeners`)."""
    host, port = bound.getsockname()[:2]
    if listener.advertised_host is not None:
        return listener.advertised_host, listener.advertised_port or port
    return (socket.gethostname() if host in _ALL_INTERFACES else host), port
