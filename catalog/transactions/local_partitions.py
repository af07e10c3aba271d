"""Partitions of local topics in transactions: their records are in logs on agents' disks.

The decision about a transaction stays one transaction of the database. In a local partition, the leader
writes the control batch (the marker) into its log afterwards:

1. Before the leader appends the first batch of a transaction, it verifies it here: the producer is the
   current one, and its transaction has the partition from now on (KIP-890). The row records the
   first batch, by which the leader recognizes the transaction in its log.
2. The end of the transaction turns each row into a pending marker, in the transaction that decides.
3. The leader appends the marker, makes it durable, and completes it here: the row goes.

A producer cannot use a partition in its next transaction before the marker of the last one is complete. So
there is at most one row per producer and partition, and a log has at most one open transaction per producer.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import TYPE_CHECKING, Final, NamedTuple

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.errors import TopicNotFoundError, TransactionRefusal, TransactionRefusedError
from catalog.model import PartitionId
from catalog.transactions.rules import TransactionState, require_current

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Cursor

    from catalog.database.connection import TupleRow
    from catalog.database.pool import Database, Transaction
    from catalog.transactions.repository import Transactions
    from catalog.transactions.rules import ProducerIdentity

_SQL = load_queries("local_transactions")
PAGE_MARKERS: Final = 1000
"""Pending markers of a page."""

MARKER_CHANNEL: Final = "siltstone_markers"
"""The channel on which leaders learn of pending markers."""


class Verification(Enum):
    """Result of a verification: the batch may be appended, or the producer's last marker must be first."""

    VERIFIED = auto()
    MARKER_PENDING = auto()


class FirstBatch(NamedTuple):
    """First batch of a transaction in a local partition, and whether it adds the partition (KIP-890)."""

    partition: PartitionId
    sequence: int
    adds_partition: bool


class PendingMarker(NamedTuple):
    """End of a transaction in a local partition that its leader must append.

    `producer_epoch` and `first_sequence` are those of the transaction's first batch, `marker_epoch` is the
    producer epoch of the control batch.
    """

    number: int
    partition: PartitionId
    producer_id: int
    producer_epoch: int
    first_sequence: int
    commits: bool
    marker_epoch: int
    coordinator_epoch: int
    ended_ms: int


class LocalPartitions:
    """Local partitions of transactions; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database, transactions: Transactions) -> None:
        self._database = database
        self._transactions = transactions

    def verify(self, transactional_id: str, producer: ProducerIdentity, batch: FirstBatch) -> Verification:
        """Verify that the producer's ongoing transaction has the partition, before its first batch is there.

        Raises TransactionRefusedError if the producer is not the current one, or if the partition was not
        added and the batch does not add it, and TopicNotFoundError if the partition was deleted. A repeated
        call has no further effect.
        """

        def work(transaction: Transaction) -> tuple[Verification, Cursor[TupleRow] | None]:
            locked = self._transactions.require(transaction, transactional_id, producer.producer_id)
            require_current(locked.producer, producer)
            params = {
                "producer_id": producer.producer_id,
                "topic_id": batch.partition.topic_id,
                "partition": batch.partition.partition,
                "topic_ids": arrays.uuids([batch.partition.topic_id]),
                "partitions": arrays.integers([batch.partition.partition]),
                "producer_epoch": producer.producer_epoch,
                "first_sequence": batch.sequence,
            }
            rows = transaction.rows(_SQL["find_partition"], params)
            if rows and rows[0].is_pending:
                return Verification.MARKER_PENDING, None
            is_added = bool(rows) and locked.producer.state is TransactionState.ONGOING
            if not is_added and not batch.adds_partition:
                raise TransactionRefusedError(
                    TransactionRefusal.INVALID_TXN_STATE,
                    f"producer {producer.producer_id} has not added the partition to an ongoing transaction",
                )
            if not is_added:
                self._transactions.begin_locked(transaction, transactional_id, locked, producer)
                transaction.send(_SQL["add_partitions"], params)
            if not is_added or (rows[0].producer_epoch, rows[0].first_sequence) != (
                producer.producer_epoch,
                batch.sequence,
            ):
                return Verification.VERIFIED, transaction.send(_SQL["set_first_batch"], params)
            return Verification.VERIFIED, None

        verification, sent = self._database.transact("local_transactions.verify", work)
        if sent is not None and not sent.rowcount:
            raise TopicNotFoundError(
                f"there is no partition {batch.partition.partition} of topic {batch.partition.topic_id}"
            )
        return verification

    def pending(self, node_id: int, *, after: int = 0, limit: int = PAGE_MARKERS) -> list[PendingMarker]:
        """Return the first `limit` markers after number `after` that a node must write, oldest first."""
        params = {"node_id": node_id, "after": after, "limit": limit}
        return [
            PendingMarker(
                number=row.number,
                partition=PartitionId(row.topic_id, row.partition),
                producer_id=row.producer_id,
                producer_epoch=row.producer_epoch,
                first_sequence=row.first_sequence,
                commits=row.commits,
                marker_epoch=row.marker_epoch,
                coordinator_epoch=row.coordinator_epoch,
                ended_ms=row.ended_ms,
            )
            for row in self._database.read("local_transactions.pending", _SQL["pending_markers"], params)
        ]

    def complete(self, markers: Sequence[PendingMarker]) -> None:
        """Delete markers that are durable in their logs. A repeated call has no effect."""
        params = {
            "numbers": arrays.bigints([each.number for each in markers]),
            "producer_ids": arrays.bigints([each.producer_id for each in markers]),
            "topic_ids": arrays.uuids(each.partition.topic_id for each in markers),
            "partitions": arrays.integers([each.partition.partition for each in markers]),
        }
        self._database.transact(
            "local_transactions.complete",
            lambda transaction: transaction.send(_SQL["complete_markers"], params),
        )

    def announce(self) -> None:
        """Let all leaders of local partitions look for pending markers."""
        self._database.read("local_transactions.announce", _SQL["announce"], {"channel": MARKER_CHANNEL})
