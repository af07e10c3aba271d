"""The `.log` file of a segment: record batches behind each other, and how many bytes of them there are.

The size is kept here and not asked from the disk: a failed append may leave bytes behind the last whole one,
and a preallocated file is longer than its log.
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
    """One writer appends; readers come from any thread, and the last of them keeps the file open."""

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
        """Write `data` behind what is there; after an OSError the file has what it had."""
        self._file.write(data, self.size)
        self.size += memoryview(data).nbytes

    def read(self, position: int, count: int) -> Bytes:
        """Up to `count` bytes from `position` on; fewer only at the end of the log."""
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
        """Cut the log to `size` bytes; how many went."""
        removed = max(0, self.size - size)
        if self._file.size() > size:
            self._file.truncate(size)
        self.size = min(self.size, size)
        return removed

    def trim(self) -> None:
        """Cut what was preallocated, or left behind by a failed append."""
        if self._file.size() > self.size:
            self._file.truncate(self.size)

    def sync(self) -> None:
        """Make the bytes durable; LogClosedError when the file was closed, as it may be by another thread."""
        self._acquire()
        try:
            self._file.sync()
        finally:
            self._release()

    def close(self) -> None:
        """Let go of the file once its last reader is done."""
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
