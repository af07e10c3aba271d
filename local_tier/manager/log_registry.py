"""The logs of this process: current logs, future logs, and deleted logs whose files still exist.

Source: LogManager.currentLogs, futureLogs and logsToBeDeleted of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import threading
import zlib
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from core.errors import NotFoundError
from local_tier.errors import CorruptLogError, LogDirectoryOfflineError
from local_tier.files.file_system import remove_tree

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from uuid import UUID

    from core.clock import Clock
    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.scheduler import Scheduler
    from local_tier.topic_partition import TopicPartition

_CREATION_LOCKS: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableLog:
    """A log that could not be opened. Its files stay as they are, and so do its entries in checkpoints."""

    directory: Path
    reason: str
    recovery_point: int | None
    log_start_offset: int | None
    high_watermark: int | None


class LogRegistry:
    """The current and the future logs by name. Any thread may call.

    A future log is a copy in another log directory that replaces the current log when it is complete. If a
    log exists twice, it is unreadable.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: dict[TopicPartition, UnifiedLog] = {}
        self._future: dict[TopicPartition, UnifiedLog] = {}
        self._by_id: dict[tuple[UUID | None, int], UnifiedLog] = {}
        self._unreadable: dict[TopicPartition, list[UnreadableLog]] = {}
        self._failed = 0
        self._creation_locks = [threading.Lock() for _ in range(_CREATION_LOCKS)]

    def creation_lock(self, name: TopicPartition) -> threading.Lock:
        """Return the lock that is held while a log of this name is created, replaced or removed.

        Other names rarely have the same lock, so that a disk that hangs does not stop the creation of logs on
        other disks.
        """
        return self._creation_locks[zlib.crc32(str(name).encode()) % _CREATION_LOCKS]

    def current(self) -> Mapping[TopicPartition, UnifiedLog]:
        """Return a copy of the map of current logs."""
        with self._lock:
            return dict(self._current)

    def current_in(self, directory: Path) -> dict[TopicPartition, UnifiedLog]:
        """Return the current logs of one log directory by name."""
        return {name: log for name, log in self.current().items() if log.directory.parent == directory}

    def get(self, name: TopicPartition, *, future: bool = False) -> UnifiedLog | None:
        """Return the log, or None."""
        return (self._future if future else self._current).get(name)

    def require(self, name: TopicPartition) -> UnifiedLog:
        """Return the current log. Raises NotFoundError if there is none."""
        log = self.get(name)
        if log is None:
            raise NotFoundError(f"there is no log of {name}")
        return log

    def find_by_id(self, topic_id: UUID, partition: int) -> UnifiedLog | None:
        """Return the current log of a partition by its topic id, under any name, or None.

        A log without a topic id is not found, also if it gets one later.
        """
        return self._by_id.get((topic_id, partition))

    def all(self) -> list[UnifiedLog]:
        """Return the current logs, then the future logs."""
        with self._lock:
            return [*self._current.values(), *self._future.values()]

    def in_directory(self, directory: Path) -> list[UnifiedLog]:
        """Return the current and future logs of one log directory."""
        return [log for log in self.all() if log.directory.parent == directory]

    @property
    def offline_count(self) -> int:
        """The number of logs that could not be opened, or whose directory has failed since."""
        return len(self._unreadable) + self._failed

    def unreadable_in(self, directory: Path) -> dict[TopicPartition, UnreadableLog]:
        """Return the logs of one log directory that could not be opened."""
        with self._lock:
            return {
                name: log
                for name, logs in self._unreadable.items()
                for log in logs
                if log.directory.parent == directory
            }

    def add_unreadable(self, name: TopicPartition, log: UnreadableLog) -> None:
        """Add a log that could not be opened."""
        with self._lock:
            self._unreadable.setdefault(name, []).append(log)

    def require_readable(self, name: TopicPartition) -> None:
        """Raise LogDirectoryOfflineError if the log could not be opened."""
        for log in self._unreadable.get(name, ()):
            raise LogDirectoryOfflineError(
                f"log {name} in {log.directory} could not be opened: {log.reason}",
                remedy="repair or remove the directory, then start the agent again",
            )

    def add(self, log: UnifiedLog, *, future: bool = False) -> None:
        """Add a log. Raises CorruptLogError if there is another log of that name, which stays."""
        with self._lock:
            logs = self._future if future else self._current
            unreadable = [] if future else self._unreadable.get(log.topic_partition, [])
            other = unreadable[0] if unreadable else logs.setdefault(log.topic_partition, log)
            if other is log and not future:
                self._by_id[_key(log)] = log
        if other is not log:
            raise CorruptLogError(
                f"log {log.topic_partition} exists in {log.directory} and in {other.directory}",
                remedy="remove one of the two: the one in a log directory that has failed recently, if any",
            )

    def remove(
        self, name: TopicPartition, *, future: bool = False, only: UnifiedLog | None = None
    ) -> UnifiedLog | None:
        """Remove a log and return it, or None. With `only`, another log of that name stays."""
        with self._lock:
            logs = self._future if future else self._current
            removed = logs.pop(name, None) if only is None or logs.get(name) is only else None
            if removed is not None:
                self._forget_id(removed)
            return removed

    def remove_directory(self, directory: Path) -> list[UnifiedLog]:
        """Remove all logs of a log directory and return them."""
        with self._lock:
            removed = []
            for logs in (self._current, self._future):
                names = [name for name, log in logs.items() if log.directory.parent == directory]
                removed += [logs.pop(name) for name in names]
            for log in removed:
                self._forget_id(log)
            self._failed += len(removed)
            for name in list(self._unreadable):
                self._unreadable[name] = [
                    log for log in self._unreadable[name] if log.directory.parent != directory
                ]
                if not self._unreadable[name]:
                    del self._unreadable[name]
            return removed

    def promote(self, name: TopicPartition) -> UnifiedLog | None:
        """Replace the current log by the future log. Return the log that was replaced, or None.

        Raises NotFoundError if the future log was deleted meanwhile.
        """
        with self._lock:
            if name not in self._future:
                raise NotFoundError(f"there is no future log of {name}")
            before = self._current.get(name)
            log = self._current[name] = self._future.pop(name)  # in one step: readers take no lock
            self._by_id[_key(log)] = log
            return before

    def _forget_id(self, log: UnifiedLog) -> None:
        if self._by_id.get(_key(log)) is log:
            del self._by_id[_key(log)]

    def futures(self) -> dict[TopicPartition, UnifiedLog]:
        """Return a copy of the map of future logs."""
        with self._lock:
            return dict(self._future)


def _key(log: UnifiedLog) -> tuple[UUID | None, int]:
    return log.topic_id, log.topic_partition.partition


_log = structlog.get_logger(__name__)


class DeletionQueue:
    """Partition directories that are renamed to `-delete`, and removed after `file.delete.delay.ms`.

    The delay lets readers finish with the files that they hold open. Each log directory has a queue of its
    own, which its own scheduler empties. `on_failure` is called when the disk fails.
    """

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
        """Remove the directories whose delay has passed."""
        while (directory := self._next_due()) is not None:
            try:
                remove_tree(self._file_system, directory)
                self._file_system.sync_dir(directory.parent)
                _log.info("log_deleted", directory=str(directory))
            except OSError as error:
                self._on_failure(directory.parent, error)

    def clear(self) -> None:
        """Drop all entries: the disk has failed."""
        with self._lock:
            self._waiting.clear()

    def _next_due(self) -> Path | None:
        with self._lock:
            if self._waiting and self._waiting[0][0] <= self._clock.now_ms():
                return self._waiting.popleft()[1]
            return None
