"""Transactional runs of a file: the checks of their transactions, and what the commit adds to these.

A transactional batch belongs to its producer's ongoing transaction. The commit has locked the transactional
id, so the transaction cannot end before the batch is in the log. A producer with another epoch than the
current one is a zombie, and can write nothing. Producer ids are no secret, so the transactional id of the
producer must be the one that the request of the batch names.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from catalog.database import arrays
from catalog.model import RunRefusal, RunResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from catalog.commit.columns import SectionColumns
    from catalog.database.connection import TupleRow
    from catalog.model import ProducerStamp, SectionCommit


class _Transaction(NamedTuple):
    """State of a producer's transaction in the catalog."""

    transactional_id: str
    producer_epoch: int
    is_ongoing: bool


class TransactionalRuns:
    """Transactional producers of a file: one entry per section and producer."""

    def __init__(self, sections: Sequence[SectionCommit], columns: SectionColumns) -> None:
        self._columns = columns
        self._entries = [
            (index, producer_id)
            for index, section in enumerate(sections)
            for producer_id in {
                run.producer.producer_id
                for run in section.runs
                if run.producer is not None and run.producer.is_transactional
            }
        ]
        self._transactions: dict[int, _Transaction] = {}
        self._added: dict[tuple[int, int], int | None] = {}
        self._begun: set[int] = set()
        self._first_offsets: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def producer_params(self) -> dict[str, object]:
        """Return the parameters of `lock_transactions`."""
        return {"producer_ids": arrays.bigints(sorted({producer_id for _, producer_id in self._entries}))}

    def partition_params(self) -> dict[str, object]:
        """Return the parameters of `read_transaction_partitions`."""
        indexes, producer_ids = np.array(self._entries, dtype=np.int64).T
        return {**self._columns.keys_at(indexes), "producer_ids": arrays.bigints(producer_ids)}

    def take(self, transactions: Iterable[TupleRow], partitions: Iterable[TupleRow]) -> None:
        """Take the rows of both queries."""
        self._transactions = {
            producer_id: _Transaction(transactional_id, epoch, is_ongoing)
            for producer_id, transactional_id, epoch, is_ongoing in transactions
        }
        self._added = {self._entries[number - 1]: first_offset for number, first_offset in partitions}

    def refuse(self, index: int, stamp: ProducerStamp) -> RunResult | None:
        """Return why a transactional run of the section at `index` may not be appended, or None."""
        known = self._transactions.get(stamp.producer_id)
        if known is None or known.transactional_id != stamp.transactional_id:
            return RunResult(
                refusal=RunRefusal.INVALID_PRODUCER_ID_MAPPING,
                detail=f"producer {stamp.producer_id} does not belong to the transactional id of the request",
            )
        if known.producer_epoch != stamp.producer_epoch:
            return RunResult(
                refusal=RunRefusal.INVALID_PRODUCER_EPOCH,
                detail=f"producer {stamp.producer_id} has epoch {stamp.producer_epoch}, "
                f"and its transactional id has epoch {known.producer_epoch}",
            )
        if stamp.adds_partition or (known.is_ongoing and (index, stamp.producer_id) in self._added):
            return None
        return RunResult(
            refusal=RunRefusal.INVALID_TXN_STATE,
            detail=f"the partition was not added to an ongoing transaction of producer {stamp.producer_id}",
        )

    def appended(self, index: int, stamp: ProducerStamp, base_offset: int) -> None:
        """Record that a transactional run of the section at `index` was appended at `base_offset`."""
        key = index, stamp.producer_id
        if self._added.get(key) is None:
            self._first_offsets.setdefault(key, base_offset)
        if not self._transactions[stamp.producer_id].is_ongoing:
            self._begun.add(stamp.producer_id)

    def begun_params(self) -> dict[str, object] | None:
        """Return the parameters of `begin_transactions`, or None if no transaction begins."""
        return {"producer_ids": arrays.bigints(sorted(self._begun))} if self._begun else None

    def opened_params(self) -> dict[str, object] | None:
        """Return the parameters of `open_partitions`, or None if no partition gets its first batch."""
        if not self._first_offsets:
            return None
        indexes, producer_ids = np.array(list(self._first_offsets), dtype=np.int64).T
        return {
            **self._columns.keys_at(indexes),
            "producer_ids": arrays.bigints(producer_ids),
            "first_offsets": arrays.bigints(list(self._first_offsets.values())),
        }
