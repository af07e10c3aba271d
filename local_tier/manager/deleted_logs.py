"""Logs whose directories were renamed for deletion, until `file.delete.delay.ms` has passed.

Readers that were at work then finish with the files that they hold open.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

import structlog

from local_tier.files.whole_files import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from core.clock import Clock
    from local_tier.files.file_system import FileSystem
    from local_tier.scheduling import Scheduler

_log = structlog.get_logger(__name__)


class DeletedLogs:
    """A queue of directories; the oldest goes first. `on_failure` is told of one whose disk refuses."""

    def __init__(
        self,
        *,
        files: FileSystem,
        clock: Clock,
        scheduler: Scheduler,
        delay_ms: int,
        on_failure: Callable[[Path, OSError], None],
    ) -> None:
        self._files = files
        self._clock = clock
        self._scheduler = scheduler
        self._delay_ms = delay_ms
        self._on_failure = on_failure
        self._lock = threading.Lock()
        self._waiting: deque[tuple[int, Path]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, directory: Path) -> None:
        """Remove a directory, whose log is closed, after the delay."""
        with self._lock:
            self._waiting.append((self._clock.now_ms() + self._delay_ms, directory))
        self._scheduler.schedule_once("delete-logs", self.remove_due, self._delay_ms)

    def remove_due(self) -> None:
        """Remove what has waited long enough."""
        while (directory := self._next_due()) is not None:
            try:
                remove_tree(self._files, directory)
                self._files.sync_dir(directory.parent)
                _log.info("log_deleted", directory=str(directory))
            except OSError as error:
                self._on_failure(directory.parent, error)

    def drop_directory(self, parent: Path) -> None:
        """The disk of these directories has failed."""
        with self._lock:
            self._waiting = deque(entry for entry in self._waiting if entry[1].parent != parent)

    def _next_due(self) -> Path | None:
        with self._lock:
            if self._waiting and self._waiting[0][0] <= self._clock.now_ms():
                return self._waiting.popleft()[1]
            return None
