"""Look-ups of transactions: states of transactional ids, and open and aborted transactions of partitions.

Each look-up is one query, and changes nothing. `catalog.transactions.repository` makes the changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.model import AbortedTransaction, PartitionId
from catalog.transactions.rules import (
    ProducerIdentity,
    TransactionalProducer,
    TransactionState,
    require_current,
    unknown_producer,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

    from catalog.database.pool import Database
    from catalog.model import Extent

_SQL = load_queries("transactions")
_LOCAL_SQL = load_queries("local_transactions")


class Contradiction(NamedTuple):
    """Rows of a partition that contradict each other: the expected and the found state."""

    partition: PartitionId
    expected: str
    found: str


class TimedOutTransaction(NamedTuple):
    """Transaction that has lasted for longer than its timeout, and the time of its begin."""

    transactional_id: str
    producer: ProducerIdentity
    started_ms: int


class OngoingTransactions(NamedTuple):
    """How many transactions are ongoing, and the age of the oldest, 0 without any."""

    transactions: int
    oldest_ms: int


class TransactionLookups:
    """Look-ups of transactions; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def find(self, transactional_ids: Sequence[str]) -> dict[str, TransactionalProducer]:
        """Return the states of transactional ids; unknown ones are left out."""
        params = {"transactional_ids": list(transactional_ids)}
        rows = self._database.read("transactions.find", _SQL["describe"], params)
        return {row.transactional_id: producer_of(*row[1:]) for row in rows}

    def added_partitions(self, transactional_id: str, producer: ProducerIdentity) -> frozenset[PartitionId]:
        """Return the partitions of the producer's ongoing transaction, none without one."""
        known = self.find([transactional_id]).get(transactional_id)
        if known is None:
            raise unknown_producer(producer.producer_id)
        require_current(known, producer)
        params = {"producer_id": producer.producer_id}
        rows = self._database.read("transactions.added_partitions", _SQL["added_partitions"], params)
        return frozenset(PartitionId(row.topic_id, row.partition) for row in rows)

    def timed_out(self, *, limit: int = 100) -> list[TimedOutTransaction]:
        """Return ongoing transactions that have lasted for longer than their timeouts, oldest first."""
        params = {"now_ms": self._database.injected_now_ms, "limit": limit}
        return [
            TimedOutTransaction(
                row.transactional_id, ProducerIdentity(row.producer_id, row.producer_epoch), row.started_ms
            )
            for row in self._database.read("transactions.timed_out", _SQL["timed_out"], params)
        ]

    def count_ongoing(self) -> OngoingTransactions:
        """Return the number of ongoing transactions, and the age of the oldest."""
        params = {"now_ms": self._database.injected_now_ms}
        ((transactions, oldest_ms),) = self._database.read(
            "transactions.count_ongoing", _SQL["count_ongoing"], params
        )
        return OngoingTransactions(transactions, oldest_ms)

    def contradictions(self, *, limit: int = 1000) -> list[Contradiction]:
        """Return where last stable offsets and aborted transactions contradict the other rows."""
        params = {"limit": limit}
        bounds = [
            Contradiction(
                PartitionId(row.topic_id, row.partition),
                "the last stable offset at the first offset of the open transactions",
                f"last stable offset {row.last_stable_offset}, first unstable offset {row.unstable_offset}, "
                f"and open transactions from {row.first_offset} on",
            )
            for row in self._database.read("transactions.wrong_bounds", _SQL["wrong_bounds"], params)
        ]
        aborted = [
            Contradiction(
                PartitionId(row.topic_id, row.partition),
                "a control batch at the end of each aborted transaction",
                f"producer {row.producer_id} aborted from {row.first_offset} on, and no control batch at "
                f"{row.last_offset}",
            )
            for row in self._database.read("transactions.wrong_aborted", _SQL["wrong_aborted"], params)
        ]
        local = [
            Contradiction(
                PartitionId(row.topic_id, row.partition),
                "a local partition of a transaction that is ongoing, or has a pending marker",
                f"one of producer {row.producer_id}, whose transaction has ended without a marker",
            )
            for row in self._database.read("transactions.wrong_local", _LOCAL_SQL["wrong_partitions"], params)
        ]
        return bounds + aborted + local

    def page(self, after: str = "", *, limit: int = 1000) -> list[tuple[str, TransactionalProducer]]:
        """Return the first `limit` transactional ids after `after`, by name, with their states."""
        params = {"after": after, "limit": limit}
        rows = self._database.read("transactions.page", _SQL["page_of_ids"], params)
        return [(row.transactional_id, producer_of(*row[1:])) for row in rows]

    def partitions_of(self, producer_ids: Collection[int]) -> dict[int, dict[str, list[int]]]:
        """Return the partitions of ongoing transactions by producer id and topic name."""
        params = {"producer_ids": arrays.bigints(list(producer_ids))}
        found: dict[int, dict[str, list[int]]] = {each: {} for each in producer_ids}
        for row in self._database.read("transactions.partitions_of", _SQL["partitions_of"], params):
            found[row.producer_id].setdefault(row.topic_name, []).append(row.partition)
        return found

    def open_in(self, partitions: Collection[PartitionId]) -> dict[tuple[PartitionId, int], int]:
        """Return the first offsets of open transactions by partition and producer id."""
        params = {
            "topic_ids": arrays.uuids(each.topic_id for each in partitions),
            "partitions": arrays.integers([each.partition for each in partitions]),
        }
        rows = self._database.read("transactions.open_in", _SQL["open_in"], params)
        return {(PartitionId(row.topic_id, row.partition), row.producer_id): row.first_offset for row in rows}

    def aborted(
        self,
        ranges: Mapping[PartitionId, tuple[int, int]],
        extents: Collection[Extent] = (),
        epochs: Sequence[int] = (),
    ) -> dict[PartitionId, list[AbortedTransaction]]:
        """Return the aborted transactions that overlap [base, end) of each partition, by their last offset.

        Look up the last stable offset before, and let no range reach beyond it.

        A reader passes the extents that it has read, control batches among them. The result leaves out a
        partition if one of its extents is gone, because a compaction may have removed aborted transactions
        together with it. A reader also passes the leader epochs of the last stable offsets, in the order of
        `ranges`. The result leaves out a partition if the catalog does not continue that history, because
        the new history may have other ends of transactions.
        """
        params = {
            "topic_ids": arrays.uuids(each.topic_id for each in ranges),
            "partitions": arrays.integers([each.partition for each in ranges]),
            "base_offsets": arrays.bigints([base for base, _ in ranges.values()]),
            "end_offsets": arrays.bigints([end for _, end in ranges.values()]),
            "epochs": arrays.integers(epochs),
            "read_topic_ids": arrays.uuids(each.topic_id for each in extents),
            "read_partitions": arrays.integers([each.partition for each in extents]),
            "read_offsets": arrays.bigints([each.base_offset for each in extents]),
            "read_files": arrays.uuids(each.file_id for each in extents),
        }
        found: dict[PartitionId, list[AbortedTransaction]] = {each: [] for each in ranges}
        replaced: set[PartitionId] = set()
        for row in self._database.read("transactions.aborted", _SQL["aborted_in"], params):
            key = PartitionId(row.topic_id, row.partition)
            if row.producer_id is None:
                replaced.add(key)
            else:
                found[key].append(AbortedTransaction(row.producer_id, row.first_offset, row.last_offset))
        return {key: each for key, each in found.items() if key not in replaced}


def producer_of(  # the columns of a row
    producer_id: int,
    producer_epoch: int,
    last_producer_id: int,
    last_epoch: int,
    timeout_ms: int,
    state: str,
    bumps_epoch: bool,  # a column
    started_ms: int | None,
) -> TransactionalProducer:
    """Return the state of a transactional id from the columns of its row."""
    return TransactionalProducer(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        timeout_ms=timeout_ms,
        state=TransactionState(state),
        last=ProducerIdentity(last_producer_id, last_epoch),
        bumps_epoch=bumps_epoch,
        started_ms=started_ms,
    )
