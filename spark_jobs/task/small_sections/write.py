"""Kernel that writes the output sections of many partitions, as `PartitionWriter` and `SegmentFileWriter` do.

It writes the same bytes. Like the kernel that reads, it reports no faults, but stops before the first
partition that it cannot write.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

from object_format.kernels.batches.headers import shift_offsets
from object_format.kernels.batches.layout import (
    ATTRIBUTES,
    BASE_OFFSET,
    BATCH_LENGTH,
    CRC,
    LEADER_EPOCH,
    LENGTH_OVERHEAD,
    MAX_TIMESTAMP,
)
from object_format.kernels.bitmaps.complement import COOKIE_WITH_RUNS, FEW_CONTAINERS, write_complement
from object_format.kernels.bitmaps.roaring import COOKIE, store_little_endian
from object_format.kernels.codecs.native import compress_batches
from object_format.kernels.dedupe.filter import (
    TOTAL_HIGHEST,
    TOTAL_LOWEST,
    TOTAL_RECORDS,
    add_totals,
)
from object_format.kernels.dedupe.rewrite import filter_opened
from object_format.kernels.hashing.checksums import extend_by_number
from object_format.kernels.hashing.crc32c import extend_by_range
from object_format.kernels.runtime.intrinsics import copy_bytes
from object_format.kernels.runtime.primitives import load_i32, load_i64, store
from object_format.segment_file.layout import (
    BLOCK_HEADER,
    INDEX_ENTRY,
    INDEX_HEADER,
    NO_TIMESTAMP,
    OPTIONAL,
    SECTION_FOOTER,
    SECTION_HEADER,
    BlockType,
)
from object_format.segment_file.layout import (
    UNIQUE_KEYS as UNIQUE_KEYS_FLAG,
)
from spark_jobs.task.small_sections.columns import (
    BASE_OFFSET as FIRST_OFFSET,
)
from spark_jobs.task.small_sections.columns import (
    EXTENT_EPOCH,
    EXTENT_NEWEST,
    EXTENT_OLDEST,
    HAS_HORIZON,
    HORIZON,
    MAX_MERGED,
    MAX_MERGED_COMPRESSED,
    MERGED_CODEC,
    MERGES,
    NUMBER,
    OUT_DATA,
    OUT_DATA_LENGTH,
    OUT_END,
    OUT_HOLES,
    OUT_HOLES_LENGTH,
    OUT_INDEX,
    OUT_INDEX_LENGTH,
    OUT_NEWEST,
    OUT_OLDEST,
    OUT_RECORDS,
    OUT_SAVED,
    OUT_START,
    PIECE_COMPRESSED,
    PIECE_END,
    PIECE_EXTENT,
    PIECE_ROW,
    PIECE_ROWS_END,
    PIECE_START,
    UNIQUE_KEYS,
    UPPER_OFFSET,
)

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Integer, Integers
    from spark_jobs.task.small_sections.columns import Group, Survivors

_INT64_MAX = np.iinfo(np.int64).max
_INT64_MIN = np.iinfo(np.int64).min
_HEADER = BLOCK_HEADER.size
_TOPIC_BYTES = 16
_SECTION_START = int(BlockType.SECTION_HEADER)
_DATA = int(BlockType.DATA)
_INDEX = int(BlockType.SECTION_INDEX)
_HOLES = int(BlockType.HOLES)
_FOOTER = int(BlockType.SECTION_FOOTER)
_SECTION_BYTES = 4 * _HEADER + SECTION_HEADER.size + INDEX_HEADER.size + SECTION_FOOTER.size
"""Bytes of an output section except for DATA blocks, the entries of its index, and its holes."""

_FOOTER_BYTES = SECTION_FOOTER.size
_INDEX_ENTRY = INDEX_ENTRY.size
_INDEX_FIELDS = 3
_EMPTY_HOLES = 8
_SINGLE_GROUP = 12
"""Bytes of the holes before their 32-bit bitmap."""

BLOCK_START, BLOCK_BASE, BLOCK_NEWEST, BLOCK_BYTES, BLOCK_ENTRIES, BLOCK_BATCHES, BLOCK_SAVED = range(7)
BLOCK_FIELDS = 7
"""The open DATA block: start in the output, fields of its index entry, and bytes.

