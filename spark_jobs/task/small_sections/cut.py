"""Kernel that assigns the batches of a block to extents, for single sections and for groups.

It is in the folder of its callers, because the validity of compiled code depends on that folder.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import njit

from object_format.errors import Fault
from object_format.kernels.batches.headers import check_header
from object_format.kernels.batches.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    LAST_OFFSET_DELTA,
    PRODUCER_ID,
    RECORD_COUNT,
    TRANSACTIONAL,
)
from object_format.kernels.runtime.primitives import load_i32, load_i64

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

_NONE = int(Fault.NONE)
_OFFSET_RANGE = int(Fault.OFFSET_RANGE)
STRADDLES = -1
"""Not a `Fault`: the batch is sound, but crosses the end of an extent."""


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
def cut_batches(
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
                return count, STRADDLES, start, previous
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
