"""Leaders of the partitions of local topics, whose records are on the disks of agents.

A partition is assigned to a node once and stays there, because only that node has its data. A node is a set
of disks, which store its id; it outlives the agent process. Each time a node opens its logs, it starts a new
leader epoch of every partition that it leads.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.model import PartitionId

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from uuid import UUID

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction

_SQL = load_queries("local_leaders")


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLeader:
    """Node that has a partition's log, and its leader epoch."""

    node_id: int
    leader_epoch: int


class LocalLeaders:
    """Leaders of local partitions; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, node_ids: Mapping[PartitionId, int]) -> None:
        """Assign partitions to nodes; partitions that have a leader or do not exist are skipped."""
        params = {
            "topic_ids": arrays.uuids(partition.topic_id for partition in node_ids),
            "partitions": arrays.integers([partition.partition for partition in node_ids]),
            "node_ids": arrays.integers(list(node_ids.values())),
        }
        self._database.transact(
            "local_leaders.claim", lambda transaction: transaction.send(_SQL["claim_partitions"], params)
        )

    def of_topic(self, topic_id: UUID) -> dict[int, LocalLeader]:
        """Return the leaders of a topic by partition; partitions without a leader are left out."""
        return self.of_topics([topic_id])[topic_id]

    def of_topics(self, topic_ids: Sequence[UUID]) -> dict[UUID, dict[int, LocalLeader]]:
        """Return the leaders of several topics by topic id and partition, as `of_topic` does."""
        params = {"topic_ids": arrays.uuids(topic_ids)}
        leaders: dict[UUID, dict[int, LocalLeader]] = {topic_id: {} for topic_id in topic_ids}
        for row in self._database.read("local_leaders.of_topics", _SQL["leaders_of_topics"], params):
            leader = LocalLeader(node_id=row.node_id, leader_epoch=row.leader_epoch)
            leaders[row.topic_id][row.partition] = leader
        return leaders

    def begin_epochs(self, node_id: int) -> dict[PartitionId, int]:
        """Start a new leader epoch of every partition that the node leads; return the epochs.

        A node calls this once, each time it opens its logs.
        """

        def work(transaction: Transaction) -> list[Row]:
            return transaction.rows(_SQL["begin_epochs"], {"node_id": node_id})

        rows = self._database.transact("local_leaders.begin_epochs", work)
        return {PartitionId(row.topic_id, row.partition): row.leader_epoch for row in rows}
