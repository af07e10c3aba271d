"""Assignment of the batches of a block to extents, by a walk over batch headers; aborted ones are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from core.errors import CorruptDataError
from object_format.buffers import readable
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.batches.layout import BATCH_OVERHEAD
from spark_jobs.task.small_sections.cut import STRADDLES, cut_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import AbortedTransaction, Extent

_NONE = int(Fault.NONE)


class Piece(NamedTuple):
    """Adjacent batches of one extent; `extent_index` is its index among the given extents."""

    batches: memoryview
    extent_index: int
    batch_count: int
    record_count: int


class ExtentCutter:
    """Sorts the batches of one section's blocks by extent; batches that no extent covers are left out.

    `extents` belong to one section and are in offset order. A batch belongs to the extent whose [base_offset,
    last_offset] contains its stored base offset plus the extent's shift. Batches of `aborted` transactions
    are left out, too; `dropped` counts their records by extent.
    """

    def __init__(self, extents: Sequence[Extent], aborted: Sequence[AbortedTransaction] = ()) -> None:
        self._bounds = np.array(
            [
                (
                    extent.base_offset - extent.offset_shift,
                    extent.last_offset - extent.offset_shift,
                    extent.offset_shift,
                )
                for extent in extents
            ],
            np.int64,
        ).reshape(len(extents), 3)
        if not are_disjoint(extents):
            raise CorruptDataError(
                f"two extents of {extents[0].object_name} claim the same batches of partition"
                f" {extents[0].topic_id}/{extents[0].partition}"
            )
        self._aborted = np.array(sorted(aborted), np.int64).reshape(len(aborted), 3)
        self._last_offset = -1
        self.dropped = np.zeros(len(extents), np.int64)

    def pieces(self, block: memoryview) -> list[Piece]:
        """Return the batches of the section's next block by extent.

        Raise CorruptDataError if the block does not hold whole v2 batches in ascending order, or if a batch
        crosses the end of an extent.
        """
        # An aborted batch divides the batches of an extent, and each piece has a batch.
        most = len(block) // BATCH_OVERHEAD if len(self._aborted) else len(self._bounds)
        found = np.empty((most, 5), np.int64)
        count, fault, position, self._last_offset = cut_batches(
            readable(block), self._bounds, self._aborted, found, self.dropped, self._last_offset
        )
        if fault == STRADDLES:
            raise CorruptDataError(f"the record batch at byte {position} lies across the end of an extent")
        if fault != _NONE:
            raise MalformedBatchError.at(fault, position)
        return [
            Piece(block[start:end], index, batches, records)
            for start, end, index, batches, records in found[:count].tolist()
        ]


def are_disjoint(extents: Sequence[Extent]) -> bool:
    """Return True if no two extents of a section claim the same batches; `extents` are in offset order."""
    last = -1
    for extent in extents:
        if extent.length:
            if extent.base_offset - extent.offset_shift <= last:
                return False
            last = extent.last_offset - extent.offset_shift
    return True
