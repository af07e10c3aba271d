"""Transactions during a cleaning: which batches are discarded, and when their markers may be.

The cleaner only sees offsets below the last stable offset, so the outcome of each transaction is known.
Batches of aborted transactions are discarded regardless of their keys. A marker is discarded after all
batches of its transaction were discarded by an earlier cleaning.

Source: CleanedTransactionMetadata of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

import numpy as np

from object_format.kernels.batches.layout import TRANSACTIONAL
from object_format.record_batch.control_batch import ABORT, COMMIT

if TYPE_CHECKING:
    from collections.abc import Iterable

    import numpy.typing as npt

    from local_tier.segment.transaction_index import AbortedTxn
    from object_format.record_batch.headers import BatchRows


class AbortedRanges:
    """The offset ranges of aborted transactions, for lookups in any order."""

    def __init__(self, aborted: Iterable[AbortedTxn]) -> None:
        self._by_producer: dict[int, list[tuple[int, int]]] = {}
        for one in aborted:
            self._by_producer.setdefault(one.producer_id, []).append((one.first_offset, one.last_offset))

    def mask(self, rows: BatchRows) -> npt.NDArray[np.bool_]:
        """Return True for each batch of an aborted transaction."""
        found = np.zeros(rows.size, np.bool_)
        if not self._by_producer:
            return found
        transactional = (rows["attributes"] & TRANSACTIONAL) != 0
        for producer, ranges in self._by_producer.items():
            of_producer = transactional & (rows["producer_id"] == producer)
            if of_producer.any():
                for first, last in ranges:
                    found |= of_producer & (rows["base_offset"] >= first) & (rows["base_offset"] <= last)
        return found


class CleanedTransactions:
    """The transactions of a log while its batches are passed in offset order."""

    def __init__(self) -> None:
        self._upcoming: list[tuple[int, AbortedTxn]] = []
        self._aborted: dict[int, AbortedTxn] = {}
        self._aborted_with_data: set[int] = set()
        self._committed_with_data: set[int] = set()

    def add(self, aborted: Iterable[AbortedTxn]) -> None:
        """Add the aborted transactions of the next segment. Some may have been added before."""
        for one in aborted:
            heapq.heappush(self._upcoming, (one.first_offset, one))

    def on_batch(self, producer_id: int, last_offset: int) -> bool:
        """Pass a transactional data batch. Return True if it belongs to an aborted transaction."""
        self._begin_aborted_until(last_offset)
        if producer_id in self._aborted:
            self._aborted_with_data.add(producer_id)
            return True
        self._committed_with_data.add(producer_id)
        return False

    def on_marker(
        self, producer_id: int, last_offset: int, kind: int | None
    ) -> tuple[bool, AbortedTxn | None]:
        """Pass a control batch.

        Returns True if the batch may be discarded, and the aborted transaction that it still ends. `kind` is
        ABORT, COMMIT or another type, or None for a batch that an earlier cleaning emptied.
        """
        self._begin_aborted_until(last_offset)
        if kind is None:
            return True, None
        if kind == ABORT:
            aborted = self._aborted.pop(producer_id, None)
            if aborted is not None and producer_id in self._aborted_with_data:
                self._aborted_with_data.discard(producer_id)
                return False, aborted
            return True, None
        if kind == COMMIT:
            seen = producer_id in self._committed_with_data
            self._committed_with_data.discard(producer_id)
            return not seen, None
        return False, None

    def _begin_aborted_until(self, offset: int) -> None:
        while self._upcoming and self._upcoming[0][0] <= offset:
            _, one = heapq.heappop(self._upcoming)
            self._aborted.setdefault(one.producer_id, one)
