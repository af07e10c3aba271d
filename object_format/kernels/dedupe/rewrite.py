"""Pass 2 over batches that are open already: from plan to bytes in one call, the codec's part left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.errors import Fault
from object_format.kernels.batches.layout import CODEC_MASK
from object_format.kernels.bitmaps.roaring import span_of
from object_format.kernels.codecs.native import stretch_end
from object_format.kernels.dedupe.filter import COPY, plan_rows
from object_format.kernels.dedupe.merge import assemble, group_rows, mark_small
from object_format.kernels.runtime.intrinsics import borrowed

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, Integer, Integers, Numbers, Rows

_NONE = int(Fault.NONE)
_SURVIVORS = int(Fault.SURVIVORS)


@njit(nogil=True, cache=True)
def part_between(values: Numbers, first: Integer, last: Integer) -> Numbers:
    """The numbers in [first, last] of an array that rises."""
    start, end = span_of(values, first, last)
    return values[start:end]


@njit(nogil=True, cache=True)
def thin_opened(
    data: ByteArray,
    records: ByteArray,
    rows: Rows,
    shift: Integer,
    leader_epoch: Integer,
    kept: Numbers,
    tombstones: Numbers,
    stamp: Integer,
    horizon: Integer,
    merge: Integer,
    most: Integer,
    most_packed: Integer,
    scratch_bytes: Integer,
    out: ByteArray,
    unsealed: Numbers,
    totals: Numbers,
) -> Integers:
    """What `filter.filter_rows` makes of batches open in `records`, of which all were compressed or none.

    There is at least one. `kept` and `tombstones` may have more than theirs. Batches are merged within the
    stretches that pass 2 would open in `scratch_bytes`; `most`, `most_packed`, `out`, `unsealed` are as for
    `assemble`, and the latter has room for each of `rows`. Returns a fault and its position, of the batch if
    that is compressed; the end of what was written, or its complement, which is negative, for want of room;
    and how many batches are unsealed.
    """
    data, records, rows = borrowed(data), borrowed(records), borrowed(rows)
    kept, tombstones = borrowed(kept), borrowed(tombstones)
    out, unsealed, totals = borrowed(out), borrowed(unsealed), borrowed(totals)
    newest = rows[rows.size - 1]
    first_offset = rows[0].base_offset + shift
    last_offset = newest.base_offset + newest.last_offset_delta + shift
    kept = part_between(kept, first_offset, last_offset)
    tombstones = part_between(tombstones, first_offset, last_offset)
    actions = np.empty(rows.size, np.uint8)
    starts = np.empty(rows.size + 1, np.int64)
    mismatch = plan_rows(rows, shift, kept, tombstones, stamp, actions, starts)
    if mismatch >= 0:
        return _SURVIVORS, rows[mismatch].position, np.int64(-1), 0
    if merge:
        mark_small(rows, actions, starts, horizon)
    opened = np.flatnonzero(actions > COPY)
    at = np.int64(0)
    count = np.int64(0)
    first = np.int64(0)
    n = np.int64(0)
    while first < rows.size:
        n = stretch_end(rows, opened, n, scratch_bytes, True) if n < opened.size else n
        end = opened[n] if n < opened.size else rows.size
        some, does, begins = rows[first:end], actions[first:end], starts[first : end + 1]
        room, _sealed = group_rows(some, does, begins, horizon, most, most_packed)
        if room > out.size - at:
            return _NONE, 0, ~at, 0
        fault, position, row, length, sealed = assemble(
            data,
            records,
            some,
            does,
            begins,
            shift,
            leader_epoch,
            kept,
            horizon,
            most,
            most_packed,
            out[at:],
            unsealed[count:],
            totals,
        )
        if fault != _NONE:
            compressed = some[row].attributes & CODEC_MASK != 0
            return fault, some[row].position if compressed else position, np.int64(-1), 0
        unsealed[count : count + sealed, :2] += at
        count += sealed
        at += length
        first = end
    return _NONE, 0, at, count
