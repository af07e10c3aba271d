"""Which directories are known to stay, so that a new name in one costs one synchronisation.

A new file's name survives a crash once its directory is synchronised, and all directories above in which that
one and they are named. What was synchronised above a directory holds for as long as this very directory is
there: it cannot be removed while it has a name in it, nor be made again without becoming another one. So an
open descriptor is kept of it, for as long as it is open no other directory gets its number.
"""

from __future__ import annotations

import os
import threading
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_MOST = 16  # an agent writes to one at a time


class _OpenDirectory:
    """A directory's descriptor, closed with the last reference: another thread may be using it."""

    def __init__(self, path: Path) -> None:
        self.descriptor = -1
        self.descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)

    def is_at(self, path: Path) -> bool:
        """Whether that is what this is; no also where a file system that others share has lost this one."""
        try:
            return os.path.samestat(path.stat(), os.fstat(self.descriptor))
        except OSError:
            return False

    def synchronise(self) -> None:
        """Make the names in it durable."""
        os.fsync(self.descriptor)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # As an argument: when the interpreter ends, the module's own names may be gone before this is.
        if self.descriptor >= 0:
            close(self.descriptor)


def synchronise_directory(directory: Path) -> None:
    """Make the names in a directory durable."""
    _OpenDirectory(directory).synchronise()


class DurableDirectories:
    """Directories below `root` whose own names are durable, the latest few. Safe for many threads."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._lock = threading.Lock()
        self._known: dict[Path, _OpenDirectory] = {}

    def synchronise(self, directory: Path) -> None:
        """Make the names in `directory` durable, and those of the directories that lead to it."""
        with self._lock:
            known = self._known.get(directory)
        if known is not None and known.is_at(directory):
            known.synchronise()
            return
        # Gone already: then what was named there was deleted again, and nothing is left to be kept.
        opened = None
        with suppress(FileNotFoundError):
            opened = _OpenDirectory(directory)
            opened.synchronise()
        above = directory
        while above != self._root:
            above = above.parent
            with suppress(FileNotFoundError):
                synchronise_directory(above)
        if opened is not None:
            self._remember(directory, opened)

    def _remember(self, path: Path, opened: _OpenDirectory) -> None:
        with self._lock:
            self._known.pop(path, None)
            self._known[path] = opened
            while len(self._known) > _MOST:
                del self._known[next(iter(self._known))]

    def forget(self) -> None:
        """Let go of all."""
        with self._lock:
            self._known.clear()
