"""A file that one writer appends to while other threads read: `.log` and `.txnindex`.

The size is kept in memory and not taken from the disk. A failed append may leave bytes after the last
complete one, and a preallocated file is longer than its content.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np

from local_tier.errors import LogClosedError

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer

    from local_tier.files.file_system import FileSystem, OpenFile
    from object_format.buffers import Bytes


class AppendFile:
    """A file with one writer and any number of readers.

    The last reader of a closed file closes the descriptor.
    """

    def __init__(self, file_system: FileSystem, path: Path, *, preallocate: int = 0) -> None:
        self.path = path
        self._lock = threading.Lock()
        self._readers = 0
        self._is_closing = False
        is_new = file_system.status(path) is None
        self._file: OpenFile = file_system.open(path, create=is_new)
        if is_new and preallocate:
            self._file.allocate(preallocate)
        self.size = 0 if is_new else self._file.size()

    def append(self, data: Buffer) -> None:
        """Write `data` at the end. After an OSError the size is unchanged."""
        self._file.write(data, self.size)
        self.size += memoryview(data).nbytes

    def read(self, position: int, count: int) -> Bytes:
        """Read up to `count` bytes from `position` on. The result is shorter only at the end."""
        available = min(count, self.size - position)
        if available <= 0:
            return np.empty(0, np.uint8)
        buffer = np.empty(available, np.uint8)
        self._acquire()
        try:
            done = self._file.read_into(buffer.data, position)
        finally:
            self._release()
        return buffer[:done]

    def truncate(self, size: int) -> int:
        """Cut the content to `size` bytes and return the number of bytes removed."""
        removed = max(0, self.size - size)
        if self._file.size() > size:
            self._file.truncate(size)
        self.size = min(self.size, size)
        return removed

    def trim(self) -> None:
        """Remove preallocated space and the remains of a failed append."""
        if self._file.size() > self.size:
            self._file.truncate(self.size)

    def sync(self) -> None:
        """Make the bytes durable. Raises LogClosedError if another thread has closed the file."""
        self._acquire()
        try:
            self._file.sync()
        finally:
            self._release()

    def close(self) -> None:
        """Close the file after its last reader."""
        with self._lock:
            self._is_closing = True
            is_last = not self._readers
        if is_last:
            self._file.close()

    def _acquire(self) -> None:
        with self._lock:
            if self._is_closing:
                raise LogClosedError(f"{self.path} is closed")
            self._readers += 1

    def _release(self) -> None:
        with self._lock:
            self._readers -= 1
            is_last = self._is_closing and not self._readers
        if is_last:
            self._file.close()