The last three count the section's blocks, its batches, and the bytes that merging saved.
"""


class Output(NamedTuple):
    """Memory of the kernel, and the output file: checksum of its id, and the position of `out` in it.

    `block_target` is that of the writer, `scratch_bytes` the memory in which pass 2 would open batches.
    `work` and `compressed` have one piece at a time. `index` is int64[blocks, 3], `containers` that of
    `write_complement`, and `holes` the bytes of these containers. `kept` is int64 for the offsets of one
    partition.
    """

    out: ByteArray
    seed: Integer
    position: Integer
    block_target: Integer
    scratch_bytes: Integer
    sections: IntArray
    work: ByteArray
    compressed: ByteArray
    rewritten: IntArray
    totals: IntArray
    block: IntArray
    index: IntArray
    containers: IntArray
    holes: ByteArray
    kept: IntArray


@njit(nogil=True, cache=True)
def end_block(output: Output, kind: Integer, flags: Integer, start: Integer, end: Integer) -> None:
    """Write the header of the block out[start:end]."""
    out = output.out
    out[start] = kind
    out[start + 1] = flags
    out[start + 2] = 0
    out[start + 3] = 0
    store(out, start + 4, end - start - _HEADER, 4)
    checksum = extend_by_number(output.seed, output.position + start, 8)
    checksum = extend_by_range(checksum, out, start, start + 8)
    checksum = extend_by_range(checksum, out, start + _HEADER, end)
    store(out, start + 8, checksum, 4)


@njit(nogil=True, cache=True)
def end_data(output: Output, data_start: Integer, at: Integer) -> None:
    """End the open DATA block, and add its entry to the index."""
    block, entry = output.block, output.index[output.block[BLOCK_ENTRIES]]
    end_block(output, _DATA, 0, block[BLOCK_START], at)
    entry[0] = block[BLOCK_BASE]
    entry[1] = block[BLOCK_NEWEST]
    entry[2] = block[BLOCK_START] - data_start
    block[BLOCK_ENTRIES] += 1
    block[BLOCK_BYTES] = 0


@njit(nogil=True, cache=True)
def append(output: Output, batches: ByteArray, length: Integer, data_start: Integer, at: Integer) -> Integer:
    """Append batches as `SegmentFileWriter.append` does; return the end, or -1 if memory is too small."""
    out, block = output.out, output.block
    start = 0
    while start < length:
        size = load_i32(batches, start + BATCH_LENGTH) + LENGTH_OVERHEAD
        if block[BLOCK_BYTES] > 0 and block[BLOCK_BYTES] + size > output.block_target:
            end_data(output, data_start, at)
        if at + _HEADER + size > out.size or block[BLOCK_ENTRIES] == len(output.index):
            return -1
        newest = load_i64(batches, start + MAX_TIMESTAMP)
        if block[BLOCK_BYTES] == 0:
            block[BLOCK_START] = at
            block[BLOCK_BASE] = load_i64(batches, start + BASE_OFFSET)
            block[BLOCK_NEWEST] = newest
            at += _HEADER
        block[BLOCK_NEWEST] = max(block[BLOCK_NEWEST], newest)
        block[BLOCK_BYTES] += size
        block[BLOCK_BATCHES] += 1
        copy_bytes(batches, start, out, at, size)
        at += size
        start += size
    if block[BLOCK_BYTES] >= output.block_target // 2:
        end_data(output, data_start, at)
    return at


@njit(nogil=True, cache=True)
def merges_within(group: Group, p: Integer, n: Integer) -> Integer:
    """Return True if the batches of a piece may be merged, see `within_one_epoch`."""
    piece = group.pieces[n]
    if group.partitions[p, MERGES] == 0:
        return False
    if group.extents[piece[PIECE_EXTENT], EXTENT_EPOCH] >= 0:
        return True
    first = piece[PIECE_START] + group.rows[piece[PIECE_ROW]].position
    last = piece[PIECE_START] + group.rows[piece[PIECE_ROWS_END] - 1].position
    return load_i32(group.data, first + LEADER_EPOCH) == load_i32(group.data, last + LEADER_EPOCH)


@njit(nogil=True, cache=True)
def filter_piece(
    group: Group, output: Output, p: Integer, n: Integer, kept: IntArray, tombstones: IntArray
) -> Integers:
    """Write the survivors of a piece to `work`, or to `compressed` if its batches are compressed.

    Returns True for the latter, and the length, which is -1 if this is not possible.
    """
    piece, partition = group.pieces[n], group.partitions[p]
    start, end = piece[PIECE_START], piece[PIECE_END]
    data, rows = group.data[start:end], group.rows[piece[PIECE_ROW] : piece[PIECE_ROWS_END]]
    compressed = piece[PIECE_COMPRESSED] != 0
    if (partition[MERGED_CODEC] > 0 and not compressed) or rows.size > len(output.rewritten):
        return False, -1
    fault, _position, length, count = filter_opened(
        data,
        group.records if compressed else data,
        rows,
        group.bounds[piece[PIECE_EXTENT], 2],
        group.extents[piece[PIECE_EXTENT], EXTENT_EPOCH],
        kept,
        tombstones,
        partition[HAS_HORIZON] != 0,
        partition[HORIZON],
        merges_within(group, p, n),
        partition[MAX_MERGED],
        partition[MAX_MERGED_COMPRESSED],
        output.scratch_bytes if compressed else _INT64_MAX,
        output.work,
        output.rewritten,
        output.totals,
    )
    if fault or length < 0:
        return False, -1
    rewritten = output.rewritten[:count]
    if compressed:
        length = compress_batches(
            output.work, length, rewritten, partition[MERGED_CODEC], output.compressed, group.codec_table
        )
        if length < 0:
            return True, -1
    target = output.compressed if compressed else output.work
    for i in range(count):
        first, stop = rewritten[i, 0], rewritten[i, 1]
        store(target, first + CRC, extend_by_range(0, target, first + ATTRIBUTES, stop), 4)
        if rewritten[i, 3]:
            output.block[BLOCK_SAVED] += rewritten[i, 3] - (stop - first)
    return compressed, length


@njit(nogil=True, cache=True)
def copy_piece(group: Group, output: Output, n: Integer, filled: Integer) -> Integers:
    """Copy a piece to `work` with its final offsets; return its length, and the end of the offsets in `kept`.

    The length is -1 if a batch has fewer records than offsets.
    """
    piece = group.pieces[n]
    extent = piece[PIECE_EXTENT]
    shift = group.bounds[extent, 2]
    length = piece[PIECE_END] - piece[PIECE_START]
    if length > output.work.size:
        return -1, filled
    records = 0
    for r in range(piece[PIECE_ROW], piece[PIECE_ROWS_END]):
        row = group.rows[r]
        count = row.record_count
        if 0 < count <= row.last_offset_delta or filled + count > output.kept.size:
            return -1, filled
        for i in range(count):
            output.kept[filled + i] = row.base_offset + shift + i
        filled += count
        records += count
    copy_bytes(group.data, piece[PIECE_START], output.work, 0, length)
    shift_offsets(output.work[:length], shift, group.extents[extent, EXTENT_EPOCH])
    if records:
        oldest, newest = group.extents[extent, EXTENT_OLDEST], group.extents[extent, EXTENT_NEWEST]
        add_totals(output.totals, records, oldest, newest)
    return length, filled


@njit(nogil=True, cache=True)
def write_bitmap_head(containers: IntArray, out: ByteArray, at: Integer) -> Integer:
    """Write the start of a bitmap with one group and these containers; return the position after it."""
    count = len(containers)
    at = store_little_endian(out, at, 1, 8)  # groups
    at = store_little_endian(out, at, 0, 4)  # upper half of the first one's values
    begin = at
    any_runs = False
    for c in range(count):
        any_runs |= containers[c, 2] != 0
    if any_runs:
        at = store_little_endian(out, at, COOKIE_WITH_RUNS | (count - 1) << 16, 4)
        for first in range(0, count, 8):
            bits = 0
            for c in range(first, min(first + 8, count)):
                bits |= int(containers[c, 2] != 0) << (c - first)
            at = store_little_endian(out, at, bits, 1)
    else:
        at = store_little_endian(out, store_little_endian(out, at, COOKIE, 4), count, 4)
    for c in range(count):
        at = store_little_endian(out, at, containers[c, 0], 2)
        at = store_little_endian(out, at, containers[c, 1] - 1, 2)
    if any_runs and count < FEW_CONTAINERS:
        return at
    position = at - begin + 4 * count
    for c in range(count):
        at = store_little_endian(out, at, position, 4)
        position += containers[c, 3]
    return at


@njit(nogil=True, cache=True)
def write_holes(output: Output, kept: IntArray, base: Integer, upper: Integer, at: Integer) -> Integer:
    """Write the holes as `holes_between` does; return the end, or -1 if memory is too small.

    `kept` is changed: its offsets become relative.
    """
    for i in range(kept.size):
        kept[i] -= base
    length, count = write_complement(kept, 0, upper - base, output.holes, 0, output.containers, 0)
    if length < 0 or at + _SINGLE_GROUP + 8 + 9 * count + length > output.out.size:
        return -1
    if count == 0:
        return store_little_endian(output.out, at, 0, _EMPTY_HOLES)
    at = write_bitmap_head(output.containers[:count], output.out, at)
    copy_bytes(output.holes, 0, output.out, at, length)
    return at + length


@njit(nogil=True, cache=True)
def write_index(output: Output, data_length: Integer, at: Integer) -> Integer:
    """Write the block of the section's index; return its end."""
    start = at
    store(output.out, at + _HEADER, data_length, 8)
    at += _HEADER + 8
    for i in range(output.block[BLOCK_ENTRIES]):
        for k in range(_INDEX_FIELDS):
            store(output.out, at, output.index[i, k], 8)
            at += 8
    end_block(output, _INDEX, OPTIONAL, start, at)
    return at


