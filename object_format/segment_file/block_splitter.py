"""Where DATA blocks end: a walk over the headers of record batches, without a step in Python per batch.

A v2 batch (Kafka's DefaultRecordBatch) starts with 61 fixed bytes, big-endian: baseOffset i64 at 0,
batchLength i32 at 8 (what follows it), magic i8 at 16, lastOffsetDelta i32 at 23, maxTimestamp i64 at 35,
recordCount i32 at 57.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from core.errors import InvalidInputError
from object_format.segment_file.layout import MAX_INT64, MAX_PAYLOAD

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

BATCH_HEADER = 61
_BEFORE_LENGTH = 12

# The walk's state, one int64 each, carried from buffer to buffer of one section.
PENDING_BYTES, PENDING_BASE, PENDING_TIMESTAMP, LAST_OFFSET, BATCHES, RECORDS, FIRST_OFFSET = range(7)
_STATE_SIZE = 7
# What is known of a block that is full: where it ends in the buffer, its first offset, max timestamp.
BOUNDARY_END, BOUNDARY_BASE, BOUNDARY_TIMESTAMP = range(3)
_BOUNDARY_SIZE = 3

_FAULTS = (
    "",
    "ends within a record batch",
    "is not a v2 record batch (magic)",
    f"is not a record batch of {BATCH_HEADER} to {MAX_PAYLOAD} bytes",
    "has a negative offset, last offset delta or record count",
    "has an offset that does not follow the batch before it",
)
_TRUNCATED, _MAGIC, _SIZE, _NEGATIVE, _ORDER = range(1, 6)


@njit(nogil=True, cache=True)
def _integer(data: npt.NDArray[np.uint8], start: int, length: int) -> int:
    """Signed, big-endian."""
    value = np.int64(data[start])
    if value >= 128:
        value -= 256
    for i in range(start + 1, start + length):
        value = value << 8 | np.int64(data[i])
    return int(value)


@njit(nogil=True, cache=True)
def _fault(data: npt.NDArray[np.uint8], start: int, last_offset: int) -> int:
    """What is wrong with the batch at `start` when `last_offset` is the one before it; 0 for nothing."""
    left = len(data) - start
    if left < BATCH_HEADER:
        return _TRUNCATED
    if data[start + 16] != 2:
        return _MAGIC
    size = _BEFORE_LENGTH + _integer(data, start + 8, 4)
    if size < BATCH_HEADER or size > MAX_PAYLOAD:
        return _SIZE
    if size > left:
        return _TRUNCATED
    base = _integer(data, start, 8)
    delta = _integer(data, start + 23, 4)
    if base < 0 or delta < 0 or base > MAX_INT64 - delta or _integer(data, start + 57, 4) < 0:
        return _NEGATIVE
    return _ORDER if base <= last_offset else 0


@njit(nogil=True, cache=True)
def _walk(
    data: npt.NDArray[np.uint8], target: int, state: npt.NDArray[np.int64], boundaries: npt.NDArray[np.int64]
) -> tuple[int, int, int]:
    """Walk `data`; returns the number of boundaries, the fault (0 for none) and where the walk stopped."""
    count = 0
    start = 0
    while start < len(data):
        fault = _fault(data, start, state[LAST_OFFSET])
        if fault:
            return count, fault, start
        size = _BEFORE_LENGTH + _integer(data, start + 8, 4)
        base = _integer(data, start, 8)
        newest = _integer(data, start + 35, 8)
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
        state[LAST_OFFSET] = base + _integer(data, start + 23, 4)
        state[BATCHES] += 1
        state[RECORDS] += _integer(data, start + 57, 4)
        start += size
    return count, 0, start


class BlockSplitter:
    """The walk over one section's batches; knows what the pending block and the section hold so far."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._state = [0] * _STATE_SIZE
        self._state[LAST_OFFSET] = -1

    def get(self, field: int) -> int:
        """One number of the state, by the names above."""
        return self._state[field]

    def check_order(self, base_offset: int, last_offset: int) -> None:
        """Raises InvalidInputError unless batches of these offsets may come behind those before."""
        if not self._state[LAST_OFFSET] < base_offset <= last_offset <= MAX_INT64:
            raise InvalidInputError(
                f"batches of offsets {base_offset} to {last_offset} do not follow {self._state[LAST_OFFSET]}",
                remedy="add the batches of one partition in the order of their offsets",
            )

    def count(self, base_offsets: Sequence[int], last_offset: int, record_count: int) -> None:
        """Batches are in blocks of their own; nothing is pending."""
        state = self._state
        if not state[BATCHES]:
            state[FIRST_OFFSET] = base_offsets[0]
        state[LAST_OFFSET] = last_offset
        state[BATCHES] += len(base_offsets)
        state[RECORDS] += record_count

    def split(self, data: memoryview) -> list[list[int]]:
        """The blocks that end in `data`, each as its CUT fields; what is left over is pending.

        A block that ends at 0 holds only what was pending before. Raises InvalidInputError, and forgets
        `data`, when it is not whole v2 batches with ascending offsets.
        """
        array = np.frombuffer(data, np.uint8)
        array.flags.writeable = False  # one compiled kernel for readable and writable buffers
        state = np.array(self._state, np.int64)
        # Two neighbouring blocks hold more than a target together, or else they would be one.
        boundaries = np.empty((2 * (len(array) + self._target) // self._target + 2, _BOUNDARY_SIZE), np.int64)
        count, fault, position = _walk(array, self._target, state, boundaries)
        if fault:
            raise InvalidInputError(
                f"byte {position} of the {len(array)} bytes to append {_FAULTS[fault]}",
                remedy="hand over whole record batches of one partition in the order of their offsets",
            )
        self._state = state.tolist()
        found: list[list[int]] = boundaries[:count].tolist()
        return found

    def block_written(self) -> None:
        """The pending block is out."""
        self._state[PENDING_BYTES] = 0
