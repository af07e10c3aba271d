"""Bound on how much of the written data stays in the operating system's page cache.

A written file fills as many fresh pages as it has bytes, so a store that only grows evicts everything else.
Fresh pages are also slow where a hypervisor provides memory at first touch: there a copy into them takes six
times as long as a copy into recently used pages. So the newest files stay in the cache for readers of new
data, and the pages of older files are released for the next file.
"""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

KEPT_BYTES = 64 * 1024 * 1024
"""Eight full ingestion files. The agent that wrote them has more in its own memory."""

_MAX_FILES = 1024


class WrittenFiles:
    """The newest files that were written and synchronized, up to `limit` bytes. Thread-safe."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._files: deque[tuple[Path, int]] = deque()
        self._size = 0

    def add(self, path: Path, size: int) -> None:
        """Add a durable file; release the pages of older files beyond the limit."""
        if not hasattr(os, "posix_fadvise"):  # not on macOS
            return
        released = []
        with self._lock:
            self._files.append((path, size))
            self._size += size
            while self._size > self._limit or len(self._files) > _MAX_FILES:
                oldest, freed = self._files.popleft()
                self._size -= freed
                released.append(oldest)
        for each in released:
            _release(each)


def _release(path: Path) -> None:
    """Advise the system to drop the file's pages; ignore files that are gone and systems that refuse."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
