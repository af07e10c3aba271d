"""Kernel that finds the survivors of many partitions, each with an empty key table."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numba import njit

from object_format.kernels.dedupe.fingerprints import WORDS, fingerprint_rows
from object_format.kernels.dedupe.key_table import (
    COUNTS,
    DROP_EXPIRED_IF_ADDED,
    KEEP_TOMBSTONES,
    collect,
    count_survivors,
    find_survivors,
)
from spark_jobs.task.small_sections.columns import (
    PIECE_COMPRESSED,
    PIECE_END,
    PIECE_EXTENT,
    PIECE_ROW,
    PIECE_ROWS_END,
    PIECE_START,
    REACHES_LOG_START,
)

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import IntArray, Integer
    from spark_jobs.task.small_sections.columns import Group, Survivors

TABLE_RECORD_SLOTS = 3
"""Slots of a table for each record: two home slots, and one for a displaced fingerprint.

A table with more slots behind the last home slot than records is never full.
"""

MIN_HOME_SLOTS = 64


@njit(nogil=True, cache=True)
def fingerprint_pieces(
    group: Group,
    first: Integer,
    end: Integer,
    k0: Integer,
    k1: Integer,
    now_ms: Integer,
    words: IntArray,
    offsets: IntArray,
    flags: IntArray,
) -> Integer:
    """Fill the columns with the records of pieces, oldest first; return their number, or -1 for a fault."""
    count = first * 0
    cursor = np.empty(4, np.int64)
    for n in range(first, end):
        piece = group.pieces[n]
        rows = group.rows[piece[PIECE_ROW] : piece[PIECE_ROWS_END]]
        compressed = piece[PIECE_COMPRESSED] != 0
        start, stop = piece[PIECE_START], piece[PIECE_END]
        records = group.records if compressed else group.data[start:stop]
        cursor[:] = 0
        fault, _position, count = fingerprint_rows(
            records,
            rows,
            cursor,
            group.bounds[piece[PIECE_EXTENT], 2],
            k0,
            k1,
            now_ms,
            words,
            offsets,
            flags,
            count,
        )
        if fault or cursor[0] < rows.size:
            return -1
    return count


@njit(nogil=True, cache=True)
def find_in_partitions(
    group: Group,
    count: Integer,
    k0: Integer,
    k1: Integer,
    now_ms: Integer,
    table: IntArray,
    words: IntArray,
    offsets: IntArray,
    flags: IntArray,
    outcomes: IntArray,
    survivors: Survivors,
    totals: IntArray,
) -> Integer:
    """Find the survivors of the first `count` partitions; return for how many of them this was possible.

    `words`, `offsets`, `flags` and `outcomes` are columns for the records of one partition. `table` is uint32
    with `TABLE_RECORD_SLOTS` slots for each of them, and `MIN_HOME_SLOTS` more. `totals` is
    int64[partitions, COUNTS].
    """
    first = kept = deleted = count * 0
    for p in range(count):
        end = group.piece_ends[p]
        records = fingerprint_pieces(group, first, end, k0, k1, now_ms, words, offsets, flags)
        if records < 0:
            return p
        home_slots = max(2 * records, MIN_HOME_SLOTS)
        used = table[: (home_slots + records) * WORDS]
        used[:] = 0
        totals[p, :COUNTS] = 0
        expired = DROP_EXPIRED_IF_ADDED if group.partitions[p, REACHES_LOG_START] != 0 else KEEP_TOMBSTONES
        find_survivors(
            used, home_slots, records + 1, words, flags, records, True, expired, outcomes, totals[p]
        )
        found, tombstones = count_survivors(outcomes, records)
        collect(offsets, outcomes, records, survivors.offsets[kept:], survivors.tombstones[deleted:])
        kept += found
        deleted += tombstones
        survivors.offset_ends[p] = kept
        survivors.tombstone_ends[p] = deleted
        first = end
    return count