@njit(nogil=True, cache=True)
def write_footer(group: Group, output: Output, p: Integer, data_length: Integer, at: Integer) -> Integer:
    """Write the block of the section's footer; return its end."""
    totals, partition = output.totals, group.partitions[p]
    records = totals[TOTAL_RECORDS]
    start = at
    at += _HEADER
    for value in (
        partition[FIRST_OFFSET],
        partition[UPPER_OFFSET] - 1,
        records,
        output.block[BLOCK_BATCHES],
        data_length,
        totals[TOTAL_LOWEST] if records else NO_TIMESTAMP,
        totals[TOTAL_HIGHEST] if records else NO_TIMESTAMP,
        (UNIQUE_KEYS_FLAG if partition[UNIQUE_KEYS] else 0) << 32,
    ):
        store(output.out, at, value, 8)
        at += 8
    end_block(output, _FOOTER, 0, start, at)
    return at


@njit(nogil=True, cache=True)
def begin_section(group: Group, output: Output, p: Integer, at: Integer) -> Integer:
    """Write the section's header and reset the state; return the position of its data, or -1."""
    if at + _SECTION_BYTES > output.out.size:
        return -1
    start = at
    copy_bytes(group.topics, p * _TOPIC_BYTES, output.out, at + _HEADER, _TOPIC_BYTES)
    at += _HEADER + _TOPIC_BYTES
    store(output.out, at, group.partitions[p, NUMBER], 4)
    store(output.out, at + 4, 0, 4)
    end_block(output, _SECTION_START, 0, start, at + 8)
    totals = output.totals
    totals[TOTAL_RECORDS] = 0
    totals[TOTAL_LOWEST], totals[TOTAL_HIGHEST] = _INT64_MAX, _INT64_MIN
    output.block[:] = 0
    return at + 8


