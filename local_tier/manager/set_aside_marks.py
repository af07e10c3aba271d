"""The marks of logs that wait: a file in the partition directory with the log's entries of the checkpoints.

A log that is served again keeps its mark until the checkpoints have its entries. A start after a crash takes
the entries from the mark, if they are higher, and recovers the log.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import structlog

from core.errors import CorruptDataError
from local_tier.files.metadata_files import (
    SetAsideOffsets,
    read_set_aside_offsets,
    remove_set_aside_offsets,
    write_set_aside_offsets,
)

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.log_checkpoints import LogCheckpoints
    from local_tier.manager.log_directories import LogDirectories, LogDirFailureChannel
    from local_tier.manager.log_registry import LogRegistry

_log = structlog.get_logger(__name__)


def read_mark(file_system: FileSystem, path: Path) -> SetAsideOffsets | None:
    """Return the mark in a partition directory, or None. A damaged mark is none."""
    try:
        return read_set_aside_offsets(file_system, path)
    except CorruptDataError as error:
        _log.warning("checkpoint_unreadable", path=str(path), error=str(error))
        return None


class SetAsideMarks:
    """Writes and removes marks, and knows the logs that are served with one. Any thread may call.

    It changes the mark files and, before it removes marks, the checkpoints of their log directory. It takes
    the creation lock of a log whose mark it removes; a caller that writes a mark has that lock.
    """

    def __init__(
        self,
        *,
        file_system: FileSystem,
        registry: LogRegistry,
        directories: LogDirectories,
        checkpoints: LogCheckpoints,
        failures: LogDirFailureChannel,
    ) -> None:
        self._file_system = file_system
        self._registry = registry
        self._directories = directories
        self._checkpoints = checkpoints
        self._failures = failures
        self._lock = threading.Lock()
        self._served: dict[Path, list[UnifiedLog]] = {}

    def __contains__(self, log: UnifiedLog) -> bool:
        """Return True if a log is served with a mark."""
        with self._lock:
            return log in self._served.get(log.directory.parent, ())

    def add(self, logs: Iterable[UnifiedLog]) -> None:
        """Add logs that are served with a mark."""
        with self._lock:
            for log in logs:
                self._served.setdefault(log.directory.parent, []).append(log)

    def write(self, log: UnifiedLog) -> None:
        """Mark a log as one that waits, with its entries of the checkpoints."""
        offsets = SetAsideOffsets(log_start_offset=log.log_start_offset, recovery_point=log.recovery_point)
        try:
            write_set_aside_offsets(self._file_system, log.directory, offsets)
        except OSError as error:
            self._failures.report_and_raise(log.directory.parent, error)

    def remove(self, path: Path | None = None) -> None:
        """Remove the marks of logs that are served again, in one log directory or all.

        First the checkpoints are written, once for all logs of a directory, so that they have the entries of
        these logs. No mark is left that was there before the call, even if several threads call.
        """
        for directory in self._directories.live:
            logs = self._served_in(directory.path) if path in {None, directory.path} else []
            if logs and self._checkpoints.write_log_start_offsets(directory):
                self._checkpoints.write_recovery_points(directory)
                for log in logs:
                    self._remove(log)

    def _remove(self, log: UnifiedLog) -> None:
        with self._registry.creation_lock(log.topic_partition):
            if log not in self:
                return  # another thread has removed the mark
            if self._registry.get(log.topic_partition) is log:  # otherwise it waits again, and needs the mark
                self.remove_file(log.directory)
            with self._lock:
                served = self._served.get(log.directory.parent, [])
                if log in served:  # its disk may have failed since
                    served.remove(log)

    def remove_file(self, path: Path) -> None:
        """Remove the mark in a partition directory."""
        try:
            remove_set_aside_offsets(self._file_system, path)
        except OSError as error:
            self._failures.report(path.parent, error)

    def remove_directory(self, directory: Path) -> None:
        """Drop the logs of a log directory: its disk has failed."""
        with self._lock:
            self._served.pop(directory, None)

    def _served_in(self, directory: Path) -> list[UnifiedLog]:
        with self._lock:
            return list(self._served.get(directory, ()))
