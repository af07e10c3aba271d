"""The replicas that clients see for each partition, cached because each costs a hash for every broker.

A response of Metadata may describe thousands of partitions, and after each change of the brokers many clients
ask for one. The choice depends only on the brokers, the client's zone and the partition.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agent.cluster.brokers import HASHES_PER_STEP, partition_subject, replicas

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from catalog.model import Broker

_MAX_TABLES: Final = 16  # zones and listeners, before and after a change of the brokers
_MAX_PARTITIONS: Final = 100_000  # in all tables, about 100 bytes each


class ReplicaTable:
    """The replicas of partitions among some brokers, as clients in one zone see them."""

    def __init__(self, cache: ReplicaCache, brokers: Sequence[Broker], zone: str | None) -> None:
        self._cache = cache
        self._brokers = brokers
        self._zone = zone
        self._nodes: dict[UUID, dict[int, tuple[int, ...]]] = {}
        self._same: dict[tuple[int, ...], tuple[int, ...]] = {}  # partitions of the same nodes share a tuple

    def steps_of(self, topic_id: UUID, partition: int) -> int:
        """Return the steps of work (see `CooperativeYield`) that `of` takes: none for a cached partition."""
        if partition in self._nodes.get(topic_id, ()):
            return 0
        return len(self._brokers) // HASHES_PER_STEP

    def of(self, topic_id: UUID, partition: int) -> tuple[int, ...]:
        """Return the node ids of a partition's replicas. The leader of these clients is the first."""
        known = self._nodes.get(topic_id)
        if known is None:
            known = self._nodes[topic_id] = {}
        nodes = known.get(partition)
        if nodes is None:
            chosen = replicas(self._brokers, partition_subject(topic_id, partition), self._zone)
            nodes = tuple([each.node_id for each in chosen])
            nodes = known[partition] = self._same.setdefault(nodes, nodes)
            self._cache.note_added()
        return nodes

    def clear(self) -> None:
        """Remove all partitions."""
        self._nodes.clear()
        self._same.clear()


class ReplicaCache:
    """Cached replicas of at most 100,000 partitions. Belongs to the event loop."""

    def __init__(self, max_partitions: int = _MAX_PARTITIONS) -> None:
        self._max_partitions = max_partitions
        self._partitions = 0
        self._tables: dict[tuple[tuple[tuple[int, str | None], ...], str | None], ReplicaTable] = {}

    def among(self, brokers: Sequence[Broker], zone: str | None) -> ReplicaTable:
        """Return the replicas among these brokers that clients in a zone see. Use it for one response."""
        nodes = tuple([(each.node_id, each.rack) for each in brokers])
        # Clients name their zones: those without a broker share a table.
        key = nodes, zone if any(rack == zone for _, rack in nodes) else None
        table = self._tables.get(key)
        if table is None:
            if len(self._tables) >= _MAX_TABLES:
                self.clear()
            table = self._tables[key] = ReplicaTable(self, brokers, key[1])
        return table

    def note_added(self) -> None:
        """Count a partition; at the bound, begin again with empty tables, because a response may use one."""
        self._partitions += 1
        if self._partitions >= self._max_partitions:
            for table in self._tables.values():
                table.clear()
            self._partitions = 0

    def clear(self) -> None:
        """Remove all tables."""
        self._tables.clear()
        self._partitions = 0
