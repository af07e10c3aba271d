"""Pass 2: plans what to do with each batch, and filters the records of single batches.

Source: Kafka's MemoryRecords.filterTo and KIP-534. In contrast to Kafka, the base timestamp of a filtered
batch is not changed, so that the bytes of its records can be copied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.errors import Fault
from object_format.kernels.batches.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BASE_TIMESTAMP,
    BATCH_LENGTH,
    BATCH_OVERHEAD,
    CONTROL,
    DELETE_HORIZON,
    KEEP_LEADER_EPOCH,
    LEADER_EPOCH,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP,
    RECORD_COUNT,
)
from object_format.kernels.batches.record_parser import parse_head
from object_format.kernels.runtime.intrinsics import borrowed, copy_bytes, prefetch
from object_format.kernels.runtime.primitives import store, varlong_size, write_varlong

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers, Rows

_NONE = int(Fault.NONE)
_SURVIVORS = int(Fault.SURVIVORS)
_TRAILING = int(Fault.TRAILING_BYTES)
_INT64_MAX = np.iinfo(np.int64).max
_INT64_MIN = np.iinfo(np.int64).min

SKIP = 0
COPY = 1
FILTER = 2
SET_HORIZON = 3
MERGED = 4
CONTINUES = 8
"""Actions for a batch. FILTER drops records, and SET_HORIZON in addition sets the delete horizon.

