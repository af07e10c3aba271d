"""Operations of a log on the headers of many batches during an append."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.kernels.batches.layout import (
    BASE_OFFSET,
    CODEC_MASK,
    CONTROL,
    LEADER_EPOCH,
    PRODUCER_ATTRIBUTES,
    SEQUENCES,
    TRANSACTIONAL,
)
from object_format.kernels.runtime.intrinsics import borrowed
from object_format.kernels.runtime.primitives import load_i32, store

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers, Rows

_INT64_MAX = np.iinfo(np.int64).max
_INT32_MAX = (1 << 31) - 1
_MAX_IN_RUN = 1 << 30
"""Maximum number of offsets in a sequence check; beyond it, sequence numbers may wrap around to the first
one."""


@njit(nogil=True, cache=True)
def check_producer_headers(rows: Rows) -> Integers:
    """Return whether a broker accepts batches with these headers, and whether any is compressed.

    The rules are those of Kafka's LogValidator: sequence numbers are present, the producer set the
    timestamps, there is no control batch, and offsets are consecutive. In addition, a producer may not set
    other attribute bits than `PRODUCER_ATTRIBUTES`.
    """
    rows = borrowed(rows)
    compressed = False
    for b in range(rows.size):
        row = rows[b]
        if row.producer_id >= 0 and row.base_sequence < 0:
            return False, False
        if row.attributes & ~PRODUCER_ATTRIBUTES:
            return False, False
        if row.record_count < 1 or row.record_count != row.last_offset_delta + 1:
            return False, False
        compressed |= row.attributes & CODEC_MASK != 0
    return True, compressed


@njit(nogil=True, cache=True)
def summarize_rows(rows: Rows) -> Integers:
    """Return totals of rows that `validate_rows` has filled.

    These are the number of faults and of keyless records, the size of the largest batch, the lowest and
    highest timestamp, and the number of headers whose max timestamp differs from their records.
    """
    rows = borrowed(rows)
    faults = keyless = largest = wrong_max_timestamps = np.int64(0)
    lowest = np.int64(_INT64_MAX)
    highest = np.int64(-_INT64_MAX)
    for b in range(rows.size):
        row = rows[b]
        faults += row.fault != 0
        keyless += row.keyless
        largest = max(largest, row.size)
        lowest = min(lowest, row.lowest_timestamp)
        highest = max(highest, row.highest_timestamp)
        wrong_max_timestamps += row.max_timestamp != row.highest_timestamp
    return faults, keyless, largest, lowest, highest, wrong_max_timestamps


@njit(nogil=True, cache=True)
def offset_bounds(rows: Rows) -> Integers:
    """Return the first and last offset and the largest timestamp of at least one row."""
    rows = borrowed(rows)
    last = rows[rows.size - 1]
    timestamp = last.max_timestamp
    for b in range(rows.size):
        timestamp = max(timestamp, rows[b].max_timestamp)
    return rows[0].base_offset, last.base_offset + last.last_offset_delta, timestamp


@njit(nogil=True, cache=True)
def assign_row_offsets(data: ByteArray, rows: Rows, first_offset: Integer, leader_epoch: Integer) -> None:
    """Assign consecutive offsets to the batches of `rows`, in `data` and in the rows."""
    data = borrowed(data)
    rows = borrowed(rows)
    for b in range(rows.size):
        at = rows[b].position
        store(data, at + BASE_OFFSET, first_offset, 8)
        store(data, at + LEADER_EPOCH, leader_epoch, 4)
        rows[b].base_offset = first_offset
        first_offset += rows[b].last_offset_delta + 1


@njit(nogil=True, cache=True)
def find_epochs(data: ByteArray, rows: Rows, entries: IntArray) -> Integer:
    """Find runs of batches with the same leader epoch, and return their number.

    Row i of `entries` (int64, two columns) becomes the epoch and the base offset of the run's first batch.
    There must be as many entries as rows.
    """
    data = borrowed(data)
    rows = borrowed(rows)
    entries = borrowed(entries)
    count = 0
    for b in range(rows.size):
        epoch = load_i32(data, rows[b].position + LEADER_EPOCH)
        if count == 0 or epoch != entries[count - 1, 0]:
            entries[count, 0] = epoch
            entries[count, 1] = rows[b].base_offset
            count += 1
    return count


@njit(nogil=True, cache=True)
def classify_producers(rows: Rows) -> Integers:
    """Return three facts about the producers of the batches.

    1. Any batch has a producer id.
    2. All batches are data of one producer and one epoch, outside of transactions.
    3. In addition, their sequence numbers are consecutive and do not wrap around to the first one.
    """
    rows = borrowed(rows)
    idempotent = False
    for b in range(rows.size):
        idempotent |= rows[b].producer_id >= 0
    if not idempotent:
        return False, False, False
    producer, epoch = rows[0].producer_id, rows[0].producer_epoch
    in_sequence = True
    sequence = rows[0].base_sequence
    total = np.int64(0)
    for b in range(rows.size):
        row = rows[b]
        if row.producer_id != producer or row.producer_epoch != epoch:
            return True, False, False
        if row.attributes & (TRANSACTIONAL | CONTROL):
            return True, False, False
        in_sequence &= row.base_sequence >= 0 and row.base_sequence == sequence
        sequence = (row.base_sequence + row.last_offset_delta + 1) % SEQUENCES
        total += row.last_offset_delta + 1
    return True, True, in_sequence and total < _MAX_IN_RUN


@njit(nogil=True, cache=True)
def pack_positions(
    entries: IntArray, base_offset: Integer, last_offset: Integer, packed: ByteArray
) -> Integer:
    """Encode entries of an offset index, eight bytes each, from the first two columns of int64 `entries`.

    Returns the index of the first entry whose offset is not above all previous ones and `last_offset`, or
    does not fit four bytes; the number of entries if there is none.
    """
    entries = borrowed(entries)
    packed = borrowed(packed)
    for i in range(entries.shape[0]):
        offset = entries[i, 0]
        if offset <= last_offset or offset - base_offset < 0 or offset - base_offset > _INT32_MAX:
            return i
        store(packed, i * 8, offset - base_offset, 4)
        store(packed, i * 8 + 4, entries[i, 1], 4)
        last_offset = offset
    return entries.shape[0]


@njit(nogil=True, cache=True)
def pack_times(
    entries: IntArray, base_offset: Integer, timestamp: Integer, offset: Integer, packed: ByteArray
) -> Integers:
    """Encode entries of a time index, twelve bytes each, for timestamps above all previous ones.

    `entries` is int64 with timestamp and offset; `timestamp` and `offset` are those of the last existing
    entry. Returns:

    1. the number of entries that fit into `packed`;
    2. the timestamp of the last of them;
    3. its offset;
    4. the index of the first entry whose offset is lower than the previous one or does not fit four bytes, or
       the number of entries if there is none.
    """
    entries = borrowed(entries)
    packed = borrowed(packed)
    count = 0
    for i in range(entries.shape[0]):
        if entries[i, 0] <= timestamp:
            continue
        relative = entries[i, 1] - base_offset
        if entries[i, 1] < offset or relative < 0 or relative > _INT32_MAX:
            return count, timestamp, offset, i
        if (count + 1) * 12 <= packed.size:
            timestamp, offset = entries[i, 0], entries[i, 1]
            store(packed, count * 12, timestamp, 8)
            store(packed, count * 12 + 8, relative, 4)
            count += 1
    return count, timestamp, offset, entries.shape[0]
