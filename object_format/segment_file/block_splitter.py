"""Splits the batches of a section into DATA blocks, by walking over batch headers in a kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from core.errors import InvalidInputError
from object_format.kernels.batches.layout import (
    BASE_OFFSET,
    BATCH_LENGTH,
    BATCH_OVERHEAD,
    LAST_OFFSET_DELTA,
    LENGTH_OVERHEAD,
    MAGIC,
    MAX_TIMESTAMP,
    RECORD_COUNT,
)
from object_format.kernels.runtime.primitives import load_i32, load_i64
from object_format.segment_file.layout import MAX_INT64, MAX_PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

# State of the walk over one section, one int64 each.
PENDING_BYTES, PENDING_BASE, PENDING_TIMESTAMP, LAST_OFFSET, BATCHES, RECORDS, FIRST_OFFSET = range(7)
_STATE_SIZE = 7
# A complete block: its end in the buffer, its first offset, its max timestamp.
BOUNDARY_END, BOUNDARY_BASE, BOUNDARY_TIMESTAMP = range(3)
_BOUNDARY_SIZE = 3

_FAULTS = (
    "",
    "ends within a record batch",
    "is not a v2 record batch (magic)",
    f"is not a record batch of {BATCH_OVERHEAD} to {MAX_PAYLOAD} bytes",
    "has a negative offset, last offset delta or record count",
    "has an offset that does not follow the batch before it",
)
_TRUNCATED, _MAGIC, _SIZE, _NEGATIVE, _ORDER = range(1, 6)


@njit(nogil=True, cache=True)
def _fault(data: npt.NDArray[np.uint8], start: int, last_offset: int) -> int:
    """Return what is wrong with the batch at `start`, or 0; `last_offset` is that of the previous batch."""
    left = len(data) - start
    if left < BATCH_OVERHEAD:
        return _TRUNCATED
    if data[start + MAGIC] != 2:
        return _MAGIC
    size = LENGTH_OVERHEAD + load_i32(data, start + BATCH_LENGTH)
    if size < BATCH_OVERHEAD or size > MAX_PAYLOAD:
        return _SIZE
    if size > left:
        return _TRUNCATED
    base = load_i64(data, start + BASE_OFFSET)
    delta = load_i32(data, start + LAST_OFFSET_DELTA)
    if base < 0 or delta < 0 or base > MAX_INT64 - delta or load_i32(data, start + RECORD_COUNT) < 0:
        return _NEGATIVE
    return _ORDER if base <= last_offset else 0


@njit(nogil=True, cache=True)
def _walk(
    data: npt.NDArray[np.uint8], target: int, state: npt.NDArray[np.int64], boundaries: npt.NDArray[np.int64]
) -> tuple[int, int, int]:
    """Walk over `data`; return the number of boundaries, the fault (or 0), and the final position."""
    count = 0
    start = 0
    while start < len(data):
        fault = _fault(data, start, state[LAST_OFFSET])
        if fault:
            return count, fault, start
        size = LENGTH_OVERHEAD + load_i32(data, start + BATCH_LENGTH)
        base = load_i64(data, start + BASE_OFFSET)
        newest = load_i64(data, start + MAX_TIMESTAMP)
        if state[PENDING_BYTES] > 0 and state[PENDING_BYTES] + size > target:
            boundaries[count, BOUNDARY_END] = start
            boundaries[count, BOUNDARY_BASE] = state[PENDING_BASE]
            boundaries[count, BOUNDARY_TIMESTAMP] = state[PENDING_TIMESTAMP]
            count += 1
            state[PENDING_BYTES] = 0
        if state[PENDING_BYTES] == 0:
            state[PENDING_BASE] = base
            state[PENDING_TIMESTAMP] = newest
        if state[BATCHES] == 0:
            state[FIRST_OFFSET] = base
        state[PENDING_BYTES] += size
        state[PENDING_TIMESTAMP] = max(state[PENDING_TIMESTAMP], newest)
        state[LAST_OFFSET] = base + load_i32(data, start + LAST_OFFSET_DELTA)
        state[BATCHES] += 1
        state[RECORDS] += load_i32(data, start + RECORD_COUNT)
        start += size
    return count, 0, start


class BlockSplitter:
    """The walk over one section's batches, with the totals of the section and of the pending block."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._state = [0] * _STATE_SIZE
        self._state[LAST_OFFSET] = -1

    def get(self, field: int) -> int:
        """Return an element of the state, by one of the constants above."""
        return self._state[field]

    def check_order(self, base_offset: int, last_offset: int) -> None:
        """Raise InvalidInputError unless batches with these offsets may follow the previous ones."""
        if not self._state[LAST_OFFSET] < base_offset <= last_offset <= MAX_INT64:
            raise InvalidInputError(
                f"batches of offsets {base_offset} to {last_offset} do not follow {self._state[LAST_OFFSET]}",
                remedy="append the batches of one partition in offset order",
            )

    def count(self, base_offsets: Sequence[int], last_offset: int, record_count: int) -> None:
        """Add batches that were written as separate blocks, while no block is pending."""
        state = self._state
        if not state[BATCHES]:
            state[FIRST_OFFSET] = base_offsets[0]
        state[LAST_OFFSET] = last_offset
        state[BATCHES] += len(base_offsets)
        state[RECORDS] += record_count

    def split(self, data: memoryview) -> list[list[int]]:
        """Return the blocks that end in `data`, each as its BOUNDARY values.

        The remaining batches are pending. A block that ends at 0 contains only batches that were pending
        before. Raises InvalidInputError, and leaves the state unchanged, unless `data` is complete v2 batches
        with ascending offsets.
        """
        array = np.frombuffer(data, np.uint8)
        array.flags.writeable = False  # compile one kernel for read-only and writable buffers
        state = np.array(self._state, np.int64)
        # Two adjacent blocks together exceed the target; otherwise they would be one block.
        boundaries = np.empty((2 * (len(array) + self._target) // self._target + 2, _BOUNDARY_SIZE), np.int64)
        count, fault, position = _walk(array, self._target, state, boundaries)
        if fault:
            raise InvalidInputError(
                f"byte {position} of the {len(array)} bytes to append {_FAULTS[fault]}",
                remedy="append complete record batches of one partition in offset order",
            )
        self._state = state.tolist()
        found: list[list[int]] = boundaries[:count].tolist()
        return found

    def block_written(self) -> None:
        """Note that the pending block has been written."""
        self._state[PENDING_BYTES] = 0
