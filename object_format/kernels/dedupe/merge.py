"""Pass 2 from plan to bytes: chooses the small batches to merge, and writes all batches.

Batches are merged only if their records have the same meaning in one batch: the same attributes, no
transaction, no control batches, and equal times where the header contains the time of the records or of their
deletion. Producer id, epoch and sequence are dropped. Consumers do not use them outside of transactions, and
the catalog knows the state of producers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.errors import Fault
from object_format.kernels.batches.layout import (
    ATTRIBUTES,
    BASE_TIMESTAMP,
    BATCH_LENGTH,
    BATCH_OVERHEAD,
    CODEC_MASK,
    CONTROL,
    DELETE_HORIZON,
    LAST_OFFSET_DELTA,
    LENGTH_OVERHEAD,
    LOG_APPEND_TIME,
    MAX_TIMESTAMP,
    PRODUCER_ID,
    RECORD_COUNT,
    TRANSACTIONAL,
)
from object_format.kernels.dedupe.filter import (
    ACTION_MASK,
    CONTINUES,
    COPY,
    FILTER,
    MAX_GROWTH,
    MERGED,
    SET_HORIZON,
    SKIP,
    add_totals,
    copy_header,
    filter_records,
    filter_row,
)
from object_format.kernels.runtime.intrinsics import borrowed, copy_bytes
from object_format.kernels.runtime.primitives import store

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers, Rows

SMALL_BYTES = 4096
"""An uncompressed batch is small if its stored size is below this limit: its header exceeds 1.5 % of it."""

SMALL_COMPRESSED_BYTES = 16_384
"""The same limit for compressed batches, whose few records compress badly and slowly."""

MAX_MERGED_BYTES = 65_536
"""Maximum size of the records of a merged batch, far below any limit on the size of batches."""

MAX_MERGED_COMPRESSED_BYTES = 122_880
"""The same limit for compressed batches, before compression.

It is the size that zstd compresses as one block with small tables, minus space for growing deltas. Compared
with `MAX_MERGED_BYTES`, compressed data is 1 to 4 % smaller.
"""

_NONE = int(Fault.NONE)
_INT32_MAX = np.iinfo(np.int32).max
_INT64_MAX = np.iinfo(np.int64).max
_INT64_MIN = np.iinfo(np.int64).min


@njit(nogil=True, cache=True)
def proportion(amount: Integer, survivors: Integer, records: Integer) -> Integer:
    """Return the part of `amount` that corresponds to the survivors."""
    return amount if survivors == records else np.int64(np.float64(amount) * survivors / records)


@njit(nogil=True, cache=True)
def final_header(row: Integers, action: Integer, horizon: Integer) -> Integers:
    """Return a batch's attributes and base timestamp after its action."""
    if action & ACTION_MASK == SET_HORIZON:
        return row.attributes | DELETE_HORIZON, horizon
    return row.attributes, row.base_timestamp


@njit(nogil=True, cache=True)
def can_merge(rows: Rows, actions: IntArray, lead: Integer, b: Integer, horizon: Integer) -> Integer:
    """Return True if the headers allow that batch `b` is merged with batch `lead`."""
    first, second = rows[lead], rows[b]
    attributes, time = final_header(first, actions[lead], horizon)
    other_attributes, other_time = final_header(second, actions[b], horizon)
    return (
        attributes == other_attributes
        and (attributes & DELETE_HORIZON == 0 or time == other_time)
        and (attributes & LOG_APPEND_TIME == 0 or first.max_timestamp == second.max_timestamp)
        and second.base_offset + second.last_offset_delta - first.base_offset <= _INT32_MAX
    )


@njit(nogil=True, cache=True)
def mark_small_batches(rows: Rows, actions: IntArray, starts: IntArray, horizon: Integer) -> None:
    """Set MERGED for adjacent small batches that may be merged.

    Their uncompressed size is not known yet; `plan_merges` uses it for the final decision.
    """
    rows = borrowed(rows)
    actions = borrowed(actions)
    starts = borrowed(starts)
    last = -1
    for b in range(rows.size):
        if actions[b] == SKIP:
            continue
        row = rows[b]
        size = BATCH_OVERHEAD + proportion(
            row.size - BATCH_OVERHEAD, starts[b + 1] - starts[b], row.record_count
        )
        small = SMALL_BYTES if row.attributes & CODEC_MASK == 0 else SMALL_COMPRESSED_BYTES
        if size >= small or row.attributes & (CONTROL | TRANSACTIONAL) != 0:
            last = -1
            continue
        if last >= 0 and can_merge(rows, actions, last, b, horizon):
            actions[last] |= MERGED
            actions[b] |= MERGED
        last = b


