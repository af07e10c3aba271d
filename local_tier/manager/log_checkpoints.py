"""Writing the recovery points, log start offsets and high watermarks of a log directory's logs."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Literal

from local_tier.errors import CorruptCheckpointError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from local_tier.files.checkpoint_files import OffsetCheckpointFile
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.log_directories import LogDirectory
    from local_tier.manager.log_registry import LogRegistry
    from local_tier.topic_partition import TopicPartition


class LogCheckpoints:
    """Writes the checkpoints of log directories. `on_failure` is called when a write fails.

    Future logs have log start offsets only, because a crash may come just before one replaces its current
    log. They are recovered from their start.
    """

    def __init__(
        self,
        registry: LogRegistry,
        directories: Iterable[Path],
        on_failure: Callable[[Path, OSError], None],
    ) -> None:
        self._registry = registry
        self._on_failure = on_failure
        # Held from the collection of offsets to their write: older offsets must not replace newer ones.
        self._locks = {path: threading.RLock() for path in directories}
        self._written: dict[Path, Mapping[TopicPartition, int]] = {}
        """The entries of checkpoints, which only this process writes, by the path of the file."""

    def write_recovery_points(self, directory: LogDirectory) -> None:
        """Write the recovery points. They are never too high, because only a flush advances them."""
        with self._locks[directory.path]:
            points = {name: log.recovery_point for name, log in self._logs(directory).items()}
            points |= self._kept(directory, "recovery_point")
            self._write(directory.recovery_points, points)

    def lower_recovery_point(
        self, directory: LogDirectory, name: TopicPartition, recovery_point: int
    ) -> None:
        """Write the recovery points if that of a log in the file is higher than `recovery_point`.

        A lower one, or none, only makes the recovery of the log slower. The file has the points of all logs,
        so that writing it for each log takes a time that is quadratic in their number.
        """
        with self._locks[directory.path]:
            try:
                points = self._read(directory.recovery_points)
            except CorruptCheckpointError:
                self.write_recovery_points(directory)
            except OSError as error:
                self._on_failure(directory.path, error)
            else:
                if points.get(name, 0) > recovery_point:
                    self.write_recovery_points(directory)

    def write_log_start_offsets(self, directory: LogDirectory) -> bool:
        """Write the log start offsets that differ from the first segment's base offset.

        Returns False if the write failed.
        """
        with self._locks[directory.path]:
            offsets = {
                name: log.log_start_offset
                for name, log in (self._futures(directory) | self._logs(directory)).items()
                if log.log_start_offset > log.segments[0].base_offset
            }
            offsets |= self._kept(directory, "log_start_offset")
            return self._write(directory.log_start_offsets, offsets)

    def remove_log_start_offset(self, directory: LogDirectory, name: TopicPartition) -> None:
        """Remove an entry of an older log with the same name, which a crash may have left."""
        with self._locks[directory.path]:
            try:
                is_stale = name in self._read(directory.log_start_offsets)
            except CorruptCheckpointError:
                is_stale = True
            except OSError as error:
                self._on_failure(directory.path, error)
                return
            if is_stale:
                self.write_log_start_offsets(directory)

    def remove_stale_entries(
        self, directory: LogDirectory, name: TopicPartition, recovery_point: int
    ) -> None:
        """Remove entries that an older log with this name has left.

        With them, the recovery of the log would be wrong. `recovery_point` is that of the log.
        """
        self.lower_recovery_point(directory, name, recovery_point)
        self.remove_log_start_offset(directory, name)

    def write_high_watermarks(self, directory: LogDirectory) -> None:
        """Write the high watermarks."""
        with self._locks[directory.path]:
            offsets = {name: log.high_watermark for name, log in self._logs(directory).items()}
            offsets |= self._kept(directory, "high_watermark")
            self._write(directory.high_watermarks, offsets)

    def _logs(self, directory: LogDirectory) -> dict[TopicPartition, UnifiedLog]:
        logs = self._registry.current().items()
        return {name: log for name, log in logs if log.directory.parent == directory.path}

    def _futures(self, directory: LogDirectory) -> dict[TopicPartition, UnifiedLog]:
        logs = self._registry.futures().items()
        return {name: log for name, log in logs if log.directory.parent == directory.path}

    def _kept(
        self, directory: LogDirectory, name: Literal["recovery_point", "log_start_offset", "high_watermark"]
    ) -> dict[TopicPartition, int]:
        """Return the entries of logs that could not be opened, as they were."""
        unreadable = self._registry.unreadable_in(directory.path)
        found = {log_name: getattr(log, name) for log_name, log in unreadable.items()}
        return {log_name: offset for log_name, offset in found.items() if offset is not None}

    def _read(self, checkpoint: OffsetCheckpointFile) -> Mapping[TopicPartition, int]:
        offsets = self._written.get(checkpoint.path)
        if offsets is None:
            offsets = self._written[checkpoint.path] = checkpoint.read()
        return offsets

    def _write(self, checkpoint: OffsetCheckpointFile, offsets: Mapping[TopicPartition, int]) -> bool:
        self._written.pop(checkpoint.path, None)  # after a failure it is not known what the file has
        try:
            checkpoint.write(offsets)
        except OSError as error:
            self._on_failure(checkpoint.path.parent, error)
            return False
        self._written[checkpoint.path] = offsets
        return True
