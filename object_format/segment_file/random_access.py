"""Reads parts of a section at known positions: DATA blocks, the sparse index, and holes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import numpy as np

from core.errors import CorruptDataError, InvalidInputError
from object_format.holes import parse_holes
from object_format.segment_file.block_checker import BlockChecker, type_name
from object_format.segment_file.checksum import file_seed
from object_format.segment_file.layout import BLOCK_HEADER, INDEX_ENTRY, INDEX_HEADER, BlockType

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    import numpy.typing as npt
    from pyroaring import BitMap64
    from typing_extensions import Buffer

    from object_format.segment_file.block_payloads import SectionEntry

_INDEX_DTYPE = np.dtype([("base_offset", ">i8"), ("max_timestamp", ">i8"), ("position", ">u8")])
assert _INDEX_DTYPE.itemsize == INDEX_ENTRY.size


def parse_data_blocks(
    data: Buffer, *, name: str, file_id: UUID, position: int, section: tuple[UUID, int] | None = None
) -> Iterator[memoryview]:
    """Yield the payloads of `data`, a sequence of DATA blocks read from byte `position` of the file.

    Each payload is a view of `data`, writable if `data` is, and has been verified. Offsets may be patched in
    place; the block cannot be verified again afterwards. `section` is used in messages. Raises
    CorruptSegmentError, also if `data` is not complete DATA blocks of this file at this position.
    """
    checker = BlockChecker(file=name, seed=file_seed(file_id), section=section)
    view = memoryview(data)
    start = 0
    while start < len(view):
        at = position + start
        if len(view) - start < BLOCK_HEADER.size:
            raise checker.corrupt(
                f"the range ends within a block's header, at byte {position + len(view)}", at
            )
        header = checker.header(view[start : start + BLOCK_HEADER.size], at, position + len(view))
        if header.kind != BlockType.DATA:
            raise checker.corrupt(f"a {type_name(header.kind)} block instead of DATA", at)
        payload = view[start + BLOCK_HEADER.size : start + header.size]
        checker.verify(header, at, payload)
        yield payload
        start += header.size


def parse_holes_block(block: Buffer, *, name: str, file_id: UUID, entry: SectionEntry) -> BitMap64:
    """Return the holes of the section `entry`, relative to its base offset, from its HOLES block."""
    position = entry.holes_position
    checker = BlockChecker(file=name, seed=file_seed(file_id), section=entry.key)
    payload = checker.single_block(memoryview(block), position, BlockType.HOLES)
    return checked_holes(
        payload,
        checker,
        position,
        span=entry.last_offset - entry.base_offset + 1,
        record_count=entry.record_count,
    )


def checked_holes(
    payload: Buffer, checker: BlockChecker, position: int, *, span: int, record_count: int
) -> BitMap64:
    """Return the bitmap of a verified HOLES payload if it agrees with the section's fields."""
    try:
        holes = parse_holes(payload, span=span)
    except CorruptDataError as error:
        raise checker.corrupt(error.message, position) from error
    if len(holes) != span - record_count:
        raise checker.corrupt(
            f"{record_count} records and {len(holes)} holes do not make {span} offsets", position
        )
    return holes


