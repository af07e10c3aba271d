"""Pass 2 for opened batches, from plan to bytes in one call, without compression."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.errors import Fault
from object_format.kernels.batches.layout import CODEC_MASK
from object_format.kernels.bitmaps.roaring import index_range
from object_format.kernels.codecs.native import chunk_end
from object_format.kernels.dedupe.filter import COPY, plan_rows
from object_format.kernels.dedupe.merge import assemble, mark_small_batches, plan_merges
from object_format.kernels.runtime.intrinsics import borrowed

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers, Rows

_NONE = int(Fault.NONE)
_SURVIVORS = int(Fault.SURVIVORS)


@njit(nogil=True, cache=True)
def slice_between(values: IntArray, first: Integer, last: Integer) -> IntArray:
    """Return the values in [first, last] of an ascending array."""
    start, end = index_range(values, first, last)
    return values[start:end]


@njit(nogil=True, cache=True)
def filter_opened(
    data: ByteArray,
    records: ByteArray,
    rows: Rows,
    shift: Integer,
    leader_epoch: Integer,
    kept: IntArray,
    tombstones: IntArray,
    set_horizon: Integer,
    horizon: Integer,
    merge: Integer,
    max_bytes: Integer,
    max_compressed_bytes: Integer,
    scratch_bytes: Integer,
    out: ByteArray,
    rewritten: IntArray,
    totals: IntArray,
) -> Integers:
    """Do the work of `filter.filter_rows` for batches that are open in `records`.

    There is at least one batch, and either all or none were compressed. `kept` and `tombstones` may contain
    other offsets, too. Batches are merged within the chunks that pass 2 would open in `scratch_bytes`.
    `max_bytes`, `max_compressed_bytes`, `out` and `rewritten` are those of `assemble`; the latter has a row
    for each of `rows`. Returns a fault and its position (that of the batch if it is compressed), the end of
    the output or its (negative) complement if the memory is too small, and the number of rewritten batches.
    """
    data, records, rows = borrowed(data), borrowed(records), borrowed(rows)
    kept, tombstones = borrowed(kept), borrowed(tombstones)
    out, rewritten, totals = borrowed(out), borrowed(rewritten), borrowed(totals)
    newest = rows[rows.size - 1]
    first_offset = rows[0].base_offset + shift
    last_offset = newest.base_offset + newest.last_offset_delta + shift
    kept = slice_between(kept, first_offset, last_offset)
    tombstones = slice_between(tombstones, first_offset, last_offset)
    actions = np.empty(rows.size, np.uint8)
    starts = np.empty(rows.size + 1, np.int64)
    mismatch = plan_rows(rows, shift, kept, tombstones, set_horizon, actions, starts)
    if mismatch >= 0:
        return _SURVIVORS, rows[mismatch].position, np.int64(-1), 0
    if merge:
        mark_small_batches(rows, actions, starts, horizon)
    opened = np.flatnonzero(actions > COPY)
    at = np.int64(0)
    count = np.int64(0)
    first = np.int64(0)
    n = np.int64(0)
    while first < rows.size:
        n = chunk_end(rows, opened, n, scratch_bytes, True) if n < opened.size else n
        end = opened[n] if n < opened.size else rows.size
        group, group_actions, group_starts = rows[first:end], actions[first:end], starts[first : end + 1]
        capacity, _rewritten = plan_merges(
            group, group_actions, group_starts, horizon, max_bytes, max_compressed_bytes
        )
        if capacity > out.size - at:
            return _NONE, 0, ~at, 0
        fault, position, row, length, rewritten_count = assemble(
            data,
            records,
            group,
            group_actions,
            group_starts,
            shift,
            leader_epoch,
            kept,
            horizon,
            max_bytes,
            max_compressed_bytes,
            out[at:],
            rewritten[count:],
            totals,
        )
        if fault != _NONE:
            compressed = group[row].attributes & CODEC_MASK != 0
            return fault, group[row].position if compressed else position, np.int64(-1), 0
        rewritten[count : count + rewritten_count, :2] += at
        count += rewritten_count
        at += length
        first = end
    return _NONE, 0, at, count
