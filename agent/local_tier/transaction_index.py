"""The aborted transactions of a segment: `.txnindex`, 34 bytes an entry, made when the first one aborts.

::

    version             int16   0
    producer id         int64
    first offset        int64   of the transaction
    last offset         int64   of the transaction: its marker
    last stable offset  int64   when it was aborted

Last offsets rise from entry to entry.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from agent.local_tier.errors import CorruptIndexError, IndexOverflowError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from agent.local_tier.files import FileSystem, OpenFile

ENTRY: Final = struct.Struct(">hqqqq")
VERSION: Final = 0


class AbortedTransaction(NamedTuple):
    """What was aborted, and how far readers of committed data could go at that time."""

    producer_id: int
    first_offset: int
    last_offset: int
    last_stable_offset: int


class TransactionIndex:
    """The transaction index of one segment. The log's writer appends; any thread reads."""

    def __init__(self, fs: FileSystem, path: Path, base_offset: int) -> None:
        self.path = path
        self._fs = fs
        self._base_offset = base_offset
        self._file: OpenFile | None = None
        self._size = 0
        self._last_offset: int | None = None
        if fs.status(path) is not None:
            file = self._open()
            self._size = file.size() - file.size() % ENTRY.size

    def append(self, aborted: AbortedTransaction) -> None:
        """Add a transaction, whose last offset must be above those before it."""
        if self._last_offset is not None and aborted.last_offset <= self._last_offset:
            raise IndexOverflowError(
                f"last offset {aborted.last_offset} is not above {self._last_offset}, the last in {self.path}"
            )
        self._open().write(ENTRY.pack(VERSION, *aborted), self._size)
        self._size += ENTRY.size
        self._last_offset = aborted.last_offset

    def all(self) -> list[AbortedTransaction]:
        """Every entry, in order; CorruptIndexError when one is of an unknown version."""
        return [aborted for _, aborted in self._entries()]

    def collect(self, first_offset: int, end_offset: int) -> tuple[list[AbortedTransaction], bool]:
        """The transactions that overlap [first_offset, end_offset); whether later segments may have any."""
        found: list[AbortedTransaction] = []
        for aborted in self.all():
            if aborted.last_offset >= first_offset and aborted.first_offset < end_offset:
                found.append(aborted)
            if aborted.last_stable_offset >= end_offset:
                return found, False
        return found, True

    def truncate_to(self, offset: int) -> None:
        """Forget transactions that end at or above `offset`."""
        last: int | None = None
        for position, aborted in self._entries():
            if aborted.last_offset >= offset:
                self._size = position
                self._open().truncate(position)
                break
            last = aborted.last_offset
        self._last_offset = last

    def reset(self) -> None:
        """Forget all."""
        if self._file is not None:
            self._file.truncate(0)
        self._size, self._last_offset = 0, None

    def sanity_check(self) -> None:
        """CorruptIndexError when an entry ends before its segment begins, or is not whole."""
        if self._file is not None and self._file.size() != self._size:
            raise CorruptIndexError(f"{self.path} ends inside an entry")
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

    def renamed(self, path: Path) -> None:
        """The file, or the directory it is in, has another name now."""
        self.path = path

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> OpenFile:
        if self._file is None:
            self._file = self._fs.open(self.path, create=True)
        return self._file

    def _entries(self) -> Iterator[tuple[int, AbortedTransaction]]:
        file, size = self._file, self._size
        if file is None or not size:
            return
        data = bytearray(size)
        read = file.read_into(data, 0)
        for position in range(0, read - ENTRY.size + 1, ENTRY.size):
            version, *fields = ENTRY.unpack_from(data, position)
            if version != VERSION:
                raise CorruptIndexError(
                    f"{self.path} has version {version} at byte {position}, and {VERSION} is known"
                )
            yield position, AbortedTransaction(*fields)