MERGED can be added to an action. It merges the batch with the following ones that have CONTINUES set, too.
"""

ACTION_MASK = 3
"""Bits of the first four actions."""

TOTAL_BATCHES = 0
TOTAL_RECORDS = 1
TOTAL_LOWEST = 2
TOTAL_HIGHEST = 3
TOTALS = 4
"""Size of the array of totals; the constants above are its indexes."""

MAX_GROWTH = 14
"""Maximum growth of a record with new deltas: 9 bytes for the timestamp, 4 for the offset, one for its
length."""

_LINE = 64
_AHEAD = 56
"""Records ahead of the current one whose memory is prefetched: 8 KiB of small records."""


@njit(nogil=True, cache=True)
def advance(values: IntArray, i: Integer, bound: Integer) -> Integer:
    """Return the first index from `i` on whose value is at least `bound`."""
    while i < values.size and values[i] < bound:
        i += 1
    return i


@njit(nogil=True, cache=True)
def plan_rows(
    rows: Rows,
    shift: Integer,
    kept: IntArray,
    tombstones: IntArray,
    set_horizon: Integer,
    actions: IntArray,
    starts: IntArray,
) -> Integer:
    """Choose an action for each batch; return the index of one with more survivors than records, or -1.

    `kept` and `tombstones` are sorted absolute offsets. `actions` is uint8[rows]. `starts` is int64[rows +
    1]: the index in `kept` of each batch's first survivor.
    """
    rows = borrowed(rows)
    kept = borrowed(kept)
    tombstones = borrowed(tombstones)
    actions = borrowed(actions)
    starts = borrowed(starts)
    k = 0
    t = 0
    for b in range(rows.size):
        row = rows[b]
        base = row.base_offset + shift
        end_offset = base + row.last_offset_delta + 1
        starts[b] = k
        k = advance(kept, k, end_offset)
        survivors = k - starts[b]
        if survivors > row.record_count:
            return b
        t = advance(tombstones, t, base)
        has_tombstones = t < tombstones.size and tombstones[t] < end_offset
        if survivors == 0:
            actions[b] = SKIP
        elif set_horizon and has_tombstones and row.attributes & (DELETE_HORIZON | CONTROL) == 0:
            actions[b] = SET_HORIZON
        elif survivors == row.record_count:
            actions[b] = COPY
        else:
            actions[b] = FILTER
    starts[rows.size] = k
    return -1


@njit(nogil=True, cache=True)
def rebase_record(
    data: ByteArray,
    body: Integer,
    key_at: Integer,
    stop: Integer,
    delta: Integer,
    offset_delta: Integer,
    out: ByteArray,
    at: Integer,
) -> Integer:
    """Write a record with other deltas; return the position after it."""
    length = 1 + varlong_size(delta) + varlong_size(offset_delta) + stop - key_at
    at = write_varlong(out, at, length)
    out[np.uint64(at)] = data[np.uint64(body)]
    at = write_varlong(out, at + 1, delta)
    at = write_varlong(out, at, offset_delta)
    copy_bytes(data, key_at, out, at, stop - key_at)
    return at + stop - key_at


@njit(nogil=True, cache=True)
def filter_records(
    data: ByteArray,
    row: Integers,
    shift: Integer,
    kept: IntArray,
    timestamp_shift: Integer,
    delta_shift: Integer,
    out: ByteArray,
    at: Integer,
    timestamp_range: IntArray,
) -> Integers:
    """Write the records of one batch whose offsets are in `kept` to `out` from `at` on.

    `timestamp_shift` is added to timestamp deltas, and `delta_shift` to offset deltas. If both are 0,
    adjacent records are copied together. `timestamp_range` is int64[2], which is extended by the written
    timestamps. Returns a fault, its position, and the end of the output.
    """
    data, kept, out = borrowed(data), borrowed(kept), borrowed(out)
    position = row.records_start
    pending = position
    k = 0
    base = row.base_offset + shift
    base_timestamp = row.base_timestamp
    limit = row.records_end
    lowest, highest = timestamp_range[0], timestamp_range[1]
    for _ in range(row.record_count):
        fault, stop, body, delta, _offset_at, offset_delta, key_at = parse_head(data, position, limit)
        if fault != _NONE:
            return fault, position, at
        ahead = position + _AHEAD * (stop - position)
        prefetch(data, ahead)
        prefetch(data, ahead + _LINE)
        keep = k < kept.size and kept[k] == base + offset_delta
        if keep:
            k += 1
            lowest = min(lowest, base_timestamp + delta)
            highest = max(highest, base_timestamp + delta)
        if timestamp_shift != 0 or delta_shift != 0:
            if keep:
                at = rebase_record(
                    data, body, key_at, stop, delta + timestamp_shift, offset_delta + delta_shift, out, at
                )
            pending = stop
        elif not keep:
            copy_bytes(data, pending, out, at, position - pending)
            at += position - pending
            pending = stop
        position = stop
    copy_bytes(data, pending, out, at, position - pending)
    at += position - pending
    timestamp_range[0], timestamp_range[1] = lowest, highest
    if position != limit:
        return _TRAILING, position, at
    return _NONE if k == kept.size else _SURVIVORS, position, at


@njit(nogil=True, cache=True)
def filter_row(
    data: ByteArray,
    records: ByteArray,
    rows: Rows,
    b: Integer,
    shift: Integer,
    leader_epoch: Integer,
    kept: IntArray,
    set_horizon: Integer,
    horizon: Integer,
    out: ByteArray,
    start: Integer,
    totals: IntArray,
) -> Integers:
    """Write batch `b` with the records in `kept`, except its CRC; return fault, position and end.

    Its header is in `data`, its records are in `records` (the same array unless they were compressed). With
    `set_horizon`, its base timestamp becomes `horizon`.
    """
    data, records, rows = borrowed(data), borrowed(records), borrowed(rows)
    kept, out, totals = borrowed(kept), borrowed(out), borrowed(totals)
    row = rows[b]
    timestamp_range = np.empty(2, np.int64)
    timestamp_range[0], timestamp_range[1] = _INT64_MAX, _INT64_MIN
    timestamp_shift = row.base_timestamp - horizon if set_horizon else 0
    fault, position, end = filter_records(
        records, row, shift, kept, timestamp_shift, 0, out, start + BATCH_OVERHEAD, timestamp_range
    )
    write_filtered_header(
        data,
        row,
        shift,
        leader_epoch,
        kept.size,
        set_horizon,
        horizon,
        timestamp_range,
        out,
        start,
        end,
        totals,
    )
    return fault, position, end


@njit(nogil=True, cache=True)
def write_filtered_header(
    data: ByteArray,
    row: Integers,
    shift: Integer,
    leader_epoch: Integer,
    count: Integer,
    set_horizon: Integer,
    horizon: Integer,
    timestamp_range: IntArray,
    out: ByteArray,
    start: Integer,
    end: Integer,
    totals: IntArray,
) -> None:
    """Write the header of a filtered batch, except its CRC.

    `timestamp_range` is that of the batch's `count` records, which end at `end`.
    """
    copy_header(data, row, shift, leader_epoch, out, start)
    if row.attributes & LOG_APPEND_TIME != 0:
        timestamp_range[0], timestamp_range[1] = row.max_timestamp, row.max_timestamp
    store(out, start + BATCH_LENGTH, end - start - LENGTH_OVERHEAD, 4)
    store(out, start + MAX_TIMESTAMP, timestamp_range[1], 8)
    store(out, start + RECORD_COUNT, count, 4)
    if set_horizon:
        store(out, start + BASE_TIMESTAMP, horizon, 8)
        store(out, start + ATTRIBUTES, row.attributes | DELETE_HORIZON, 2)
    add_totals(totals, count, timestamp_range[0], timestamp_range[1])


@njit(nogil=True, cache=True)
def copy_header(
    data: ByteArray, row: Integers, shift: Integer, leader_epoch: Integer, out: ByteArray, at: Integer
) -> None:
    """Copy a batch's header with its absolute base offset and the leader epoch (or its own)."""
    copy_bytes(data, row.position, out, at, BATCH_OVERHEAD)
    store(out, at + BASE_OFFSET, row.base_offset + shift, 8)
    if leader_epoch != KEEP_LEADER_EPOCH:
        store(out, at + LEADER_EPOCH, leader_epoch, 4)


@njit(nogil=True, cache=True)
def add_totals(totals: IntArray, records: Integer, lowest: Integer, highest: Integer) -> None:
    """Add a written batch to the totals."""
    totals[TOTAL_BATCHES] += 1
    totals[TOTAL_RECORDS] += records
    totals[TOTAL_LOWEST] = min(totals[TOTAL_LOWEST], lowest)
    totals[TOTAL_HIGHEST] = max(totals[TOTAL_HIGHEST], highest)
