"""Two agents that coordinate groups, and ways to make one of them fail."""

from __future__ import annotations

from itertools import count
from typing import TYPE_CHECKING, Final

from tests.agent.kafka.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable

    from agent.groups.coordinator import GroupCoordinator
    from tests.agent.kafka.brokers import BrokerThread


NO_EXPIRY: Final = {"heartbeat_interval_ms": 3_600_000, "broker_silent_ms": 3_600_000}
"""Settings of agents that stay alive on a busy machine until a test calls `kill`."""


def two_brokers(start: Callable[[], BrokerThread]) -> list[BrokerThread]:
    """Start two agents, and wait until they see each other."""
    started = [start() for _ in range(2)]
    for each in started:
        until(lambda each=each: len(each.run(groups_of(each).ownership._brokers.live())) == 2)  # type: ignore[misc]  # a default binds it
    return started


def groups_of(broker: BrokerThread) -> GroupCoordinator:
    groups = broker.agent.kafka.groups
    assert groups is not None
    return groups


def group_of(broker: BrokerThread) -> str:
    """Return the name of a group that this agent coordinates."""
    return next(
        name
        for name in (f"group-{number}" for number in count())
        if broker.run(groups_of(broker).ownership.is_own(name))
    )


def kill(broker: BrokerThread) -> None:
    """Stop heartbeats and connections as if the process was killed, and fence its session."""
    broker.run(_stop_heartbeats(broker))
    broker.catalog.sessions.fence(broker.agent.session.session_id)


async def _stop_heartbeats(broker: BrokerThread) -> None:
    session, server = broker.agent.session, broker.agent.kafka.server
    assert session._heartbeats is not None
    assert server is not None
    (accepting,) = server._servers
    session._heartbeats.cancel()
    accepting.close()
    for connection in list(server._connections):
        connection.abort()
