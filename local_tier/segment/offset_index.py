"""The offset index of a segment (`.index`): maps offsets to positions, eight bytes per entry.

::

    relative offset  int32   of a batch's last record, relative to the segment's base offset
    position         int32   of that batch in the file

Both fields increase from entry to entry. The index is sparse: it has about one entry per
`index.interval.bytes`.
"""

from __future__ import annotations

import struct
from bisect import bisect_right
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np
from typing_extensions import override

from local_tier.errors import IndexOverflowError
from local_tier.segment.mapped_index import MappedIndex
from object_format.kernels.batches.append import pack_positions

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import numpy.typing as npt

    from local_tier.files.file_system import FileSystem


class OffsetPosition(NamedTuple):
    """The last offset of a batch and the position of the batch."""

    offset: int
    position: int


class OffsetIndex(MappedIndex):
    """The offset index of one segment."""

    ENTRY: ClassVar[struct.Struct] = struct.Struct(">ii")
    KEY: ClassVar[struct.Struct] = struct.Struct(">i")

    def __init__(
        self, file_system: FileSystem, path: Path, base_offset: int, max_bytes: int, *, create: bool = False
    ) -> None:
        super().__init__(file_system, path, base_offset, max_bytes, create=create)
        self.last_offset = self._read_last_offset()

    def lookup(self, offset: int) -> OffsetPosition:
        """Return the last entry at or before `offset`, or the start of the segment if there is none."""
        found = self._floor_entry(offset - self.base_offset)
        if found is None:
            return OffsetPosition(self.base_offset, 0)
        return OffsetPosition(self.base_offset + found[0], found[1])

    def entry(self, slot: int) -> OffsetPosition:
        """Return the entry in a slot, which must exist."""
        if not 0 <= slot < self.entries:
            raise IndexError(f"slot {slot} of {self.path} is out of range: it has {self.entries} entries")
        relative, position = self._entry(slot)
        return OffsetPosition(self.base_offset + relative, position)

    def positions(self, start: int, step: int) -> Iterator[int]:
        """Yield positions of batches after `start`, ascending, at most `step` apart where entries allow it.

        `start` is the position of a batch.
        """
        slots = range(self.entries)
        slot = bisect_right(slots, start, key=self._position_in)
        while slot < len(slots):
            slot = max(bisect_right(slots, start + step, slot, key=self._position_in) - 1, slot)
            start = self._position_in(slot)
            yield start
            slot += 1

    def _position_in(self, slot: int) -> int:
        return self.entry(slot).position

    def append(self, offset: int, position: int) -> None:
        """Add an entry.

        Raises IndexOverflowError if the index is full or the offset does not increase or does not fit.
        """
        if self.is_full:
            raise IndexOverflowError(f"{self.path} is full: it has {self.entries} entries")
        self.append_all(np.array([(offset, position)], np.int64))

    def append_all(self, entries: npt.NDArray[np.int64]) -> None:
        """Add rows of offset and position with one write, up to the size of the index.

        Raises IndexOverflowError if an offset does not increase or does not fit. Nothing is added then.
        """
        with self._change_lock:
            fitting = entries[: self.max_entries - self.entries]
            if not len(fitting):
                return
            last = self.last_offset if self.entries else self.base_offset - 1
            packed = np.empty(len(fitting) * self.ENTRY.size, np.uint8)
            valid_count = pack_positions(fitting, self.base_offset, last, packed)
            if valid_count < len(fitting):
                offset = int(fitting[valid_count, 0])
                self.relative(offset)
                last = int(fitting[valid_count - 1, 0]) if valid_count else last
                raise IndexOverflowError(
                    f"offset {offset} is not above {last}, the last offset in {self.path}"
                )
            self._append(packed.data)
            self.last_offset = int(fitting[-1, 0])

    def truncate_to(self, offset: int) -> None:
        """Remove the entries at or above `offset`."""
        with self._map_lock:
            slot = self._floor_slot(offset - self.base_offset)
            if slot >= 0 and self._key_of(self._view(), slot) == offset - self.base_offset:
                slot -= 1
        self._truncate_to_entries(slot + 1)

    @override
    def _truncate_to_entries(self, count: int) -> None:
        super()._truncate_to_entries(count)
        self.last_offset = self._read_last_offset()

    def _read_last_offset(self) -> int:
        return self.base_offset + (self._key(self.entries - 1) if self.entries else 0)
