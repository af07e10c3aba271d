"""How much of a file is read for some extents: from where the first begins to where the last one ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable

    from catalog.model import Extent


class FileSpan(NamedTuple):
    """The bytes [start, end) of a file."""

    start: int
    end: int

    @property
    def length(self) -> int:
        """How many bytes these are."""
        return self.end - self.start


NOTHING = FileSpan(0, 0)


def span_of(extents: Iterable[Extent]) -> FileSpan:
    """What a stream goes through that reads these extents, all of one file; empty when none has bytes.

    It has the extents' own bytes, and everything that lies between two of them: a stream is one request, and
    reads on where nobody wants anything.
    """
    held = [(extent.position, extent.position + extent.length) for extent in extents if extent.length]
    if not held:
        return NOTHING
    return FileSpan(min(start for start, _ in held), max(end for _, end in held))