@njit(nogil=True, cache=True)
def end_section(
    group: Group, output: Output, p: Integer, kept: IntArray, data: Integer, at: Integer
) -> Integer:
    """Write the parts of the section after its batches; return its end, or -1 if memory is too small."""
    if output.block[BLOCK_BYTES]:
        end_data(output, data, at)
    entries, records = output.block[BLOCK_ENTRIES], output.totals[TOTAL_RECORDS]
    if records and not -_INT64_MAX <= output.totals[TOTAL_LOWEST] <= output.totals[TOTAL_HIGHEST]:
        return -1
    if at + _SECTION_BYTES + _INDEX_ENTRY * entries > output.out.size:
        return -1
    length = at - data
    section = output.sections[p]
    section[:] = 0
    if length:
        section[OUT_DATA], section[OUT_DATA_LENGTH] = output.position + data, length
        end = write_index(output, length, at)
        section[OUT_INDEX], section[OUT_INDEX_LENGTH] = output.position + at, end - at
        at = end
    partition = group.partitions[p]
    end = write_holes(output, kept, partition[FIRST_OFFSET], partition[UPPER_OFFSET], at + _HEADER)
    if end < 0 or end + _HEADER + _FOOTER_BYTES > output.out.size:
        return -1
    end_block(output, _HOLES, 0, at, end)
    section[OUT_HOLES], section[OUT_HOLES_LENGTH] = output.position + at, end - at
    at = write_footer(group, output, p, length, end)
    section[OUT_END] = output.position + at
    section[OUT_RECORDS], section[OUT_SAVED] = records, output.block[BLOCK_SAVED]
    section[OUT_OLDEST] = output.totals[TOTAL_LOWEST] if records else NO_TIMESTAMP
    section[OUT_NEWEST] = output.totals[TOTAL_HIGHEST] if records else NO_TIMESTAMP
    return at


