"""Comparison of the batches that producers wrote with the catalog's producers and transactions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from catalog.model import FileKind, PartitionId
from catalog.transactions.logged_batches import LoggedBatch
from maintenance.fsck.report import RESTORE_CATALOG, Difference, DifferenceKind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from uuid import UUID

    from catalog.model import Extent
    from catalog.transactions.logged_batches import WrongBatch
    from maintenance.fsck.report import Findings
    from object_format.record_batch.headers import BatchHeader

BATCHES_AT_ONCE: Final = 1000


class ProducerCheck:
    """Collects batches of live extents, and compares a bounded number of them at a time."""

    def __init__(
        self,
        contradictions: Callable[[Sequence[LoggedBatch]], Sequence[WrongBatch]],
        findings: Findings,
        topic_names: Mapping[UUID, str],
    ) -> None:
        self._contradictions = contradictions
        self._findings = findings
        self._topic_names = topic_names
        self._batches: list[LoggedBatch] = []

    def add(self, extent: Extent, header: BatchHeader) -> None:
        """Add a batch of an extent, if a producer with an id wrote it."""
        if header.producer_id < 0:
            return
        self._batches.append(
            LoggedBatch(
                partition=PartitionId(extent.topic_id, extent.partition),
                base_offset=header.base_offset + extent.offset_shift,
                offset_count=header.last_offset_delta + 1,
                producer_id=header.producer_id,
                producer_epoch=header.producer_epoch,
                base_sequence=header.base_sequence,
                is_transactional=header.is_transactional,
                is_compacted=extent.file_kind is FileKind.COMPACTED,
            )
        )
        if len(self._batches) >= BATCHES_AT_ONCE:
            self.compare()

    def compare(self) -> None:
        """Compare the batches that were added, and report what contradicts the catalog."""
        batches, self._batches = self._batches, []
        if not batches:
            return
        self._findings.count("producer_batches", len(batches))
        for batch, expected, found in self._contradictions(batches):
            self._findings.add(
                Difference(
                    kind=DifferenceKind.PRODUCERS,
                    topic=self._topic_names.get(batch.partition.topic_id, str(batch.partition.topic_id)),
                    partition=batch.partition.partition,
                    expected=f"at offset {batch.base_offset}, of producer {batch.producer_id}: {expected}",
                    found=found,
                    remedy=RESTORE_CATALOG,
                )
            )
