"""The agents that serve Kafka clients, and the choice of the agent for a client.

Any agent can serve any partition of an object topic. The leader that clients see is only a hint, so that all
readers of a partition's tail share one agent's cache. It is chosen by rendezvous hashing (Thaler and
Ravishankar, 1998) over the live agents: an agent that joins or leaves moves only its share of the partitions.
Agents have a zone (their rack). Clients that state a zone are directed to agents in it.
"""

from __future__ import annotations

import asyncio
import base64
from functools import partial
from hashlib import blake2b
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from core.errors import SiltstoneError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from agent.runtime.work_pool import WorkPool
    from catalog.lifecycle.sessions import Brokers as BrokerTable
    from catalog.model import Broker
    from core.clock import Clock

_log = structlog.get_logger(__name__)
_CACHE_SECONDS = 0.5
# Heartbeats of group members wait for a lookup, and a hanging catalog may take half a minute or more.
_LOOKUP_TIMEOUT_SECONDS = 1.0
_MAX_CACHED_GROUPS: Final = 50_000
_MAX_CACHED_LENGTH: Final = 128  # any client may name groups
HASHES_PER_STEP: Final = 4
"""Hashes that are as much work as a step of `CooperativeYield`."""


def choose(brokers: Sequence[Broker], subject: bytes) -> Broker:
    """Return the broker that `subject` maps to among `brokers`."""
    if len(brokers) == 1:
        return brokers[0]
    return max(brokers, key=partial(_score, subject))


def _score(subject: bytes, broker: Broker) -> bytes:
    return blake2b(subject, digest_size=8, key=broker.node_id.to_bytes(4, "big")).digest()


def partition_subject(topic_id: UUID, partition: int) -> bytes:
    """Return the subject of a partition for `choose`."""
    return topic_id.bytes + partition.to_bytes(4, "big")


def zone_of(client_id: str | None) -> str | None:
    """Return the zone in a client id: the text between `siltstone_az=` and the next comma."""
    for part in (client_id or "").split(","):
        name, _, zone = part.strip().partition("=")
        if name == "siltstone_az" and zone:
            return zone
    return None


def replicas(brokers: Sequence[Broker], subject: bytes, zone: str | None) -> list[Broker]:
    """Return the broker that a client in `zone` is directed to, then one broker of each other zone.

    The first is in the client's own zone if a live broker is in it.
    """
    zones = {broker.rack for broker in brokers if broker.rack is not None}
    ranked = sorted(brokers, key=partial(_score, subject), reverse=True)
    first = next(each for each in ranked if zone not in zones or each.rack == zone)
    others = (
        next(broker for broker in ranked if broker.rack == each) for each in sorted(zones - {first.rack})
    )
    return [first, *others]


class Coordinators:
    """The coordinators of groups, cached while the same brokers are live. For use by one thread at a time.

    A choice costs a hash for each broker, and each heartbeat of a member needs the one of its group.
    """

    def __init__(self) -> None:
        self._live: Sequence[Broker] = ()
        self._by_id: dict[int, Broker] = {}
        self._chosen: dict[str, int] = {}

    def of(self, live: Sequence[Broker], group_id: str) -> Broker:
        """Return the broker that coordinates a group while these brokers are live."""
        if live is not self._live:
            by_id = {each.node_id: each for each in live}
            if by_id.keys() != self._by_id.keys():
                self._chosen.clear()
            self._live, self._by_id = live, by_id
        node_id = self._chosen.get(group_id)
        if node_id is None:
            node_id = choose(live, b"group:" + group_id.encode()).node_id
            if len(group_id) <= _MAX_CACHED_LENGTH:
                if len(self._chosen) >= _MAX_CACHED_GROUPS:
                    self._chosen.clear()
                self._chosen[group_id] = node_id
        return self._by_id[node_id]


class Liveness(Protocol):
    """Record of late heartbeats, after which other agents may have considered this agent dead."""

    @property
    def heartbeat_sent_at(self) -> float:
        """The time of the last successful heartbeat."""
        ...

    @property
    def lapses(self) -> int:
        """The number of heartbeats that were too late."""
        ...

    @property
    def is_overdue(self) -> bool:
        """Return True if the next heartbeat is too late already."""
        ...