@njit(nogil=True, cache=True)
def plan_merges(
    rows: Rows,
    actions: IntArray,
    starts: IntArray,
    horizon: Integer,
    max_bytes: Integer,
    max_compressed_bytes: Integer,
) -> Integers:
    """Decide which of the opened MERGED batches are merged with each other.

    Sizes are estimated for batches that lose records. A merged batch has at most `max_bytes` of records, or
    `max_compressed_bytes` if the batches were compressed; `merge_rows` ends a group that exceeds it. Returns
    an upper bound of the uncompressed result in bytes, and the number of batches that need a CRC.
    """
    rows = borrowed(rows)
    actions = borrowed(actions)
    starts = borrowed(starts)
    lead = 0
    members = 0
    total = 0
    capacity = 0
    rewritten = 0
    for b in range(rows.size):
        if actions[b] == SKIP:
            continue
        row = rows[b]
        size = 0
        if actions[b] == COPY:
            capacity += row.size
        else:
            survivors = starts[b + 1] - starts[b]
            size = row.records_end - row.records_start
            needed = BATCH_OVERHEAD + size
            if actions[b] != FILTER:
                needed += MAX_GROWTH * survivors  # deltas change
            if actions[b] & ACTION_MASK == COPY:
                needed = max(
                    needed, row.size
                )  # if not merged it is copied, and compression may have grown it
            capacity += needed
            size = proportion(size, survivors, row.record_count)
            rewritten += 1
        merged = actions[b] & MERGED != 0
        fits = members > 0 and total + size <= (
            max_bytes if row.attributes & CODEC_MASK == 0 else max_compressed_bytes
        )
        if merged and fits and can_merge(rows, actions, lead, b, horizon):
            actions[b] |= CONTINUES
            members += 1
            total += size
            continue
        if members == 1:
            actions[lead] &= ACTION_MASK
        lead = b
        members = int(merged)
        total = size
    if members == 1:
        actions[lead] &= ACTION_MASK
    return capacity, rewritten


@njit(nogil=True, cache=True)
def next_member(rows: Rows, actions: IntArray, b: Integer) -> Integer:
    """Return the next batch that is not skipped, and whether it continues the group of `b`."""
    b += 1
    while b < rows.size and actions[b] == SKIP:
        b += 1
    return b, b < rows.size and actions[b] & CONTINUES != 0


@njit(nogil=True, cache=True)
def split_group(rows: Rows, actions: IntArray, lead: Integer, members: Integer, b: Integer) -> Integer:
    """Start another group with batch `b`, and unmark groups that have only one batch now.

    Returns the batch to continue with: `b`, or `lead` if the first group has only this batch.
    """
    actions[b] &= ~CONTINUES
    if not next_member(rows, actions, b)[1]:
        actions[b] &= ACTION_MASK
    if members > 1:
        return b
    actions[lead] &= ACTION_MASK
    return lead


@njit(nogil=True, cache=True)
def merge_rows(
    data: ByteArray,
    records: ByteArray,
    rows: Rows,
    b: Integer,
    actions: IntArray,
    starts: IntArray,
    shift: Integer,
    leader_epoch: Integer,
    kept: IntArray,
    horizon: Integer,
    max_bytes: Integer,
    out: ByteArray,
    start: Integer,
    totals: IntArray,
) -> Integers:
    """Write batch `b` and those that continue it as one batch, except its CRC.

    The merged batch has at most `max_bytes` of records. Returns fault, position, end, the next batch, and the
    size of the separate batches (in proportion if they lose records). The next batch is `b` if the second
    batch does not fit; nothing is written then.
    """
    data, records, rows = borrowed(data), borrowed(records), borrowed(rows)
    actions, starts, kept = borrowed(actions), borrowed(starts), borrowed(kept)
    out, totals = borrowed(out), borrowed(totals)
    lead = last = b
    first = rows[lead]
    time = final_header(first, actions[lead], horizon)[1]
    timestamp_range = np.empty(2, np.int64)
    timestamp_range[0], timestamp_range[1] = _INT64_MAX, _INT64_MIN
    copy_header(data, first, shift, leader_epoch, out, start)
    at = start + BATCH_OVERHEAD
    unmerged_size = members = count = 0
    continues = True
    while continues:
        row = rows[b]
        survivors = kept[starts[b] : starts[b + 1]]
        lowest, highest = timestamp_range[0], timestamp_range[1]
        timestamp_shift, delta_shift = row.base_timestamp - time, row.base_offset - first.base_offset
        fault, position, end = filter_records(
            records, row, shift, survivors, timestamp_shift, delta_shift, out, at, timestamp_range
        )
        if fault != _NONE:
            return fault, position, at, b, 0
        if members > 0 and end - start - BATCH_OVERHEAD > max_bytes:
            timestamp_range[0], timestamp_range[1] = lowest, highest
            b = split_group(rows, actions, lead, members, b)
            if b == lead:
                return _NONE, 0, start, b, 0
            break
        if survivors.size == row.record_count:
            unmerged_size += row.size
        else:
            stored = row.size - BATCH_OVERHEAD
            unmerged_size += BATCH_OVERHEAD + proportion(
                stored, end - at, row.records_end - row.records_start
            )
        at = end
        count += survivors.size
        members += 1
        last = b
        b, continues = next_member(rows, actions, b)
    write_merged_header(rows, lead, last, actions, horizon, count, timestamp_range, out, start, at)
    add_totals(totals, count, timestamp_range[0], timestamp_range[1])
    return _NONE, 0, at, b, unmerged_size


