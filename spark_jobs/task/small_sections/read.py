"""Kernel that verifies the sections of many partitions and finds their batches.

It applies the rules of `RangeReader`, `BlockChecker`, `ExtentCutter` and `scan_ordered_batches`. It reports
no faults: it stops before the first partition that is not flawless, or whose batches a kernel cannot open.
The task then reads this partition with those classes, which raise the error or know more codecs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from numba import njit

from object_format.kernels.batches.headers import count_batches, first_out_of_order, read_headers, sum_up
from object_format.kernels.codecs.native import decompress_rows
from object_format.kernels.hashing.checksums import extend_by_number
from object_format.kernels.hashing.crc32c import extend_by_range
from object_format.kernels.runtime.primitives import load_i32, load_u32
from object_format.segment_file.layout import (
    BLOCK_HEADER,
    IGNORED_BLOCK_FLAGS,
    SECTION_START_LENGTH,
    BlockType,
)
from spark_jobs.task.small_sections.columns import (
    ABORTED,
    ABORTED_END,
    EXTENT_RECORDS,
    FILE_END,
    FILE_POSITION,
    FILE_SEED,
    FILE_START,
    NUMBER,
    PIECE_COMPRESSED,
    PIECE_END,
    PIECE_EXTENT,
    PIECE_ROW,
    PIECE_ROWS_END,
    PIECE_SECTION,
    PIECE_START,
    SECTION_END,
    SECTION_EXTENT,
    SECTION_EXTENTS_END,
    SECTION_FILE,
    SECTION_START,
    SECTIONS,
    SECTIONS_END,
)
from spark_jobs.task.small_sections.cut import cut_batches

if TYPE_CHECKING:
    from object_format.kernels.runtime.signatures import ByteArray, Integer, Integers
    from spark_jobs.task.small_sections.columns import Group

_BLOCK_HEADER = BLOCK_HEADER.size
_CHECKED_HEADER = 8
"""Bytes of a block's header that its checksum covers."""

_DATA = int(BlockType.DATA)
_SECTION_HEADER = int(BlockType.SECTION_HEADER)
_REFUSED_FLAGS = 0xFF & ~IGNORED_BLOCK_FLAGS
_TOPIC_BYTES = 16


@njit(nogil=True, cache=True)
def block_checksum(data: ByteArray, at: Integer, end: Integer, seed: Integer, position: Integer) -> Integer:
    """Return the checksum of the block data[at:end], which is at byte `position` of its file."""
    checksum = extend_by_number(seed, position, 8)
    checksum = extend_by_range(checksum, data, at, at + _CHECKED_HEADER)
    return extend_by_range(checksum, data, at + _BLOCK_HEADER, end)


@njit(nogil=True, cache=True)
def is_other_section(group: Group, p: Integer, file: Integer, position: Integer) -> Integer:
    """Return True if the header of another section than that of partition `p` is at this position."""
    data = group.data
    at = position - group.files[file, FILE_POSITION] + group.files[file, FILE_START]
    if data[at] != _SECTION_HEADER:
        return False
    checksum = block_checksum(data, at, at + SECTION_START_LENGTH, group.files[file, FILE_SEED], position)
    if checksum != load_u32(data, at + _CHECKED_HEADER):
        return False
    at += _BLOCK_HEADER
    for i in range(_TOPIC_BYTES):
        if data[at + i] != group.topics[p * _TOPIC_BYTES + i]:
            return True
    number = load_i32(data, at + _TOPIC_BYTES)
    return number != group.partitions[p, NUMBER] or load_u32(data, at + _TOPIC_BYTES + 4) != 0


@njit(nogil=True, cache=True)
def block_end(group: Group, file: Integer, position: Integer, limit: Integer) -> Integer:
    """Return the end of the DATA block at this position of the file; -1 unless it is sound."""
    data = group.data
    if limit - position < _BLOCK_HEADER:
        return -1
    at = position - group.files[file, FILE_POSITION] + group.files[file, FILE_START]
    length = load_u32(data, at + 4)
    if (
        data[at] != _DATA
        or data[at + 1] & _REFUSED_FLAGS != 0
        or data[at + 2] != 0
        or data[at + 3] != 0
        or length > limit - position - _BLOCK_HEADER
    ):
        return -1
    end = at + _BLOCK_HEADER + length
    checksum = block_checksum(data, at, end, group.files[file, FILE_SEED], position)
    if checksum != load_u32(data, at + _CHECKED_HEADER):
        return -1
    return position + _BLOCK_HEADER + length