class Brokers:
    """The live brokers, looked up in the catalog and cached for a moment. Belongs to the event loop."""

    def __init__(
        self,
        table: BrokerTable,
        own: Broker,
        *,
        cluster_id: UUID,
        pool: WorkPool,
        clock: Clock,
        liveness: Liveness,
        silent_ms: int,
        lookup_timeout_seconds: float = _LOOKUP_TIMEOUT_SECONDS,
    ) -> None:
        self.own = own
        self.cluster_id = base64.urlsafe_b64encode(cluster_id.bytes).decode().rstrip("=")
        self._table = table
        self._pool = pool
        self._clock = clock
        self._liveness = liveness
        self._silent_ms = silent_ms
        self._is_listed = True
        self._lapses = 0
        self._lapsed_since = -1.0
        self._live: tuple[Broker, ...] = (own,)
        self._until = 0.0
        self._lookup_timeout_seconds = lookup_timeout_seconds
        self._lookup_deadline = 0.0  # by the loop's time
        self._lookup: asyncio.Task[None] | None = None
        self._coordinators = Coordinators()

    async def live(self) -> tuple[Broker, ...]:
        """Return the live brokers by node id, including this agent.

        If the catalog does not respond in time, return the brokers that were last known.
        """
        if self._clock.monotonic() >= self._until:
            loop = asyncio.get_running_loop()
            lookup = self._lookup
            if lookup is None or lookup.done():
                lookup = self._lookup = loop.create_task(self._look_up(), name="live brokers")
                self._lookup_deadline = loop.time() + self._lookup_timeout_seconds
            # Without any earlier result there is nothing to return: wait without a limit.
            left = self._lookup_deadline - loop.time() if self._until else None
            if left is None or left > 0:
                await asyncio.wait([lookup], timeout=left)
            if lookup.done():
                lookup.result()
        return self._live

    async def _look_up(self) -> None:
        try:
            found = await self._pool.run(partial(self._table.live, self._silent_ms))
        except SiltstoneError as error:
            _log.warning("the live brokers could not be looked up", reason=str(error))
            return
        finally:
            self._until = self._clock.monotonic() + _CACHE_SECONDS
        self._is_listed = any(broker.node_id == self.own.node_id for broker in found)
        if not self._is_listed or self._liveness.is_overdue:
            self._lapse()
        others = [broker for broker in found if broker.node_id != self.own.node_id]
        self._live = tuple(sorted([*others, self.own], key=lambda broker: broker.node_id))

    async def live_on(self, listener: str) -> tuple[Broker, ...]:
        """Return the live brokers that have a listener of this name, with their addresses on it.

        This agent is one of them if one of its clients asks.
        """
        seen = (broker.seen_on(listener) for broker in await self.live())
        return tuple(broker for broker in seen if broker is not None)

    async def coordinator(self, key: str) -> Broker:
        """Return the broker that coordinates the group `key`.

        It is not this agent while other agents may consider it dead, unless no other broker is known.
        """
        live = await self.live()
        if not self._is_listed or self._liveness.is_overdue:
            others = tuple(broker for broker in live if broker.node_id != self.own.node_id)
            return choose(others or live, b"group:" + key.encode())
        return self._coordinators.of(live, key)

    def term(self) -> int:
        """Return a number that rises whenever other agents may have taken over groups of this agent.

        An agent without a connection to the catalog does not learn of new agents, nor that others consider it
        dead. If it knows no other agent it continues until the catalog responds.
        """
        if len(self._live) > 1 and self._liveness.is_overdue:
            self._lapse()
        return self._lapses + self._liveness.lapses

    def _lapse(self) -> None:
        """Count one lapse for each heartbeat that was followed by silence."""
        if self._lapsed_since != self._liveness.heartbeat_sent_at:
            self._lapsed_since = self._liveness.heartbeat_sent_at
            self._lapses += 1
