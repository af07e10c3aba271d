"""The logs of this process: those in use, and those that are filled elsewhere to take their place."""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

import structlog

from local_tier.errors import CorruptLogError
from local_tier.files.file_system import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from core.clock import Clock
    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.scheduler import Scheduler
    from local_tier.topic_partition import TopicPartition


class LogRegistry:
    """Two maps from names to logs. Any thread may ask; changes exclude each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: dict[TopicPartition, UnifiedLog] = {}
        self._future: dict[TopicPartition, UnifiedLog] = {}

    def current(self) -> Mapping[TopicPartition, UnifiedLog]:
        """A copy of the logs in use."""
        with self._lock:
            return dict(self._current)

    def get(self, name: TopicPartition, *, future: bool = False) -> UnifiedLog | None:
        """The log; None when there is none."""
        return (self._future if future else self._current).get(name)

    def all(self) -> list[UnifiedLog]:
        """The logs in use, then the future ones."""
        with self._lock:
            return [*self._current.values(), *self._future.values()]

    def in_directory(self, directory: Path) -> list[UnifiedLog]:
        """Those of `all` that lie in one directory."""
        return [log for log in self.all() if log.directory.parent == directory]

    def add(self, log: UnifiedLog, *, future: bool = False) -> None:
        """Take a log in; CorruptLogError when there is another of its name, which then stays."""
        with self._lock:
            logs = self._future if future else self._current
            other = logs.setdefault(log.topic_partition, log)
        if other is not log:
            raise CorruptLogError(
                f"log {log.topic_partition} is in {log.directory} and in {other.directory}",
                remedy="remove one of the two: that in the directory that has failed lately, if one has",
            )

    def remove(self, name: TopicPartition, *, future: bool = False) -> UnifiedLog | None:
        """Take a log out, and return it."""
        with self._lock:
            return (self._future if future else self._current).pop(name, None)

    def remove_directory(self, directory: Path) -> list[UnifiedLog]:
        """Take out all logs of a directory."""
        with self._lock:
            removed = []
            for logs in (self._current, self._future):
                names = [name for name, log in logs.items() if log.directory.parent == directory]
                removed += [logs.pop(name) for name in names]
            return removed

    def promote(self, name: TopicPartition) -> UnifiedLog | None:
        """The future log becomes the one in use; returns that which was."""
        with self._lock:
            before = self._current.pop(name, None)
            self._current[name] = self._future.pop(name)
            return before


_log = structlog.get_logger(__name__)


class DeletionQueue:
    """A queue of directories; the oldest goes first. `on_failure` is told of one whose disk refuses."""

    def __init__(
        self,
        *,
        file_system: FileSystem,
        clock: Clock,
        scheduler: Scheduler,
        delay_ms: int,
        on_failure: Callable[[Path, OSError], None],
    ) -> None:
        self._file_system = file_system
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
                remove_tree(self._file_system, directory)
                self._file_system.sync_dir(directory.parent)
                _log.info("log_deleted", directory=str(directory))
            except OSError as error:
                self._on_failure(directory.parent, error)

    def remove_directory(self, parent: Path) -> None:
        """The disk of these directories has failed."""
        with self._lock:
            self._waiting = deque(entry for entry in self._waiting if entry[1].parent != parent)

    def _next_due(self) -> Path | None:
        with self._lock:
            if self._waiting and self._waiting[0][0] <= self._clock.now_ms():
                return self._waiting.popleft()[1]
            return None