@njit(nogil=True, cache=True)
def write_filtered(
    group: Group,
    output: Output,
    p: Integer,
    first: Integer,
    kept: IntArray,
    tombstones: IntArray,
    at: Integer,
) -> Integer:
    """Write the survivors of the pieces from `first` on as a section; return its end, or -1."""
    data = begin_section(group, output, p, at)
    if data < 0:
        return -1
    at = data
    for n in range(first, group.piece_ends[p]):
        compressed, length = filter_piece(group, output, p, n, kept, tombstones)
        if length < 0:
            return -1
        at = append(output, output.compressed if compressed else output.work, length, data, at)
        if at < 0:
            return -1
    if output.totals[TOTAL_RECORDS] != kept.size:
        return -1
    return end_section(group, output, p, kept, data, at)


@njit(nogil=True, cache=True)
def write_copied(group: Group, output: Output, p: Integer, first: Integer, at: Integer) -> Integer:
    """Write all records of the pieces from `first` on as a section; return its end, or -1."""
    data = begin_section(group, output, p, at)
    if data < 0:
        return -1
    at = data
    filled = first * 0
    for n in range(first, group.piece_ends[p]):
        length, filled = copy_piece(group, output, n, filled)
        if length < 0:
            return -1
        at = append(output, output.work, length, data, at)
        if at < 0:
            return -1
    return end_section(group, output, p, output.kept[:filled], data, at)


@njit(nogil=True, cache=True)
def write_partitions(
    group: Group, count: Integer, survivors: Survivors, filters: Integer, output: Output, max_data: Integer
) -> Integer:
    """Write the sections of up to `count` partitions; return their number.

    Without `filters`, all records are kept. The partition whose data reaches `max_data` bytes, together with
    that of the partitions before it, is the last one.
    """
    first = kept = deleted = at = written = count * 0
    for p in range(count):
        start = at
        if filters:
            at = write_filtered(
                group,
                output,
                p,
                first,
                survivors.offsets[kept : survivors.offset_ends[p]],
                survivors.tombstones[deleted : survivors.tombstone_ends[p]],
                at,
            )
            kept, deleted = survivors.offset_ends[p], survivors.tombstone_ends[p]
        else:
            at = write_copied(group, output, p, first, at)
        if at < 0:
            return p
        output.sections[p, OUT_START] = output.position + start
        first = group.piece_ends[p]
        written += output.sections[p, OUT_DATA_LENGTH]
        if written >= max_data:
            return p + 1
    return count
