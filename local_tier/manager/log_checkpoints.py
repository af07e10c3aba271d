"""Writing down, by directory, from where logs are recovered, where they begin, and what is readable."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from local_tier.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from local_tier.files.checkpoint_files import OffsetCheckpointFile
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.log_directories import LogDirectory
    from local_tier.manager.log_registry import LogRegistry
    from local_tier.topic_partition import TopicPartition


class LogCheckpoints:
    """The checkpoints of one directory after the other; `on_failure` is told of one that cannot be written.

    A future log has no line of its own: it is recovered from its start.
    """

    def __init__(self, registry: LogRegistry, on_failure: Callable[[Path, OSError], None]) -> None:
        self._registry = registry
        self._on_failure = on_failure
        # What one thread has gathered must not replace what another has gathered later.
        self._lock = threading.RLock()

    def write_recovery_points(self, directory: LogDirectory) -> None:
        """Up to where each log is durable, as the last flush made it: never too high."""
        with self._lock:
            points = {name: log.recovery_point for name, log in self._logs(directory).items()}
            self._write(directory.recovery_points, points)

    def write_log_start_offsets(self, directory: LogDirectory) -> bool:
        """Where each log begins, when that is not where its first segment does; whether it was written."""
        with self._lock:
            offsets = {
                name: log.log_start_offset
                for name, log in self._logs(directory).items()
                if log.log_start_offset > log.segments[0].base_offset
            }
            return self._write(directory.log_start_offsets, offsets)

    def remove_log_start_offset(self, directory: LogDirectory, name: TopicPartition) -> None:
        """A new log does not begin where one that had its name did, whose line a crash may have left."""
        with self._lock:
            try:
                is_stale = name in directory.log_start_offsets.read()
            except CorruptCheckpointError:
                is_stale = True
            except OSError as error:
                self._on_failure(directory.path, error)
                return
            if is_stale:
                self.write_log_start_offsets(directory)

    def write_high_watermarks(self, directory: LogDirectory) -> None:
        """Up to where readers may read."""
        with self._lock:
            offsets = {name: log.high_watermark for name, log in self._logs(directory).items()}
            self._write(directory.high_watermarks, offsets)

    def _logs(self, directory: LogDirectory) -> dict[TopicPartition, UnifiedLog]:
        logs = self._registry.current().items()
        return {name: log for name, log in logs if log.directory.parent == directory.path}

    def _write(self, checkpoint: OffsetCheckpointFile, offsets: Mapping[TopicPartition, int]) -> bool:
        try:
            checkpoint.write(offsets)
        except OSError as error:
            self._on_failure(checkpoint.path.parent, error)
            return False
        return True
