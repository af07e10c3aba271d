"""Directories whose names are known to be durable, so that a new file in one costs a single fsync.

The name of a new file survives a crash once its directory is synchronized, and also every directory above it.
Once the directories above are synchronized, that remains true as long as this very directory exists: it
cannot be removed while it contains a name, and a directory that is created again is another one. Therefore an
open descriptor is kept for each known directory; while it is open, no other directory gets the same inode
number.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MAX_DIRECTORIES = 16  # an agent writes to one at a time


class _OpenDirectory:
    """Descriptor of a directory, closed with its last reference, because another thread may use it."""

    def __init__(self, path: Path) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def is_at(self, path: Path) -> bool:
        """Return True if `path` is this directory; False also if a shared file system has lost it."""
        try:
            return os.path.samestat(path.stat(), os.fstat(self.descriptor))
        except OSError:
            return False

    def synchronize(self) -> None:
        """Make the names in the directory durable."""
        os.fsync(self.descriptor)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # An argument, because the module's globals may be gone before this object when the interpreter exits.
        if self.descriptor >= 0:
            close(self.descriptor)


def synchronize_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    _OpenDirectory(directory).synchronize()


class DurableDirectories:
    """The most recent directories below `root` whose own names are durable. Thread-safe."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._known: dict[Path, _OpenDirectory] = {}

    def synchronize(self, directory: Path) -> None:
        """Make the names in `directory` durable, and the names of the directories that lead to it."""
        with self._lock:
            known = self._known.get(directory)
        if known is not None and known.is_at(directory):
            known.synchronize()
            return
        # If the directory is gone, its files were deleted again, and nothing needs to be durable.
        opened = None
        with suppress(FileNotFoundError):
            opened = _OpenDirectory(directory)
            opened.synchronize()
        above = directory
        while above != self._root:
            above = above.parent
            with suppress(FileNotFoundError):
                synchronize_directory(above)
        if opened is not None:
            self._remember(directory, opened)

    def _remember(self, path: Path, opened: _OpenDirectory) -> None:
        with self._lock:
            self._known.pop(path, None)
            self._known[path] = opened
            while len(self._known) > _MAX_DIRECTORIES:
                del self._known[next(iter(self._known))]

    def clear(self) -> None:
        """Close all descriptors."""
        with self._lock:
            self._known.clear()
