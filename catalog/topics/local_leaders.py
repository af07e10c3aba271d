"""Who leads the partitions of topics whose home is an agent's disk.

A partition is given to a node once and stays with it, since its data lies there and nowhere else; a node is
an agent's disks, which know its number, and not one life of its process. Each time that a node opens its
logs anew it begins the next leader epoch of all that it leads.
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
    """The node that has a partition's log, and the epoch in which it leads."""

    node_id: int
    leader_epoch: int


class LocalLeaders:
    """Leaders of local partitions; part of `Catalog`, and as safe to use from many threads."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def claim(self, wanted: Mapping[PartitionId, int]) -> None:
        """Give partitions to nodes, but for those that somebody leads already, or that do not exist."""
        params = {
            "topic_ids": arrays.uuids(partition.topic_id for partition in wanted),
            "partitions": arrays.integers([partition.partition for partition in wanted]),
            "node_ids": arrays.integers(list(wanted.values())),
        }
        self._database.transact(
            "local_leaders.claim", lambda transaction: transaction.send(_SQL["claim_partitions"], params)
        )

    def of_topic(self, topic_id: UUID) -> dict[int, LocalLeader]:
        """The leaders of a topic's partitions; those that nobody leads yet are left out."""
        return self.of_topics([topic_id])[topic_id]

    def of_topics(self, topic_ids: Sequence[UUID]) -> dict[UUID, dict[int, LocalLeader]]:
        """As `of_topic`, of several topics by their identifiers."""
        params = {"topic_ids": arrays.uuids(topic_ids)}
        found: dict[UUID, dict[int, LocalLeader]] = {topic_id: {} for topic_id in topic_ids}
        for row in self._database.read("local_leaders.of_topics", _SQL["leaders_of_topics"], params):
            found[row[0]][row[1]] = LocalLeader(node_id=row[2], leader_epoch=row[3])
        return found

    def begin_epochs(self, node_id: int) -> dict[PartitionId, int]:
        """The new epochs of all partitions that the node leads; once, each time that it opens its logs."""

        def work(transaction: Transaction) -> list[Row]:
            return transaction.rows(_SQL["begin_epochs"], {"node_id": node_id})

        rows = self._database.transact("local_leaders.begin_epochs", work)
        return {PartitionId(row[0], row[1]): row[2] for row in rows}
