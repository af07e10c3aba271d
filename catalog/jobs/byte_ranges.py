"""Range of a file's bytes that a stream reads for some extents."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import Extent


class ByteRange(NamedTuple):
    """Bytes [start, end) of a file."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """Return the number of bytes."""
        return self.end - self.start


EMPTY: ByteRange = ByteRange(0, 0)


def byte_range_of(extents: Sequence[Extent]) -> ByteRange:
    """Return the range from the first to the last of these extents, all of one file.

    The range includes the bytes between the extents, because a stream is one request. It is empty if no
    extent has bytes.
    """
    if len(extents) == 1:  # wide files have one extent of each partition
        (extent,) = extents
        return ByteRange(extent.position, extent.position + extent.length) if extent.length else EMPTY
    ranges = [(extent.position, extent.position + extent.length) for extent in extents if extent.length]
    if not ranges:
        return EMPTY
    return ByteRange(min(start for start, _ in ranges), max(end for _, end in ranges))
