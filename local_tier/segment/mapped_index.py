"""What the two sorted indexes of a segment share: a preallocated file, read as memory, and its search.

Source: AbstractIndex of org.apache.kafka.storage.internals.log. A file that exists is full of entries: it was
trimmed when its segment went inactive or its log was closed. The index of an active segment after a crash is
padded with zeros, which look like entries, and is always built anew.

Entries are written with `write` and read through shared memory: on a full disk, a store into preallocated but
unbacked memory would kill the process, where a write fails with an error.
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
"""Searches look at the last 8 KiB first: a tail that everybody reads stays in memory, and the three entries
that each search of it touches lie in at most three pages of 4 KiB."""

MAX_RELATIVE_OFFSET: Final = 2**31 - 1


class MappedIndex:
    """A sorted list of fixed-size entries; the key is the first field of each.

    One thread at a time appends and truncates (the log's writer); look-ups may come from any thread.
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
        self._map_lock = threading.Lock()  # held for each look-up, and while the memory is exchanged
        self._file: OpenFile | None = None
        self._mapping: Mapping | None = None
        try:
            file = self._open(create=create)
        except FileNotFoundError as error:
            raise LogClosedError(f"{path} is gone", remedy="open the log again") from error
        if create:
            file.truncate(self._rounded(max_bytes))
        self.length = file.size()
        self.entries = 0 if create else self.length // self.ENTRY.size
        self._map(file)
        if not create:
            self._close_file()

    @property
    def max_entries(self) -> int:
        """How many fit into the file as it is."""
        return self.length // self.ENTRY.size

    @property
    def size_in_bytes(self) -> int:
        """Of the entries, without what is preallocated."""
        return self.entries * self.ENTRY.size

    @property
    def is_full(self) -> bool:
        """Whether the segment must roll before anything is appended."""
        return self.entries >= self.max_entries

    def can_append_offset(self, offset: int) -> bool:
        """Whether the offset is near enough to the base offset to fit four bytes."""
        return 0 <= offset - self.base_offset <= MAX_RELATIVE_OFFSET

    def sanity_check(self) -> None:
        """CorruptIndexError unless the file can be an index of this segment."""
        size = self.ENTRY.size
        if self.length % size:
            raise CorruptIndexError(f"{self.path} has {self.length} bytes, which is no multiple of {size}")
        if self.entries > 1 and self._key(0) >= self._key(self.entries - 1):
            raise CorruptIndexError(f"{self.path} has {self.entries} entries that do not rise")

    def relative(self, offset: int) -> int:
        """The offset as it is stored; IndexOverflowError when it does not fit."""
        if not self.can_append_offset(offset):
            raise IndexOverflowError(
                f"offset {offset} is too far from {self.base_offset}, the base offset of {self.path}"
            )
        return offset - self.base_offset

    def resize(self, size: int) -> bool:
        """Give the file room for as many entries as fit `size` bytes; False when it has that size already."""
        with self._change_lock:
            return self._resize(size)

    def trim(self) -> None:
        """Cut what is preallocated, and let go of the file: no more entries are expected."""
        with self._change_lock:
            self._resize(self.size_in_bytes)
            self._close_file()

    def reset(self) -> None:
        """Forget all entries, and make room for as many as a new index has."""
        self.truncate()
        self.resize(self.max_bytes)

    def truncate(self) -> None:
        """Forget all entries."""
        self._truncate_to_entries(0)

    def sync(self) -> None:
        """Make the entries durable."""
        with self._change_lock:
            was_open = self._file is not None
            self._open().sync()
            if not was_open:
                self._close_file()

    def update_path(self, path: Path) -> None:
        """The file, or the directory it is in, has another name now."""
        with self._change_lock:
            self._close_file()
            self.path = path

    def close(self) -> None:
        """Trim the file and let go of it and of the memory."""
        self.trim()
        self.close_without_trimming()

    def close_without_trimming(self) -> None:
        """Let go of file and memory; for a log that is deleted, or whose disk has failed."""
        with self._change_lock, self._map_lock:
            self._close_file()
            self._unmap()

    def _truncate_to_entries(self, count: int) -> None:
        with self._change_lock, self._map_lock:
            self.entries = count

    def _append(self, entries: memoryview) -> None:
        """Under the change lock: the bytes of one or more, for which there is room."""
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
        """Under the map lock, and with at least one entry."""
        if self._mapping is None:
            raise LogClosedError(f"{self.path} is closed")
        return self._mapping.view

    def _key(self, slot: int) -> int:
        with self._map_lock:
            return int(self.KEY.unpack_from(self._view(), slot * self.ENTRY.size)[0])

    def _entry(self, slot: int) -> tuple[int, int]:
        """Both fields of one entry, as they are stored."""
        with self._map_lock:
            return self._entry_of(self._view(), slot)

    def _entry_of(self, view: memoryview, slot: int) -> tuple[int, int]:
        key, value = self.ENTRY.unpack_from(view, slot * self.ENTRY.size)
        return key, value

    def _floor_entry(self, key: int) -> tuple[int, int] | None:
        """The last entry whose key is at most `key`, as it is stored."""
        with self._map_lock:
            slot = self._floor_slot(key)
            return None if slot < 0 else self._entry_of(self._view(), slot)

    def _floor_slot(self, key: int) -> int:
        """The slot of that entry, or -1; under the map lock."""
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
        """The last slot of [low, high] whose key is at most `key`, as that of `low` is."""
        unpack, size = self.KEY.unpack_from, self.ENTRY.size
        while low < high:
            middle = (low + high + 1) >> 1
            if unpack(view, middle * size)[0] > key:
                high = middle - 1
            else:
                low = middle
        return low
