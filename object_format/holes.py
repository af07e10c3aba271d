"""Holes: the offsets of a section that no longer have a record, as a Roaring bitmap.

Bitmaps of holes are relative to the section's base offset (hole 0 is the base offset itself). Bitmaps of
survivors contain absolute offsets. The bytes are Roaring's portable 64-bit serialization
(github.com/RoaringBitmap/RoaringFormatSpec), which is little-endian: a sequence of groups, each with the
upper 32 bits of its values and a 32-bit bitmap of containers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
from pyroaring import BitMap64

from core.errors import CorruptDataError, FatalError, InvalidInputError
from object_format.kernels.bitmaps.complement import (
    CONTAINER,
    COOKIE_WITH_RUNS,
    FEW_CONTAINERS,
    SINGLE_RUN_BYTES,
    copy_containers,
    write_complement,
)
from object_format.kernels.bitmaps.roaring import COOKIE, MAX_CONTAINER_BYTES
from object_format.limits import MAX_SPAN

if TYPE_CHECKING:
    from collections.abc import Iterator

    import numpy.typing as npt
    from typing_extensions import Buffer

    from object_format.offset_set import OffsetSet


_GROUP: Final = 1 << 32
"""Values per group. Each group has its own header."""

_WINDOW: Final = 1 << 20
"""Offsets processed at a time where there are survivors; up to 128 KiB as a bitmap."""

_DENSE_SURVIVORS: Final = 1 << 15
"""From this number of survivors in a window on, the library's container operations are faster than a kernel
that visits every survivor."""

_BUFFER_BYTES: Final = max(_WINDOW // CONTAINER * MAX_CONTAINER_BYTES, _GROUP // CONTAINER * SINGLE_RUN_BYTES)
"""Size of the output buffer: the containers of a window, or those of a whole group without survivors."""


@dataclass(frozen=True, slots=True)
class SectionHoles:
    """Serialized holes of a section of `span` offsets: `count` holes, in `parts` to be concatenated."""

    parts: tuple[bytes, ...]
    count: int
    span: int


def no_holes(span: int) -> SectionHoles:
    """Return the holes of a section in which every offset has a record."""
    return SectionHoles((bytes(8),), 0, span)


def _check_range(base_offset: int, last_offset: int) -> None:
    if not 0 <= base_offset <= last_offset:
        raise InvalidInputError(f"a section cannot cover offsets {base_offset} to {last_offset}")
    if last_offset - base_offset >= MAX_SPAN:
        raise InvalidInputError(
            f"a section of {last_offset - base_offset + 1} offsets exceeds the limit of {MAX_SPAN}",
            remedy="split the range into sections of several files",
        )


def holes_between(survivors: OffsetSet, base_offset: int, last_offset: int) -> SectionHoles:
    """Return the offsets of [base_offset, last_offset] that are not in `survivors`.

    The result is relative to `base_offset`, and each container has its smallest form. Time grows with the
    number of survivors and, by nanoseconds, with every 65,536 offsets. Memory is the size of the result plus
    a few MiB.
    """
    _check_range(base_offset, last_offset)
    span = last_offset - base_offset + 1
    writer = _HolesWriter()
    for start, end, all_holes in _ranges(survivors, base_offset, span):
        if all_holes:
            writer.add_all_holes(start, end)
        else:
            writer.add(survivors, base_offset, start, end)
    return SectionHoles(writer.finish(), writer.holes, span)


def _ranges(survivors: OffsetSet, base_offset: int, span: int) -> Iterator[tuple[int, int, bool]]:
    """Yield (start, end, whether the range has no survivor), relative to `base_offset`.

    Ranges start at container boundaries and do not cross group boundaries. A range with survivors is at most
    one window.
    """
    start = 0
    while start < span:
        group_end = min(span, start - start % _GROUP + _GROUP)
        next_survivor = survivors.next_offset(base_offset + start)
        holes_end = group_end if next_survivor is None else next_survivor - base_offset
        end = holes_end - holes_end % CONTAINER if holes_end < group_end else group_end
        all_holes = end > start
        if not all_holes:
            end = min(start + _WINDOW, group_end)
        yield start, end, all_holes
        start = end


class _HolesWriter:
    """Serializes a 64-bit bitmap group by group."""

    def __init__(self) -> None:
        self.holes = 0
        self._parts: list[bytes] = [b""]
        self._groups = 0
        self._high = 0
        self._out = np.empty(_BUFFER_BYTES, np.uint8)
        self._containers = np.empty((_GROUP // CONTAINER, 4), np.int64)
        self._count = self._filled = 0
        self._written: list[bytes] = []

    def add_all_holes(self, start: int, end: int) -> None:
        """Append a range without survivors."""
        self._reserve(start, end, SINGLE_RUN_BYTES)
        self._write_complement(np.empty(0, np.int64), start, end)

    def add(self, survivors: OffsetSet, base_offset: int, start: int, end: int) -> None:
        """Append a range that has survivors."""
        window = BitMap64()
        window.add_range(base_offset + start, base_offset + end)
        survivors_here = survivors.bitmap_between(base_offset + start, base_offset + end - 1)
        if len(survivors_here) == end - start:
            return
        self._reserve(start, end, MAX_CONTAINER_BYTES)
        if len(survivors_here) < _DENSE_SURVIVORS:
            self._write_complement(
                np.frombuffer(survivors_here.to_array(), np.int64) - base_offset, start, end
            )
            return
        holes = (window - survivors_here).shift(-(base_offset + start))
        holes.run_optimize()
        data = np.frombuffer(holes.serialize(), np.uint8)
        end_and_count = copy_containers(data, start, self._out, self._filled, self._containers, self._count)
        self._note(end_and_count, len(holes))

    def finish(self) -> tuple[bytes, ...]:
        """Return the serialized bitmap."""
        self._end_group()
        self._parts[0] = struct.pack("<Q", self._groups)
        return tuple(self._parts)

    def _write_complement(self, values: npt.NDArray[np.int64], start: int, end: int) -> None:
        end_and_count = write_complement(
            values, start, end, self._out, self._filled, self._containers, self._count
        )
        self._note(end_and_count, end - start - values.size)

    def _note(self, end_and_count: tuple[int, int], holes: int) -> None:
        self._filled, self._count = end_and_count
        if self._filled == -1:
            raise FatalError("the holes of a section do not fit the output buffer")
        self.holes += holes

    def _reserve(self, start: int, end: int, container_bytes: int) -> None:
        """Start a new group if necessary, and flush the buffer if the containers of the range may not fit."""
        if start // _GROUP != self._high:
            self._end_group()
            self._high = start // _GROUP
        if self._filled + -(-(end - start) // CONTAINER) * container_bytes > _BUFFER_BYTES:
            self._flush()

    def _end_group(self) -> None:
        if self._count:
            self._flush()
            self._parts.append(
                struct.pack("<I", self._high) + _container_headers(self._containers[: self._count])
            )
            self._parts += self._written
            self._groups += 1
        self._count = 0
        self._written.clear()

    def _flush(self) -> None:
        self._written.append(self._out[: self._filled].tobytes())
        self._filled = 0


def _container_headers(containers: npt.NDArray[np.int64]) -> bytes:
    """Return the header of a 32-bit bitmap whose `containers` are rows as `write_complement` writes them."""
    count = len(containers)
    of_runs = containers[:, 2].astype(np.bool_)
    if of_runs.any():
        head = struct.pack("<I", COOKIE_WITH_RUNS | (count - 1) << 16)
        head += np.packbits(of_runs, bitorder="little").tobytes()
    else:
        head = struct.pack("<II", COOKIE, count)
    head += (containers[:, :2] - [0, 1]).astype("<u2").tobytes()
    if count < FEW_CONTAINERS and of_runs.any():
        return head
    sizes = containers[:, 3]
    positions = len(head) + 4 * count + np.cumsum(sizes) - sizes
    return head + positions.astype("<u4").tobytes()


def survivors_between(holes: BitMap64, base_offset: int, last_offset: int) -> BitMap64:
    """Return the absolute offsets of [base_offset, last_offset] that are no holes.

    This is the inverse of `holes_between`.
    """
    _check_range(base_offset, last_offset)
    window = BitMap64()
    window.add_range(0, last_offset - base_offset + 1)
    return (window - holes).shift(base_offset)


def parse_holes(data: Buffer, *, span: int) -> BitMap64:
    """Return the bitmap in `data`, for a section of `span` offsets.

    Raises CorruptDataError unless `data` is exactly one valid bitmap within the span. pyroaring checks bounds
    and structure, but accepts trailing bytes and some inconsistent headers. Comparing `data` with the bitmap
    serialized again detects both.
    """
    payload = bytes(data)
    try:
        holes = BitMap64.deserialize(payload)
    except (ValueError, IndexError) as error:
        raise CorruptDataError(f"the bitmap of holes is malformed: {error}") from error
    if bytes(holes.serialize()) != payload:
        raise CorruptDataError("the bitmap of holes is not in Roaring's portable format")
    if holes and holes.max() >= span:
        raise CorruptDataError(f"hole {holes.max()} is beyond the section's {span} offsets")
    return holes