class SectionIndex:
    """Sparse index of a section: finds the DATA blocks to read for an offset or a timestamp.

    Positions are relative to the section's first DATA block, and ranges are complete DATA blocks. An index is
    immutable and thread-safe.
    """

    def __init__(
        self,
        base_offsets: npt.NDArray[np.int64],
        max_timestamps: npt.NDArray[np.int64],
        boundaries: npt.NDArray[np.int64],
    ) -> None:
        """`boundaries` has one more element than the other arrays: the end of the last block."""
        self._base_offsets = base_offsets
        self._max_timestamps = max_timestamps
        self._boundaries = boundaries

    @classmethod
    def parse(
        cls,
        block: Buffer,
        *,
        name: str,
        file_id: UUID,
        position: int,
        section: tuple[UUID, int] | None = None,
    ) -> Self:
        """Parse the SECTION_INDEX block at byte `position` of the file. Raises CorruptSegmentError."""
        checker = BlockChecker(file=name, seed=file_seed(file_id), section=section)
        payload = checker.single_block(memoryview(block), position, BlockType.SECTION_INDEX)
        count, remainder = divmod(len(payload) - INDEX_HEADER.size, INDEX_ENTRY.size)
        if count < 1 or remainder:
            raise checker.corrupt(f"an index of {len(payload)} bytes has no or incomplete entries", position)
        (data_length,) = INDEX_HEADER.unpack_from(payload)
        entries = np.frombuffer(payload, _INDEX_DTYPE, offset=INDEX_HEADER.size)
        base_offsets = entries["base_offset"].astype(np.int64)
        boundaries = np.append(entries["position"], np.uint64(data_length)).astype(np.int64)
        ordered = (boundaries >= 0).all() and (np.diff(boundaries) > BLOCK_HEADER.size).all()
        if boundaries[0] != 0 or not ordered:
            raise checker.corrupt("the index's positions are not those of consecutive blocks", position)
        if (base_offsets < 0).any() or (np.diff(base_offsets) <= 0).any():
            raise checker.corrupt("the index's offsets are not ascending", position)
        return cls(base_offsets, entries["max_timestamp"].astype(np.int64), boundaries)

    def __len__(self) -> int:
        return len(self._base_offsets)

    @property
    def data_length(self) -> int:
        """Size of the section's DATA blocks in bytes."""
        return int(self._boundaries[-1])

    def range_for_offset(self, stored_offset: int, max_bytes: int) -> tuple[int, int]:
        """Return (position, length) of the blocks from `stored_offset` on, at most `max_bytes`.

        The range starts with the block that contains the offset, or would contain it, and has at least one
        block. An offset below the first batch starts at the first block. The offset may be a hole, even one
        after the last record of the range.
        """
        first = int(np.searchsorted(self._base_offsets, stored_offset, side="right")) - 1
        return self._range(max(first, 0), max_bytes)

    def block_from(self, position: int) -> tuple[int, int] | None:
        """Return (position, stored base offset) of the first block at or after `position`, or None."""
        first = int(np.searchsorted(self._boundaries[:-1], position))
        return (int(self._boundaries[first]), int(self._base_offsets[first])) if first < len(self) else None

    def last_base_offset(self, position: int, length: int) -> int:
        """Return the stored base offset of the last block of a range from `range_for_offset`."""
        last = int(np.searchsorted(self._boundaries, position + length)) - 1
        return int(self._base_offsets[last])

    def range_for_timestamp(
        self, timestamp: int, max_bytes: int, *, from_position: int = 0
    ) -> tuple[int, int] | None:
        """Return (position, length) from the first block with a record at or after `timestamp`, or None.

        Blocks before `from_position` are ignored.
        """
        begin = int(np.searchsorted(self._boundaries[:-1], from_position))
        late = np.flatnonzero(self._max_timestamps[begin:] >= timestamp)
        first = begin + int(late[0]) if late.size else len(self)
        return self._range(first, max_bytes) if first < len(self) else None

    def max_timestamp(self, from_position: int) -> int:
        """Return the largest timestamp of the blocks at or after `from_position`; -1 if there are none."""
        begin = int(np.searchsorted(self._boundaries[:-1], from_position))
        return int(self._max_timestamps[begin:].max(initial=-1))

    def _range(self, first: int, max_bytes: int) -> tuple[int, int]:
        if max_bytes < 0:
            raise InvalidInputError(f"a range cannot have at most {max_bytes} bytes")
        start = int(self._boundaries[first])
        end = int(np.searchsorted(self._boundaries, start + max_bytes, side="right")) - 1
        return start, int(self._boundaries[max(end, first + 1)]) - start
