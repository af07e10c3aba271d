"""The transaction index of a segment (`.txnindex`): its aborted transactions, 34 bytes per entry.

::

    version             int16   0
    producer id         int64
    first offset        int64   of the transaction
    last offset         int64   of the transaction, which is its marker
    last stable offset  int64   when the transaction was aborted

Last offsets increase from entry to entry. The file is created with the first entry.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from local_tier.errors import CorruptIndexError, IndexOverflowError
from local_tier.segment.append_file import AppendFile

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from local_tier.files.file_system import FileSystem

ENTRY: Final = struct.Struct(">hqqqq")
VERSION: Final = 0


class AbortedTxn(NamedTuple):
    """An aborted transaction, and the last stable offset when it was aborted."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The transaction index of one segment. Only the log's writer appends; any thread may read."""

    def __init__(self, file_system: FileSystem, path: Path, base_offset: int) -> None:
        self.path = path
        self._file_system = file_system
        self._base_offset = base_offset
        self._last_offset: int | None = None
        self._file: AppendFile | None = None
        if file_system.status(path) is not None:
            self._file = AppendFile(file_system, path)

    def append(self, aborted: AbortedTxn) -> None:
        """Add a transaction. Its last offset must be above those before."""
        if self._last_offset is not None and aborted.last_offset <= self._last_offset:
            raise IndexOverflowError(
                f"last offset {aborted.last_offset} is not above {self._last_offset}, the last in {self.path}"
            )
        if self._file is None:
            self._file = AppendFile(self._file_system, self.path)
        self._file.append(ENTRY.pack(VERSION, *aborted))
        self._last_offset = aborted.last_offset

    def all(self) -> list[AbortedTxn]:
        """Return all entries in order. Raises CorruptIndexError for an unknown version."""
        return [aborted for _, aborted in self._entries()]

    def collect(self, first_offset: int, end_offset: int) -> tuple[list[AbortedTxn], bool]:
        """Return the transactions that overlap [first_offset, end_offset).

        The second value is True if later segments may have more of them.
        """
        found: list[AbortedTxn] = []
        for aborted in self.all():
            if aborted.last_offset >= first_offset and aborted.first_offset < end_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= end_offset:
                return found, False
        return found, True

    def truncate_to(self, offset: int) -> None:
        """Remove the transactions that end at or above `offset`."""
        last: int | None = None
        for position, aborted in self._entries():
            if aborted.last_offset >= offset:
                self._cut(position)
                break
            last = aborted.last_offset
        self._last_offset = last

    def reset(self) -> None:
        """Remove all entries."""
        self._cut(0)
        self._last_offset = None

    def sanity_check(self) -> None:
        """Raise CorruptIndexError if an entry is incomplete or ends before the segment begins."""
        if self._file is not None and self._file.size % ENTRY.size:
            raise CorruptIndexError(f"{self.path} ends within an entry")
        for aborted in self.all():
            if aborted.last_offset < self._base_offset:
                raise CorruptIndexError(
                    f"{self.path} has a transaction that ends at {aborted.last_offset}, and begins at "
                    f"{self._base_offset} itself"
                )

    def sync(self) -> None:
        """Make the entries durable."""
        if self._file is not None:
            self._file.sync()

    def update_path(self, path: Path) -> None:
        """Set the path after the file or its directory was renamed."""
        self.path = path
        if self._file is not None:
            self._file.path = path

    def close(self) -> None:
        """Close the file after its last reader."""
        if self._file is not None:
            self._file.close()

    def _cut(self, size: int) -> None:
        if self._file is not None:
            self._file.truncate(size)

    def _entries(self) -> Iterator[tuple[int, AbortedTxn]]:
        if self._file is None:
            return
        data = self._file.read(0, self._file.size)
        for position in range(0, data.size - ENTRY.size + 1, ENTRY.size):
            version, *fields = ENTRY.unpack_from(data.data, position)
            if version != VERSION:
                raise CorruptIndexError(
                    f"{self.path} has version {version} at byte {position}, and {VERSION} is known"
                )
            yield position, AbortedTxn(*fields)
