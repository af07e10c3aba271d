"""How much of what was written stays in the operating system's page cache.

A file that is written fills as many fresh pages as it has bytes, and those of a store that only grows push
out what others keep there. Fresh pages are dear as well where a host gives its guests memory at the first
touch: there a copy into them takes six times as long as one into pages that were in use a moment ago. So the
pages of the newest files stay, for those who read what was just written, and those of older ones are given
back: the next file gets them.
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
"""Eight full ingestion files. The agent that wrote them has more of them in its own memory."""

_MAX_FILES = 1024


class WrittenLately:
    """The newest files that were written and synchronised, `limit` bytes of them. Safe for many threads."""

    def __init__(self, limit: int = KEPT_BYTES) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._files: deque[tuple[Path, int]] = deque()
        self._size = 0

    def add(self, path: Path, size: int) -> None:
        """Count a file that is durable; older ones that are too much by it leave the page cache."""
        if not hasattr(os, "posix_fadvise"):  # macOS has none
            return
        leaving = []
        with self._lock:
            self._files.append((path, size))
            self._size += size
            while self._size > self._limit or len(self._files) > _MAX_FILES:
                oldest, freed = self._files.popleft()
                self._size -= freed
                leaving.append(oldest)
        for each in leaving:
            _let_go(each)


def _let_go(path: Path) -> None:
    """Advice, and no more: a file that is gone needs none, and a system may refuse it."""
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
