"""DATA blocks of batches with verified checksums: block checksums are derived without reading the bytes.

A batch's own checksum covers it from its attributes on. The 21 bytes before that are base offset, length,
partition leader epoch, magic and the checksum itself. The checksum of a block therefore follows from the
headers of its batches. It confirms the bytes that the producer sent: any change of them in memory is detected
later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numba import njit

from core.errors import InvalidInputError
from object_format.kernels.batches.layout import ATTRIBUTES, BATCH_OVERHEAD, LENGTH_OVERHEAD
from object_format.kernels.hashing.checksums import extend_by_number, extend_by_part
from object_format.segment_file.layout import BLOCK_HEADER, MAX_PAYLOAD, BlockType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from object_format.kernels.runtime.signatures import IntArray, Integer, Integers

_DATA = int(BlockType.DATA)
_HEADER = BLOCK_HEADER.size
_MAGIC = 2
_SIZE, _ORDER = 1, 2


class VerifiedBatches(NamedTuple):
    """Batches of one partition, at least one, as columns with one value per batch.

    `base_offsets` are those of the headers, whose leader epoch is 0. `checksums` are those of the headers,
    and have been verified. `last_offset` is that of the last batch, and `record_count` the total.
    """

    views: Sequence[memoryview]
    base_offsets: Sequence[int]
    checksums: Sequence[int]
    max_timestamps: Sequence[int]
    last_offset: int
    record_count: int


class BlockPlan(NamedTuple):
    """A DATA block: index of the batch after its last one, length of its payload, and its checksum."""

    end: int
    length: int
    checksum: int


def check_columns(batches: VerifiedBatches) -> None:
    """Raise InvalidInputError if there is no batch, columns differ in length, or values are out of range.

    The order of offsets is checked by `split_verified`.
    """
    views, base_offsets, checksums, timestamps, last_offset, records = batches
    lengths = [len(views), len(base_offsets), len(checksums), len(timestamps)]
    if not lengths[0] or lengths != lengths[:1] * 4:
        raise InvalidInputError(f"the columns must have the same length, at least 1, but have {lengths}")
    if base_offsets[-1] > last_offset:
        raise InvalidInputError(
            f"a last batch at offset {base_offsets[-1]} does not agree with the last offset {last_offset}"
        )
    if min(checksums) < 0 or max(checksums) >= 1 << 32:
        raise InvalidInputError("a checksum is not in 0..2^32-1")
    if records < 0:
        raise InvalidInputError(f"batches cannot have {records} records")


@njit(nogil=True, cache=True)
def _extend_by_batch(checksum: Integer, base_offset: Integer, size: Integer, own: Integer) -> Integer:
    """Return the checksum after a batch of `size` bytes with leader epoch 0, whose own checksum is `own`."""
    checksum = extend_by_number(checksum, base_offset, 8)
    checksum = extend_by_number(checksum, size - LENGTH_OVERHEAD, 4)
    checksum = extend_by_number(checksum, 0, 4)
    checksum = extend_by_number(checksum, _MAGIC, 1)
    checksum = extend_by_number(checksum, own, 4)
    return extend_by_part(checksum, own, size - ATTRIBUTES)


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
    """Fill rows of `BlockPlan`; return their number, the fault (or 0), and the index of the faulty batch."""
    count = start = 0
    while start < sizes.size:
        length, end = 0, start
        while end < sizes.size and (end == start or length + sizes[end] <= target):
            if sizes[end] < BATCH_OVERHEAD or sizes[end] > MAX_PAYLOAD:
                return count, _SIZE, end
            if base_offsets[end] < 0 or (end > 0 and base_offsets[end] <= base_offsets[end - 1]):
                return count, _ORDER, end
            length += sizes[end]
            end += 1
        checksum = extend_by_number(seed, position, 8)
        checksum = extend_by_number(checksum, _DATA, 1)
        checksum = extend_by_number(checksum, 0, 3)  # flags and reserved bytes
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
    """Split batches into blocks of at most `target` bytes; a larger batch gets a separate block.

    The first block starts at `position` of a file with the checksum seed `seed` (see `checksum.file_seed`).
    Raises InvalidInputError for invalid sizes, and for offsets that are not ascending.
    """
    sizes = [len(view) for view in batches.views]
    base_offsets = batches.base_offsets
    columns = np.array((sizes, base_offsets, batches.checksums), np.int64)
    # Two adjacent blocks together exceed the target; otherwise they would be one block.
    blocks = np.empty((min(len(sizes), 2 * (sum(sizes) // target) + 1), 3), np.int64)
    count, fault, number = _split(columns[0], columns[1], columns[2], target, seed, position, blocks)
    if fault == _SIZE:
        raise InvalidInputError(f"a batch of {sizes[number]} bytes is not in {BATCH_OVERHEAD}..{MAX_PAYLOAD}")
    if fault == _ORDER:
        raise InvalidInputError(
            f"a batch at offset {base_offsets[number]} does not follow the previous one",
            remedy="append the batches of one partition in offset order",
        )
    return [BlockPlan(*row) for row in blocks[:count].tolist()]
