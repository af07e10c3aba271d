"""The DATA blocks of batches whose headers are known, and their checksums, without a look at the bytes.

A batch's own checksum covers it from its attributes on. What lies before that has 21 bytes: base offset,
length, partition leader epoch, magic and that checksum. So a block's checksum follows from what stands in the
headers of its batches, and says what the producers said, whatever became of the bytes since.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

from core.errors import InvalidInputError
from object_format.kernels.hashing.checksums import extend_by_number, extend_by_part
from object_format.segment_file.layout import BLOCK_HEADER, MAX_PAYLOAD, BlockType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from object_format.kernels.runtime.signatures import IntArray, Integer, Integers

_DATA = int(BlockType.DATA)
_HEADER = BLOCK_HEADER.size
_MIN_BATCH = 61
_BEFORE_LENGTH = 12
_MAGIC = 2
_UNCOVERED = 21
_SIZE, _ORDER = 1, 2


class VerifiedBatches(NamedTuple):
    """Whole batches of one partition, at least one, as columns: in each, a value for each batch.

    `base_offsets` stand in their headers, with leader epoch 0; `checksums` are those of the headers, and
    right. `last_offset` is that of the last batch, `record_count` that of all.
    """

    views: Sequence[memoryview]
    base_offsets: Sequence[int]
    checksums: Sequence[int]
    max_timestamps: Sequence[int]
    last_offset: int
    record_count: int


class BlockPlan(NamedTuple):
    """A DATA block: the number of the batch behind its last one, its payload's length, its checksum."""

    end: int
    length: int
    checksum: int


def check_columns(batches: VerifiedBatches) -> None:
    """Raises InvalidInputError for what cannot be: no batches, other columns' lengths, fields out of range.

    Whether offsets ascend `split_verified` sees.
    """
    views, base_offsets, checksums, timestamps, last_offset, records = batches
    lengths = [len(views), len(base_offsets), len(checksums), len(timestamps)]
    if not lengths[0] or lengths != lengths[:1] * 4:
        raise InvalidInputError(f"the columns must have the same length, at least 1, but have {lengths}")
    if base_offsets[-1] > last_offset:
        raise InvalidInputError(
            f"a last batch at offset {base_offsets[-1]} does not agree with {last_offset} as the last offset"
        )
    if min(checksums) < 0 or max(checksums) >= 1 << 32:
        raise InvalidInputError("a checksum is not in 0..2^32-1")
    if records < 0:
        raise InvalidInputError(f"batches of {records} records")


@njit(nogil=True, cache=True)
def _extend_by_batch(checksum: Integer, base_offset: Integer, size: Integer, own: Integer) -> Integer:
    """The checksum with a batch of `size` bytes behind it, of leader epoch 0, whose own checksum is `own`."""
    checksum = extend_by_number(checksum, base_offset, 8)
    checksum = extend_by_number(checksum, size - _BEFORE_LENGTH, 4)
    checksum = extend_by_number(checksum, 0, 4)
    checksum = extend_by_number(checksum, _MAGIC, 1)
    checksum = extend_by_number(checksum, own, 4)
    return extend_by_part(checksum, own, size - _UNCOVERED)


@njit(nogil=True, cache=True)
def _split(
    sizes: IntArray,
    base_offsets: IntArray,
    checksums: IntArray,
    target: Integer,
    seed: Integer,
    position: Integer,
    blocks: IntArray,
) -> Integers:
    """Rows of `BlockPlan`: how many, what is wrong (0 for nothing), and with which batch."""
    count = start = 0
    while start < sizes.size:
        length, end = 0, start
        while end < sizes.size and (end == start or length + sizes[end] <= target):
            if sizes[end] < _MIN_BATCH or sizes[end] > MAX_PAYLOAD:
                return count, _SIZE, end
            if base_offsets[end] < 0 or (end > 0 and base_offsets[end] <= base_offsets[end - 1]):
                return count, _ORDER, end
            length += sizes[end]
            end += 1
        checksum = extend_by_number(seed, position, 8)
        checksum = extend_by_number(checksum, _DATA, 1)
        checksum = extend_by_number(checksum, 0, 3)  # flags and what is reserved
        checksum = extend_by_number(checksum, length, 4)
        for number in range(start, end):
            checksum = _extend_by_batch(checksum, base_offsets[number], sizes[number], checksums[number])
        blocks[count, 0] = end
        blocks[count, 1] = length
        blocks[count, 2] = checksum
        count += 1
        position += _HEADER + length
        start = end
    return count, 0, 0


def split_verified(batches: VerifiedBatches, *, target: int, seed: int, position: int) -> list[BlockPlan]:
    """Cut batches into blocks of at most `target` bytes, or of one batch that is larger.

    The first block begins at `position` of a file with the checksum `seed` (`checksum.file_seed`). Raises
    InvalidInputError for a size that no batch has, and for offsets that do not ascend.
    """
    sizes = [len(view) for view in batches.views]
    base_offsets = batches.base_offsets
    columns = np.array((sizes, base_offsets, batches.checksums), np.int64)
    # Two neighbouring blocks hold more than a target together, or else they would be one.
    blocks = np.empty((min(len(sizes), 2 * (sum(sizes) // target) + 1), 3), np.int64)
    count, fault, number = _split(columns[0], columns[1], columns[2], target, seed, position, blocks)
    if fault == _SIZE:
        raise InvalidInputError(f"a batch of {sizes[number]} bytes is not of {_MIN_BATCH} to {MAX_PAYLOAD}")
    if fault == _ORDER:
        raise InvalidInputError(
            f"a batch at offset {base_offsets[number]} does not follow the one before",
            remedy="add the batches of one partition in the order of their offsets",
        )
    return [BlockPlan(*row) for row in blocks[:count].tolist()]