@njit(nogil=True, cache=True)
def add_piece(
    group: Group, number: Integer, start: Integer, end: Integer, row: Integer, shift: Integer, lowest: Integer
) -> Integers:
    """Fill a row for each batch of data[start:end]; return the end of the rows and the next offset.

    The end is -1 if the batches are not in order from `lowest` on, or if there are too many of them.
    """
    batches = group.data[start:end]
    count, fault, _position = count_batches(batches)
    if fault or row + count > group.rows.size:
        return -1, lowest
    rows = group.rows[row : row + count]
    read_headers(batches, rows)
    if first_out_of_order(rows, shift, lowest) >= 0:
        return -1, lowest
    piece = group.pieces[number]
    piece[PIECE_START], piece[PIECE_END] = start, end
    piece[PIECE_ROW], piece[PIECE_ROWS_END] = row, row + count
    piece[PIECE_COMPRESSED] = sum_up(rows)[0]
    return row + count, rows[count - 1].base_offset + rows[count - 1].last_offset_delta + 1 + shift


@njit(nogil=True, cache=True)
def add_block(
    group: Group,
    p: Integer,
    s: Integer,
    start: Integer,
    end: Integer,
    previous: Integer,
    lowest: Integer,
    piece: Integer,
    row: Integer,
) -> Integers:
    """Cut the payload data[start:end] of a block; return the ends of pieces and rows, and the last offsets.

    The end of the pieces is -1 if the block is not flawless.
    """
    first, extents_end = group.sections[s, SECTION_EXTENT], group.sections[s, SECTION_EXTENTS_END]
    count, fault, _position, previous = cut_batches(
        group.data[start:end],
        group.bounds[first:extents_end],
        group.aborted[group.partitions[p, ABORTED] : group.partitions[p, ABORTED_END]],
        group.cut,
        group.dropped[first:extents_end],
        previous,
    )
    if fault or piece + count > len(group.pieces):
        return -1, row, previous, lowest
    for c in range(count):
        extent = first + group.cut[c, 2]
        row, lowest = add_piece(
            group,
            piece,
            start + group.cut[c, 0],
            start + group.cut[c, 1],
            row,
            group.bounds[extent, 2],
            lowest,
        )
        if row < 0:
            return -1, row, previous, lowest
        group.pieces[piece, PIECE_SECTION] = s
        group.pieces[piece, PIECE_EXTENT] = extent
        group.found[extent] += group.cut[c, 4]
        piece += 1
    return piece, row, previous, lowest


@njit(nogil=True, cache=True)
def add_section(group: Group, p: Integer, s: Integer, piece: Integer, row: Integer) -> Integers:
    """Add the pieces of a section; return the ends of pieces and rows, or -1 unless it is flawless."""
    file = group.sections[s, SECTION_FILE]
    position, limit = group.sections[s, SECTION_START], group.sections[s, SECTION_END]
    offset = group.files[file, FILE_START] - group.files[file, FILE_POSITION]
    if (
        position - SECTION_START_LENGTH < group.files[file, FILE_POSITION]
        or limit + offset > (group.files[file, FILE_END])
    ):
        return -1, row
    if is_other_section(group, p, file, position - SECTION_START_LENGTH):
        return -1, row
    first, end = group.sections[s, SECTION_EXTENT], group.sections[s, SECTION_EXTENTS_END]
    group.found[first:end] = 0
    group.dropped[first:end] = 0
    previous = lowest = row * 0
    previous -= 1
    while position < limit:
        stop = block_end(group, file, position, limit)
        if stop < 0:
            return -1, row
        piece, row, previous, lowest = add_block(
            group, p, s, position + offset + _BLOCK_HEADER, stop + offset, previous, lowest, piece, row
        )
        if piece < 0:
            return -1, row
        position = stop
    for e in range(first, end):
        if group.found[e] + group.dropped[e] != group.extents[e, EXTENT_RECORDS]:
            return -1, row
    return piece, row


@njit(nogil=True, cache=True)
def open_pieces(group: Group, first: Integer, end: Integer, used: Integer) -> Integer:
    """Decompress pieces to `opened` from `used` on; return the end of the used memory.

    Return -1 if they do not fit, have a codec that kernels do not support, or mix compressed batches and
    others.
    """
    for n in range(first, end):
        piece = group.pieces[n]
        if piece[PIECE_COMPRESSED] == 0:
            continue
        rows = group.rows[piece[PIECE_ROW] : piece[PIECE_ROWS_END]]
        if piece[PIECE_COMPRESSED] < rows.size:
            return -1
        done, used = decompress_rows(
            group.data[piece[PIECE_START] : piece[PIECE_END]],
            rows,
            group.indexes[: rows.size],
            0,
            group.opened,
            used,
            group.codec_table,
        )
        if done < rows.size:
            return -1
    return used


@njit(nogil=True, cache=True)
def read_partitions(group: Group, count: Integer, opens: Integer) -> Integer:
    """Fill `pieces` and `rows` for the first `count` partitions; return how many of them could be read.

    With `opens`, compressed batches are decompressed to `opened`.
    """
    piece = row = used = count * 0
    for p in range(count):
        first = piece
        for s in range(group.partitions[p, SECTIONS], group.partitions[p, SECTIONS_END]):
            piece, row = add_section(group, p, s, piece, row)
            if piece < 0:
                return p
        if opens:
            used = open_pieces(group, first, piece, used)
            if used < 0:
                return p
        group.piece_ends[p] = piece
    return count
