"""The time index of a segment (`.timeindex`): maps timestamps to offsets, twelve bytes per entry (KIP-33).

::

    timestamp        int64   the largest of the segment so far
    relative offset  int32   of the last record of the batch with that timestamp, relative to the base offset

Timestamps increase from entry to entry, offsets do not decrease.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

import numpy as np
from typing_extensions import override

from local_tier.errors import IndexOverflowError
from local_tier.segment.mapped_index import MappedIndex
from object_format.kernels.batches.append import pack_times

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

    from local_tier.files.file_system import FileSystem

NO_TIMESTAMP: Final = -1


class TimestampOffset(NamedTuple):
    """A timestamp in milliseconds since the Unix epoch, and an offset."""

    timestamp: int
    offset: int


class TimeIndex(MappedIndex):
    """The time index of one segment. The last slot is reserved for the largest timestamp, added at a roll."""

    ENTRY: ClassVar[struct.Struct] = struct.Struct(">qi")
    KEY: ClassVar[struct.Struct] = struct.Struct(">q")

    def __init__(
        self, file_system: FileSystem, path: Path, base_offset: int, max_bytes: int, *, create: bool = False
    ) -> None:
        super().__init__(file_system, path, base_offset, max_bytes, create=create)
        self.last_entry = self._read_last_entry()

    @property
    @override
    def is_full(self) -> bool:
        return self.entries >= self.max_entries - 1

    @override
    def sanity_check(self) -> None:
        super().sanity_check()
        if self.entries and self.last_entry.offset < self.base_offset:
            self.relative(self.last_entry.offset)

    def lookup(self, timestamp: int) -> TimestampOffset:
        """Return the last entry with at most that timestamp, or (-1, base offset) if there is none."""
        found = self._floor_entry(timestamp)
        if found is None:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        return TimestampOffset(found[0], self.base_offset + found[1])

    def entry(self, slot: int) -> TimestampOffset:
        """Return the entry in a slot, which must exist."""
        if not 0 <= slot < self.entries:
            raise IndexError(f"slot {slot} of {self.path} is out of range: it has {self.entries} entries")
        timestamp, relative = self._entry(slot)
        return TimestampOffset(timestamp, self.base_offset + relative)

    def maybe_append(self, timestamp: int, offset: int, *, may_use_last_slot: bool = False) -> None:
        """Add an entry if its timestamp is above the last one.

        `may_use_last_slot` allows the entry in the reserved slot. Raises IndexOverflowError if the index is
        full, the timestamp or the offset decreases, or the offset does not fit.
        """
        if self.entries >= self.max_entries if may_use_last_slot else self.is_full:
            raise IndexOverflowError(f"{self.path} is full: it has {self.entries} entries")
        last = self.last_entry
        if self.entries and (offset < last.offset or timestamp < last.timestamp):
            raise self._order_error(TimestampOffset(timestamp, offset))
        self._add(np.array([(timestamp, offset)], np.int64), self.max_entries - self.entries)

    def maybe_append_all(self, entries: npt.NDArray[np.int64]) -> None:
        """Add, with one write, the rows of timestamp and offset whose timestamp is above those before.

        Adds rows up to the reserved slot. Raises IndexOverflowError if an offset decreases or does not fit.
        Nothing is added then.
        """
        self._add(entries, self.max_entries - 1 - self.entries)

    def _add(self, entries: npt.NDArray[np.int64], free_slots: int) -> None:
        with self._change_lock:
            packed = np.empty(max(0, min(free_slots, len(entries))) * self.ENTRY.size, np.uint8)
            count, timestamp, offset, valid_count = pack_times(
                entries, self.base_offset, *self.last_entry, packed
            )
            if valid_count < len(entries):
                entry = TimestampOffset(int(entries[valid_count, 0]), int(entries[valid_count, 1]))
                self.relative(entry.offset)
                raise self._order_error(entry)
            if count:
                self._append(packed.data[: count * self.ENTRY.size])
                self.last_entry = TimestampOffset(timestamp, offset)

    def _order_error(self, entry: TimestampOffset) -> IndexOverflowError:
        return IndexOverflowError(
            f"timestamp {entry.timestamp} at offset {entry.offset} is out of order after "
            f"{self.last_entry.timestamp} "
            f"at {self.last_entry.offset}, the last entry of {self.path}"
        )

    def truncate_to(self, offset: int) -> None:
        """Remove the entries at or above `offset`."""
        with self._map_lock:
            count = self._first_slot_at(offset - self.base_offset)
        self._truncate_to_entries(count)

    def _first_slot_at(self, relative_offset: int) -> int:
        """Return the first slot with at least that offset, or `entries`. Requires the map lock."""
        low, high = 0, self.entries
        while low < high:
            middle = (low + high) >> 1
            if self._entry_of(self._view(), middle)[1] >= relative_offset:
                high = middle
            else:
                low = middle + 1
        return low

    @override
    def _truncate_to_entries(self, count: int) -> None:
        super()._truncate_to_entries(count)
        self.last_entry = self._read_last_entry()

    @override
    def _resize(self, size: int) -> bool:
        changed = super()._resize(size)
        if changed:
            self.last_entry = self._read_last_entry()
        return changed

    def _read_last_entry(self) -> TimestampOffset:
        if not self.entries:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        timestamp, relative = self._entry(self.entries - 1)
        return TimestampOffset(timestamp, self.base_offset + relative)
