"""Leaders of the partitions of local topics, whose records are on the disks of agents.

A partition is assigned to a node once and stays there, because only that node has its data. A node is a set
of disks, which store its id; it outlives the agent process. Each time a node opens its logs, it starts a new
leader epoch of every partition that it leads.

A failover or a restore of the catalog may have lost an assignment. The node with the log then claims the
partition again, also from another node that has no log of it yet. No other node gets it before, for a minute.

The row of a partition has the id of the log directory with its log (KIP-858). A node records it before it
acknowledges the first record. From then on the log is in that directory or the partition is offline: it never
starts again in another one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from uuid import UUID

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.errors import CatalogUnavailableError
from catalog.model import PartitionId
from catalog.topics.changes import read_version
from catalog.topics.lost import check_no_lost_topics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from catalog.database.connection import Row
    from catalog.database.pool import Database, Transaction
    from catalog.lifecycle.incarnation import Incarnations
    from catalog.topics.changes import TopicVersion

_SQL = load_queries("local_leaders")

UNASSIGNED: Final = UUID(int=1)
"""Kafka's DirectoryId.UNASSIGNED: no log exists yet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalLeader:
    """Node that has a partition's log, its leader epoch, and the log directory.

    `directory_id` is `UNASSIGNED` before the log exists. It is None if an earlier release claimed the
    partition, until the node has opened its logs.
    """

    node_id: int
    leader_epoch: int
    directory_id: UUID | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundLog:
    """Log with records of a partition: its directory, and the leader epoch of its last records."""

    directory_id: UUID
    leader_epoch: int


class LocalLeaders:
    """Leaders of local partitions; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database, incarnations: Incarnations) -> None:
        self._database = database
        self._incarnations = incarnations

    def version(self) -> TopicVersion:
        """Return the version of all leaders, which is another one after each change."""
        return read_version(self._database)

    def claim(self, node_ids: Mapping[PartitionId, int]) -> None:
        """Assign partitions to nodes; partitions that have a leader or do not exist are skipped.

        All are skipped while a failover or a restore may have lost their assignments. A node may have their
        logs then, and claims them before it reports what was lost (`claim_found`).
        """
        params = {
            "topic_ids": arrays.uuids(partition.topic_id for partition in node_ids),
            "partitions": arrays.integers([partition.partition for partition in node_ids]),
            "node_ids": arrays.integers(list(node_ids.values())),
            "unassigned": UNASSIGNED,
        }

        def work(transaction: Transaction) -> None:
            try:
                check_no_lost_topics(transaction, self._incarnations)
            except CatalogUnavailableError:
                return
            transaction.send(_SQL["claim_partitions"], params)

        self._database.transact("local_leaders.claim", work)

    def claim_found(self, node_id: int, logs: Mapping[PartitionId, FoundLog]) -> dict[PartitionId, int]:
        """Assign partitions of local topics to the node that has their logs; return those that others lead.

        The result has the node id of each such leader. A partition is assigned if it has no leader, or one
        that has not recorded a log directory, and thus has acknowledged no record. A leader epoch begins then
        that is later than those of the log.
        """
        params = {
            "node_id": node_id,
            "topic_ids": arrays.uuids(partition.topic_id for partition in logs),
            "partitions": arrays.integers([partition.partition for partition in logs]),
            "leader_epochs": arrays.integers([log.leader_epoch for log in logs.values()]),
            "directory_ids": arrays.uuids(log.directory_id for log in logs.values()),
            "unassigned": UNASSIGNED,
        }

        def work(transaction: Transaction) -> list[Row]:
            transaction.send(_SQL["claim_found"], params)
            return transaction.rows(_SQL["led_elsewhere"], params)

        rows = self._database.transact("local_leaders.claim_found", work)
        return {PartitionId(row.topic_id, row.partition): row.node_id for row in rows}

    def of_topic(self, topic_id: UUID) -> dict[int, LocalLeader]:
        """Return the leaders of a topic by partition; partitions without a leader are left out."""
        return self.of_topics([topic_id])[topic_id]

    def of_topics(self, topic_ids: Sequence[UUID]) -> dict[UUID, dict[int, LocalLeader]]:
        """Return the leaders of several topics by topic id and partition, as `of_topic` does."""
        params = {"topic_ids": arrays.uuids(topic_ids)}
        leaders: dict[UUID, dict[int, LocalLeader]] = {topic_id: {} for topic_id in topic_ids}
        for row in self._database.read("local_leaders.of_topics", _SQL["leaders_of_topics"], params):
            leader = LocalLeader(
                node_id=row.node_id, leader_epoch=row.leader_epoch, directory_id=row.directory_id
            )
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

    def directories_of(self, node_id: int) -> dict[PartitionId, UUID | None]:
        """Return the log directory of each partition that the node leads."""
        rows = self._database.read(
            "local_leaders.directories_of", _SQL["directories_of_node"], {"node_id": node_id}
        )
        return {PartitionId(row.topic_id, row.partition): row.directory_id for row in rows}

    def assign(
        self, node_id: int, directories: Mapping[PartitionId, UUID], *, source: UUID = UNASSIGNED
    ) -> dict[PartitionId, UUID | None]:
        """Record the log directories of partitions of a node; return what is recorded afterwards.

        A partition changes from `source`, or from no directory, to the given one. Any other directory stays.
        A repeated call has no effect, so it may follow a lost response.
        """
        params = {
            "topic_ids": arrays.uuids(partition.topic_id for partition in directories),
            "partitions": arrays.integers([partition.partition for partition in directories]),
            "directory_ids": arrays.uuids(directories.values()),
            "node_id": node_id,
            "source": source,
        }

        def work(transaction: Transaction) -> list[Row]:
            transaction.rows(_SQL["lock_leaders"], params)
            transaction.send(_SQL["assign_directories"], params)
            return transaction.rows(_SQL["lock_leaders"], params)

        rows = self._database.transact("local_leaders.assign", work)
        return {PartitionId(row.topic_id, row.partition): row.directory_id for row in rows}

    def declare_unassigned(self, node_id: int) -> int:
        """Record that the partitions of the node without a directory have no log; return their number.

        For partitions that an earlier release claimed. The node has opened all its directories.
        """
        params = {"node_id": node_id, "unassigned": UNASSIGNED}

        def work(transaction: Transaction) -> int:
            return transaction.count(_SQL["declare_unassigned"], params)

        return self._database.transact("local_leaders.declare_unassigned", work)
