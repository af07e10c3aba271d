"""Range of a file's bytes that a stream reads for some extents."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

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


def byte_range_of(extents: Iterable[Extent]) -> ByteRange:
    """Return the range from the first to the last of these extents, all of one file.

    The range includes the bytes between the extents, because a stream is one request. It is empty if no
    extent has bytes.
    """
    ranges = [(extent.position, extent.position + extent.length) for extent in extents if extent.length]
    if not ranges:
        return EMPTY
    return ByteRange(min(start for start, _ in ranges), max(end for _, end in ranges))
