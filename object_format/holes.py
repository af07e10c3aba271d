"""Holes: the offsets of a section that have no record any more, as a Roaring bitmap.

Hole bitmaps are always relative to the section's base offset (hole 0 is the base offset itself); survivor
bitmaps hold absolute offsets. Bytes are Roaring's portable 64-bit serialisation
(github.com/RoaringBitmap/RoaringFormatSpec), which is little-endian.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pyroaring import BitMap64

from bedrock.errors import CorruptDataError, InvalidInputError

if TYPE_CHECKING:
    from typing_extensions import Buffer


MAX_SPAN: Final = 2**40
"""Offsets of one section at most, where they are taken as a range: tens of bytes for each 65,536."""


def _window(first: int, last: int) -> BitMap64:
    """Every offset of [first, last]; run containers, so a wide window stays small."""
    window = BitMap64()
    window.add_range(first, last + 1)
    return window


def _check_range(base_offset: int, last_offset: int) -> None:
    if not 0 <= base_offset <= last_offset:
        raise InvalidInputError(f"a section cannot run from offset {base_offset} to {last_offset}")
    if last_offset - base_offset >= MAX_SPAN:
        raise InvalidInputError(
            f"a section of {last_offset - base_offset + 1} offsets is above the limit of {MAX_SPAN}",
            remedy="cover the range with several sections, in several files",
        )


def holes_between(survivors: BitMap64, base_offset: int, last_offset: int) -> BitMap64:
    """The offsets of [base_offset, last_offset] that are not in `survivors`, relative to `base_offset`."""
    _check_range(base_offset, last_offset)
    return (_window(base_offset, last_offset) - survivors).shift(-base_offset)


def survivors_between(holes: BitMap64, base_offset: int, last_offset: int) -> BitMap64:
    """The inverse of `holes_between`: the absolute offsets of [base_offset, last_offset] with a record."""
    _check_range(base_offset, last_offset)
    return (_window(0, last_offset - base_offset) - holes).shift(base_offset)


def serialise_holes(holes: BitMap64) -> bytes:
    """Portable bytes; `holes` itself is brought into its smallest form (run-encoded) on the way."""
    holes.run_optimize()
    return bytes(holes.serialize())


def parse_holes(data: Buffer, *, span: int) -> BitMap64:
    """The bitmap of a section of `span` offsets; raises CorruptDataError unless `data` is exactly one.

    pyroaring bounds and validates what it reads, but stops at the end of the bitmap and takes headers that
    contradict each other in places; writing the bitmap again finds both.
    """
    given = bytes(data)
    try:
        holes = BitMap64.deserialize(given)
    except (ValueError, IndexError) as error:
        raise CorruptDataError(f"the bitmap of holes is malformed: {error}") from error
    if bytes(holes.serialize()) != given:
        raise CorruptDataError("the bitmap of holes is not in Roaring's portable form")
    if holes and holes.max() >= span:
        raise CorruptDataError(f"hole {holes.max()} lies beyond the section's {span} offsets")
    return holes
