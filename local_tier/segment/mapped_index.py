"""Base of a segment's sorted indexes: a preallocated file that is read through shared memory.

A complete index file is full of entries: it is trimmed when its segment becomes inactive or its log is
closed. After a crash, the index of the active segment is padded with zeros that look like entries. Recovery
always rebuilds it.

Entries are written with `write` and not through the shared memory. On a full disk, a store into memory that
has no disk blocks would kill the process, while a write fails with an error.

Source: AbstractIndex of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, ClassVar, Final

from local_tier.errors import CorruptIndexError, IndexOverflowError, LogClosedError

if TYPE_CHECKING:
    import struct
    from pathlib import Path

    from local_tier.files.file_system import FileSystem, Mapping, OpenFile

WARM_BYTES: Final = 8192
"""Size of the warm section at the end of an index, which each search looks at first.

Its pages stay in memory because most reads are at the end of a log. The three entries that a search of the
section always touches lie in at most three pages of 4 KiB.
"""

MAX_RELATIVE_OFFSET: Final = 2**31 - 1


class MappedIndex:
    """A sorted list of entries of fixed size. The first field of an entry is its key.

    Only the log's writer appends and truncates. Lookups may come from any thread.
    """

    ENTRY: ClassVar[struct.Struct]
    KEY: ClassVar[struct.Struct]

    def __init__(
        self, file_system: FileSystem, path: Path, base_offset: int, max_bytes: int, *, create: bool = False
    ) -> None:
        self.path = path
        self.base_offset = base_offset
        self.max_bytes = max_bytes
        self._file_system = file_system
        self._change_lock = threading.Lock()
        self._map_lock = threading.Lock()  # held by each lookup and while the mapping is replaced
        self._file: OpenFile | None = None
        self._mapping: Mapping | None = None
        try:
            file = self._open(create=create)
        except FileNotFoundError as error:
            raise LogClosedError(f"{path} was deleted", remedy="open the log again") from error
        if create:
            file.truncate(self._rounded(max_bytes))
        self.length = file.size()
        self.entries = 0 if create else self.length // self.ENTRY.size
        try:
            self._map(file)
        except BaseException:
            self._close_file()
            raise
        if not create:
            self._close_file()

    @property
    def max_entries(self) -> int:
        """The number of entries that fit into the file at its current size."""
        return self.length // self.ENTRY.size

    @property
    def size_in_bytes(self) -> int:
        """The size of the entries, without preallocated space."""
        return self.entries * self.ENTRY.size

    @property
    def is_full(self) -> bool:
        """True if the segment must roll before the next append."""
        return self.entries >= self.max_entries

    def can_append_offset(self, offset: int) -> bool:
        """Return True if the offset's distance from the base offset fits in 31 bits."""
        return 0 <= offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def sanity_check(self) -> None:
        """Raise CorruptIndexError if the file cannot be an index of this segment."""
        size = self.ENTRY.size
        if self.length % size:
            raise CorruptIndexError(f"{self.path} has {self.length} bytes, which is not a multiple of {size}")
        if self.entries > 1 and self._key(0) >= self._key(self.entries - 1):
            raise CorruptIndexError(f"the {self.entries} entries of {self.path} are not in ascending order")

    def relative(self, offset: int) -> int:
        """Return the offset relative to the base offset. Raises IndexOverflowError if it does not fit."""
        if not self.can_append_offset(offset):
            raise IndexOverflowError(
                f"offset {offset} is too far from {self.base_offset}, the base offset of {self.path}"
            )
        return offset - self.base_offset

    def resize(self, size: int) -> bool:
        """Set the file's size to hold the entries that fit in `size` bytes. Return False if unchanged."""
        with self._change_lock:
            return self._resize(size)

    def trim(self) -> None:
        """Remove preallocated space and close the file; the index takes no more entries."""
        with self._change_lock:
            self._resize(self.size_in_bytes)
            self._close_file()

    def reset(self) -> None:
        """Remove all entries and preallocate the file as for a new index."""
        self.truncate()
        self.resize(self.max_bytes)

    def truncate(self) -> None:
        """Remove all entries."""
        self._truncate_to_entries(0)

    def sync(self) -> None:
        """Make the entries durable."""
        with self._change_lock:
            was_open = self._file is not None
            self._open().sync()
            if not was_open:
                self._close_file()

    def update_path(self, path: Path) -> None:
        """Set the path after the file or its directory was renamed."""
        with self._change_lock:
            self._close_file()
            self.path = path

    def close(self) -> None:
        """Trim and close the file and release its memory."""
        self.trim()
        self.close_without_trimming()

    def close_without_trimming(self) -> None:
        """Close the file and release its memory. For a log that is deleted or whose disk has failed."""
        with self._change_lock, self._map_lock:
            self._close_file()
            self._unmap()

    def _truncate_to_entries(self, count: int) -> None:
        with self._change_lock, self._map_lock:
            self.entries = count

    def _append(self, entries: memoryview) -> None:
        """Write entries for which there is space. Requires the change lock."""
        self._open().write(entries, self.entries * self.ENTRY.size)
        self.entries += len(entries) // self.ENTRY.size

    def _open(self, *, create: bool = False) -> OpenFile:
        if self._file is None:
            self._file = self._file_system.open(self.path, create=create)
        return self._file

    def _close_file(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _resize(self, size: int) -> bool:
        rounded = self._rounded(size)
        if rounded == self.length:
            return False
        file = self._open()
        with self._map_lock:
            self._unmap()
            file.truncate(rounded)
            self.length = rounded
            self.entries = min(self.entries, self.max_entries)
            self._map(file)
        return True

    def _map(self, file: OpenFile) -> None:
        usable = self._rounded(self.length)
        self._mapping = file.map(usable) if usable else None

    def _unmap(self) -> None:
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None

    def _rounded(self, size: int) -> int:
        return size - size % self.ENTRY.size

    def _view(self) -> memoryview:
        """Return the mapped memory. Requires the map lock and at least one entry."""
        if self._mapping is None:
            raise LogClosedError(f"{self.path} is closed")
        return self._mapping.view

    def _key(self, slot: int) -> int:
        with self._map_lock:
            return int(self.KEY.unpack_from(self._view(), slot * self.ENTRY.size)[0])

    def _entry(self, slot: int) -> tuple[int, int]:
        """Return both fields of an entry as stored."""
        with self._map_lock:
            return self._entry_of(self._view(), slot)

    def _entry_of(self, view: memoryview, slot: int) -> tuple[int, int]:
        key, value = self.ENTRY.unpack_from(view, slot * self.ENTRY.size)
        return key, value

    def _floor_entry(self, key: int) -> tuple[int, int] | None:
        """Return the last entry with a key of at most `key` as stored, or None."""
        with self._map_lock:
            slot = self._floor_slot(key)
            return None if slot < 0 else self._entry_of(self._view(), slot)

    def _floor_slot(self, key: int) -> int:
        """Return the slot of the last entry with a key of at most `key`, or -1. Requires the map lock."""
        if not self.entries:
            return -1
        view, last = self._view(), self.entries - 1
        warm = max(0, last - WARM_BYTES // self.ENTRY.size)
        if self._key_of(view, warm) <= key:
            return self._search(view, key, warm, last)
        if self._key_of(view, 0) > key:
            return -1
        return self._search(view, key, 0, warm)

    def _key_of(self, view: memoryview, slot: int) -> int:
        return int(self.KEY.unpack_from(view, slot * self.ENTRY.size)[0])

    def _search(self, view: memoryview, key: int, low: int, high: int) -> int:
        """Return the last slot in [low, high] with a key of at most `key`, as the key at `low` must be."""
        unpack, size = self.KEY.unpack_from, self.ENTRY.size
        while low < high:
            middle = (low + high + 1) >> 1
            if unpack(view, middle * size)[0] > key:
                high = middle - 1
            else:
                low = middle
        return low