@njit(nogil=True, cache=True)
def write_merged_header(
    rows: Rows,
    lead: Integer,
    last: Integer,
    actions: IntArray,
    horizon: Integer,
    count: Integer,
    timestamp_range: IntArray,
    out: ByteArray,
    start: Integer,
    end: Integer,
) -> None:
    """Write the header of the batch that merges batches `lead` to `last`, except its CRC.

    `timestamp_range` is that of its `count` records.
    """
    first, newest = rows[lead], rows[last]
    attributes, time = final_header(first, actions[lead], horizon)
    if attributes & LOG_APPEND_TIME != 0:
        timestamp_range[0], timestamp_range[1] = first.max_timestamp, first.max_timestamp
    store(out, start + BATCH_LENGTH, end - start - LENGTH_OVERHEAD, 4)
    store(out, start + ATTRIBUTES, attributes, 2)
    last_offset = newest.base_offset + newest.last_offset_delta
    store(out, start + LAST_OFFSET_DELTA, last_offset - first.base_offset, 4)
    store(out, start + BASE_TIMESTAMP, time, 8)
    store(out, start + MAX_TIMESTAMP, timestamp_range[1], 8)
    out[start + PRODUCER_ID : start + RECORD_COUNT] = 255
    store(out, start + RECORD_COUNT, count, 4)


@njit(nogil=True, cache=True)
def assemble(
    data: ByteArray,
    records: ByteArray,
    rows: Rows,
    actions: IntArray,
    starts: IntArray,
    shift: Integer,
    leader_epoch: Integer,
    kept: IntArray,
    horizon: Integer,
    max_bytes: Integer,
    max_compressed_bytes: Integer,
    out: ByteArray,
    rewritten: IntArray,
    totals: IntArray,
) -> Integers:
    """Write the survivors of `rows`; the records of opened batches are in `records`.

    Merged batches have at most `max_bytes` of records, or `max_compressed_bytes` if they were compressed.
    `rewritten` is int64[batches, 4]: start and end of each batch that needs compression and a CRC, its codec,
    and the size of the separate batches if it is merged, else 0. Returns a fault, its position, its row, the
    end of the output, and the number of rewritten batches.
    """
    data = borrowed(data)
    records = borrowed(records)
    rows = borrowed(rows)
    actions = borrowed(actions)
    starts = borrowed(starts)
    kept = borrowed(kept)
    out = borrowed(out)
    rewritten = borrowed(rewritten)
    totals = borrowed(totals)
    at = np.int64(0)
    n = 0
    b = 0
    while b < rows.size:
        row = rows[b]
        action = actions[b]
        if action == SKIP:
            b += 1
            continue
        if action == COPY:
            copy_bytes(data, row.position, out, at, row.size)
            copy_header(data, row, shift, leader_epoch, out, at)
            unknown = row.attributes & (DELETE_HORIZON | LOG_APPEND_TIME) != 0
            lowest = row.max_timestamp if unknown else min(row.base_timestamp, row.max_timestamp)
            add_totals(totals, row.record_count, lowest, row.max_timestamp)
            at += row.size
            b += 1
            continue
        unmerged_size = 0
        following = b + 1
        if action & MERGED != 0:
            fault, position, end, following, unmerged_size = merge_rows(
                data,
                records,
                rows,
                b,
                actions,
                starts,
                shift,
                leader_epoch,
                kept,
                horizon,
                max_bytes if row.attributes & CODEC_MASK == 0 else max_compressed_bytes,
                out,
                at,
                totals,
            )
            if fault != _NONE:
                return fault, position, following, at, n
            if following == b:
                continue  # not merged after all
        else:
            survivors = kept[starts[b] : starts[b + 1]]
            fault, position, end = filter_row(
                data,
                records,
                rows,
                b,
                shift,
                leader_epoch,
                survivors,
                action == SET_HORIZON,
                horizon,
                out,
                at,
                totals,
            )
            if fault != _NONE:
                return fault, position, b, at, n
        rewritten[n, 0] = at
        rewritten[n, 1] = end
        rewritten[n, 2] = row.attributes & CODEC_MASK
        rewritten[n, 3] = unmerged_size
        n += 1
        at = end
        b = following
    return _NONE, 0, b, at, n
