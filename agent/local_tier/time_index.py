"""From timestamps to offsets: `.timeindex`, twelve bytes an entry (KIP-33).

::

    timestamp        int64   the largest of the segment so far
    relative offset  int32   of the last record of the batch that has it, less the segment's base offset

Timestamps rise from entry to entry, offsets do not fall.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, ClassVar, Final, NamedTuple

from typing_extensions import override

from agent.local_tier.errors import IndexOverflowError
from agent.local_tier.mapped_index import MappedIndex

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from agent.local_tier.files import FileSystem

NO_TIMESTAMP: Final = -1


class TimestampOffset(NamedTuple):
    """A timestamp in milliseconds since the Unix epoch, and the offset that goes with it."""

    timestamp: int
    offset: int


class TimeIndex(MappedIndex):
    """The time index of one segment. Its last slot is for the largest timestamp, when the segment rolls."""

    ENTRY: ClassVar[struct.Struct] = struct.Struct(">qi")
    KEY: ClassVar[struct.Struct] = struct.Struct(">q")

    def __init__(
        self, fs: FileSystem, path: Path, base_offset: int, max_bytes: int, *, create: bool = False
    ) -> None:
        super().__init__(fs, path, base_offset, max_bytes, create=create)
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
        """The last entry with at most that timestamp; (-1, base offset) when there is none."""
        found = self._floor_entry(timestamp)
        if found is None:
            return TimestampOffset(NO_TIMESTAMP, self.base_offset)
        return TimestampOffset(found[0], self.base_offset + found[1])

    def entry(self, slot: int) -> TimestampOffset:
        """The entry in that slot, which must exist."""
        if not 0 <= slot < self.entries:
            raise IndexError(f"{self.path} has {self.entries} entries, and none in slot {slot}")
        timestamp, relative = self._entry(slot)
        return TimestampOffset(timestamp, self.base_offset + relative)

    def maybe_append(self, timestamp: int, offset: int, *, may_fill: bool = False) -> None:
        """Add an entry if its timestamp is above the last one.

        `may_fill` allows it to take the last slot. IndexOverflowError when the offset falls or does not fit,
        the timestamp falls, or there is no room.
        """
        if self.entries >= self.max_entries if may_fill else self.is_full:
            raise IndexOverflowError(f"{self.path} is full with {self.entries} entries")
        self._add([TimestampOffset(timestamp, offset)], self.max_entries - self.entries)

    def append_rising(self, entries: Sequence[TimestampOffset]) -> None:
        """Add, with one write, the entries that are above those before them, but for the last slot."""
        above = [entry for entry in entries if entry.timestamp >= self.last_entry.timestamp]
        self._add(above, self.max_entries - 1 - self.entries)

    def _add(self, entries: Sequence[TimestampOffset], room: int) -> None:
        with self._change_lock:
            last = self.last_entry
            packed: list[bytes] = []
            for entry in entries:
                if (self.entries or packed) and (
                    entry.offset < last.offset or entry.timestamp < last.timestamp
                ):
                    raise IndexOverflowError(
                        f"timestamp {entry.timestamp} at offset {entry.offset} falls behind "
                        f"{last.timestamp} at {last.offset}, the last entry of {self.path}"
                    )
                if entry.timestamp > last.timestamp and len(packed) < room:
                    packed.append(self.ENTRY.pack(entry.timestamp, self.relative(entry.offset)))
                    last = entry
            if packed:
                self._append(b"".join(packed))
                self.last_entry = last

    def truncate_to(self, offset: int) -> None:
        """Forget the entries at or above `offset`."""
        with self._map_lock:
            count = self._first_slot_above_value(offset - self.base_offset - 1)
        self._truncate_to_entries(count)

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
