"""Assignment of the batches of a block to extents, by a walk over batch headers; aborted ones are dropped."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

from core.errors import CorruptDataError
from object_format.buffers import readable
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.batches.headers import check_header
from object_format.kernels.batches.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_OVERHEAD,
    LAST_OFFSET_DELTA,
    PRODUCER_ID,
    RECORD_COUNT,
    TRANSACTIONAL,
)
from object_format.kernels.runtime.primitives import load_i32, load_i64

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from catalog.model import AbortedTransaction, Extent

_NONE = int(Fault.NONE)
_OFFSET_RANGE = int(Fault.OFFSET_RANGE)
_STRADDLES = -1  # not a Fault: the batch is sound, but lies across the end of an extent


class Piece(NamedTuple):
    """Adjacent batches of one extent; `extent_index` is its index among the given extents."""

    batches: memoryview
    extent_index: int
    batch_count: int
    record_count: int


@njit(nogil=True, cache=True)
def _is_aborted(aborted: npt.NDArray[np.int64], producer_id: int, offset: int) -> bool:
    """Return True if an aborted transaction of the producer covers the offset.

    `aborted` has rows of (producer id, first offset, last offset) in order. Those of one producer do not
    overlap, because it has one transaction at a time.
    """
    low, high = 0, len(aborted)
    while low < high:  # find the first row after (producer id, offset)
        middle = (low + high) // 2
        before = aborted[middle, 0] < producer_id
        if before or (aborted[middle, 0] == producer_id and aborted[middle, 1] <= offset):
            low = middle + 1
        else:
            high = middle
    return low > 0 and aborted[low - 1, 0] == producer_id and offset <= aborted[low - 1, 2]


@njit(nogil=True, cache=True)
def _cut(
    data: npt.NDArray[np.uint8],
    bounds: npt.NDArray[np.int64],
    aborted: npt.NDArray[np.int64],
    pieces: npt.NDArray[np.int64],
    dropped: npt.NDArray[np.int64],
    previous: int,
) -> tuple[int, int, int, int]:
    """Fill `pieces` with (start, end, extent index, batches, records) for batches after `previous`.

    `bounds` has the first and last stored offset and the shift of each extent, ascending and disjoint. Add
    the records of aborted batches to `dropped` by extent. Return the number of pieces, a fault, its position,
    and the last stored offset.
    """
    count = 0
    start = 0
    index = 0
    while start < len(data):
        fault, size = check_header(data, start)
        if fault != _NONE:
            return count, fault, start, previous
        first = load_i64(data, start + BASE_OFFSET)
        last = first + load_i32(data, start + LAST_OFFSET_DELTA)
        if first <= previous or last < first:
            return count, _OFFSET_RANGE, start, previous
        previous = last
        while index < len(bounds) and bounds[index, 1] < first:
            index += 1
        if index < len(bounds) and bounds[index, 0] <= last:
            if first < bounds[index, 0] or last > bounds[index, 1]:
                return count, _STRADDLES, start, previous
            if (
                len(aborted) > 0
                and data[start + ATTRIBUTES + 1] & TRANSACTIONAL != 0
                and _is_aborted(aborted, load_i64(data, start + PRODUCER_ID), first + bounds[index, 2])
            ):
                dropped[index] += load_i32(data, start + RECORD_COUNT)
                start += size
                continue
            # Adjacent batches of one extent are one piece.
            if count == 0 or pieces[count - 1, 2] != index or pieces[count - 1, 1] != start:
                pieces[count] = (start, start, index, 0, 0)
                count += 1
            pieces[count - 1, 1] = start + size
            pieces[count - 1, 3] += 1
            pieces[count - 1, 4] += load_i32(data, start + RECORD_COUNT)
        start += size
    return count, _NONE, start, previous


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
        ).reshape(-1, 3)
        if len(extents) > 1 and np.any(self._bounds[1:, 0] <= self._bounds[:-1, 1]):
            raise CorruptDataError(
                f"two extents of {extents[0].object_name} claim the same batches of partition"
                f" {extents[0].topic_id}/{extents[0].partition}"
            )
        self._aborted = np.array(sorted(aborted), np.int64).reshape(-1, 3)
        self._pieces = np.empty((len(extents), 5), np.int64)
        self._last_offset = -1
        self.dropped = np.zeros(len(extents), np.int64)

    def pieces(self, block: memoryview) -> list[Piece]:
        """Return the batches of the section's next block by extent.

        Raise CorruptDataError if the block does not hold whole v2 batches in ascending order, or if a batch
        crosses the end of an extent.
        """
        # An aborted batch divides the batches of an extent, and each piece has a batch.
        most = len(block) // BATCH_OVERHEAD if len(self._aborted) else 0
        if len(self._pieces) < most:
            self._pieces = np.empty((most, 5), np.int64)
        count, fault, position, self._last_offset = _cut(
            readable(block), self._bounds, self._aborted, self._pieces, self.dropped, self._last_offset
        )
        if fault == _STRADDLES:
            raise CorruptDataError(f"the record batch at byte {position} lies across the end of an extent")
        if fault != _NONE:
            raise MalformedBatchError.at(fault, position)
        return [
            Piece(block[start:end], index, batches, records)
            for start, end, index, batches, records in self._pieces[:count].tolist()
        ]
