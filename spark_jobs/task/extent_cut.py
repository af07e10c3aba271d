"""Assignment of the batches of a block to extents, by a walk over batch headers."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

from core.errors import CorruptDataError
from object_format.buffers import readable
from object_format.errors import Fault, MalformedBatchError
from object_format.kernels.batches.headers import check_header
from object_format.kernels.batches.layout import BASE_OFFSET, LAST_OFFSET_DELTA, RECORD_COUNT
from object_format.kernels.runtime.primitives import load_i32, load_i64

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from catalog.model import Extent

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
def _cut(
    data: npt.NDArray[np.uint8],
    bounds: npt.NDArray[np.int64],
    pieces: npt.NDArray[np.int64],
    previous: int,
) -> tuple[int, int, int, int]:
    """Fill `pieces` with (start, end, extent index, batches, records) for batches after `previous`.

    `bounds` has the first and last stored offset of each extent, ascending and disjoint. Return the number of
    pieces, a fault, its position, and the last stored offset.
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
            if count == 0 or pieces[count - 1, 2] != index:  # batches of one extent are adjacent
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
    last_offset] contains its stored base offset plus the extent's shift.
    """

    def __init__(self, extents: Sequence[Extent]) -> None:
        self._bounds = np.array(
            [
                (extent.base_offset - extent.offset_shift, extent.last_offset - extent.offset_shift)
                for extent in extents
            ],
            np.int64,
        ).reshape(-1, 2)
        if len(extents) > 1 and np.any(self._bounds[1:, 0] <= self._bounds[:-1, 1]):
            raise CorruptDataError(
                f"two extents of {extents[0].object_name} claim the same batches of partition"
                f" {extents[0].topic_id}/{extents[0].partition}"
            )
        self._pieces = np.empty((len(extents), 5), np.int64)
        self._last_offset = -1

    def pieces(self, block: memoryview) -> list[Piece]:
        """Return the batches of the section's next block by extent.

        Raise CorruptDataError if the block does not hold whole v2 batches in ascending order, or if a batch
        crosses the end of an extent.
        """
        count, fault, position, self._last_offset = _cut(
            readable(block), self._bounds, self._pieces, self._last_offset
        )
        if fault == _STRADDLES:
            raise CorruptDataError(f"the record batch at byte {position} lies across the end of an extent")
        if fault != _NONE:
            raise MalformedBatchError.at(fault, position)
        return [
            Piece(block[start:end], index, batches, records)
            for start, end, index, batches, records in self._pieces[:count].tolist()
        ]
