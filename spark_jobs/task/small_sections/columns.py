"""Columns that describe a group of small partitions to kernels: partitions, sections, extents and files.

Constants are the indexes of fields in rows of int64. Positions count from byte 0 of a file, and the bytes of
all files of a group are in one array.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy.typing as npt

    from object_format.kernels.runtime.signatures import ByteArray, IntArray, Rows

FILE_SEED, FILE_POSITION, FILE_START, FILE_END = range(4)
FILE_FIELDS = 4
"""Checksum of the file id; position of the first byte in the file; range of the bytes in the array."""

SECTION_FILE, SECTION_START, SECTION_END, SECTION_EXTENT, SECTION_EXTENTS_END = range(5)
SECTION_FIELDS = 5
"""Index of the file; range of the DATA blocks in the file; range of the extents."""

EXTENT_EPOCH, EXTENT_RECORDS, EXTENT_OLDEST, EXTENT_NEWEST = range(4)
EXTENT_FIELDS = 4
"""Leader epoch, number of records, and timestamps. Offsets are in `Group.bounds`, for `cut_batches`."""

(
    SECTIONS,
    SECTIONS_END,
    ABORTED,
    ABORTED_END,
    NUMBER,
    BASE_OFFSET,
    UPPER_OFFSET,
    REACHES_LOG_START,
    UNIQUE_KEYS,
    HAS_HORIZON,
    HORIZON,
    MERGES,
    MERGED_CODEC,
    MAX_MERGED,
    MAX_MERGED_COMPRESSED,
) = range(15)
PARTITION_FIELDS = 15
"""Fields of partitions.

Ranges of sections and of aborted transactions; the partition's number; the range of offsets; then the fields
of `RewriteOptions`, with `NO_CODEC` for None.
"""

NO_CODEC = -1

PIECE_SECTION, PIECE_EXTENT, PIECE_START, PIECE_END, PIECE_ROW, PIECE_ROWS_END, PIECE_COMPRESSED = range(7)
PIECE_FIELDS = 7
"""A piece is what `ExtentCutter` returns: adjacent batches of one extent in one block.

Indexes of the section and the extent; range in the array of bytes; range of the rows of its batches; whether
the batches are compressed.
"""

(
    OUT_START,
    OUT_END,
    OUT_DATA,
    OUT_DATA_LENGTH,
    OUT_INDEX,
    OUT_INDEX_LENGTH,
    OUT_HOLES,
    OUT_HOLES_LENGTH,
    OUT_RECORDS,
    OUT_SAVED,
    OUT_OLDEST,
    OUT_NEWEST,
) = range(12)
OUT_FIELDS = 12
"""An output section: positions in the output file, lengths, fields of its footer, and the bytes that
merging saved."""


class Group(NamedTuple):
    """Arguments of the kernels.

    `data` has the bytes of the files. `topics` has 16 bytes for each partition. `bounds` and `aborted` are
    those of `cut_batches`. The kernels fill the arrays from `pieces` on. `piece_ends` and `row_ends` have the
    end of each partition in `pieces` and `rows`. The records of compressed batches are in `opened`, and
    `records` is a read-only view of it. `found` and `dropped` count the records of each extent.
    """

    data: ByteArray
    files: IntArray
    partitions: IntArray
    topics: ByteArray
    sections: IntArray
    extents: IntArray
    bounds: IntArray
    aborted: IntArray
    pieces: IntArray
    rows: Rows
    piece_ends: IntArray
    cut: IntArray
    found: IntArray
    dropped: IntArray
    opened: ByteArray
    records: ByteArray
    indexes: IntArray
    codec_table: IntArray


class Survivors(NamedTuple):
    """Surviving offsets of all partitions of a group, and the ends of each partition in both arrays."""

    offsets: npt.NDArray[IntArray]
    offset_ends: npt.NDArray[IntArray]
    tombstones: npt.NDArray[IntArray]
    tombstone_ends: npt.NDArray[IntArray]
