"""The periodic work of a log manager: deleting old segments, flushing, and writing checkpoints."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from local_tier.errors import LogClosedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from core.clock import Clock
    from local_tier.cleaner.log_cleaner_manager import LogCleanerManager
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.config import LogManagerConfig
    from local_tier.manager.log_checkpoints import LogCheckpoints
    from local_tier.manager.log_directories import LogDirectories, LogDirectory
    from local_tier.manager.log_registry import LogRegistry
    from local_tier.scheduler import PeriodicScheduler

_log = structlog.get_logger(__name__)


class PeriodicTasks:
    """The periodic tasks of a log manager, each of one log directory or of all.

    The tasks of a directory run on its own scheduler, so that a disk that hangs does not stop the others.
    """

    def __init__(
        self,
        *,
        registry: LogRegistry,
        directories: LogDirectories,
        checkpoints: LogCheckpoints,
        cleaner_managers: Mapping[Path, LogCleanerManager],
        clock: Clock,
    ) -> None:
        self._registry = registry
        self._directories = directories
        self._log_checkpoints = checkpoints
        self._cleaner_managers = cleaner_managers
        self._clock = clock

    def schedule(self, config: LogManagerConfig, path: Path, scheduler: PeriodicScheduler) -> None:
        """Schedule all tasks of one directory. An initial delay keeps them away from a busy start."""
        for name, task, period_ms in (
            ("log-retention", self.delete_old_segments, config.retention_check_interval_ms),
            ("log-flusher", self.flush_dirty_logs, config.flush_check_interval_ms),
            ("producer-expiry", self.remove_expired_producers, config.producer_expiry_check_interval_ms),
            (
                "recovery-point-checkpoint",
                self.checkpoint_recovery_points,
                config.recovery_point_checkpoint_interval_ms,
            ),
            (
                "log-start-offset-checkpoint",
                self.checkpoint_log_start_offsets,
                config.log_start_offset_checkpoint_interval_ms,
            ),
            (
                "high-watermark-checkpoint",
                self.checkpoint_high_watermarks,
                config.high_watermark_checkpoint_interval_ms,
            ),
        ):
            scheduler.schedule_every(
                name, partial(task, path), first_delay_ms=config.initial_task_delay_ms, period_ms=period_ms
            )

    def delete_old_segments(self, path: Path | None = None) -> int:
        """Delete old segments of logs that are not compacted. Return the number of deleted segments."""
        return sum(
            self._delete_old_segments_in(cleaner_manager)
            for directory, cleaner_manager in self._cleaner_managers.items()
            if path in {None, directory}
        )

    def _delete_old_segments_in(self, cleaner_manager: LogCleanerManager) -> int:
        deleted = 0
        logs = cleaner_manager.pause_cleaning_of_non_compacted()
        try:
            for log in logs:
                future = self._registry.get(log.topic_partition, future=True)
                for one in (log, future):
                    if one is not None:
                        deleted += _attempt("segment_deletion_failed", one, one.delete_old_segments) or 0
        finally:
            for log in logs:
                cleaner_manager.resume(log.topic_partition)
        return deleted

    def flush_dirty_logs(self, path: Path | None = None) -> None:
        """Flush the logs whose `flush.ms` has passed."""
        now_ms = self._clock.now_ms()
        for log in self._logs(path):
            if now_ms - log.last_flush_ms >= log.config.flush_ms:
                _attempt("log_flush_failed", log, log.flush)

    def remove_expired_producers(self, path: Path | None = None) -> None:
        """Drop the state of producers that have not appended for the expiry time, in every log."""
        for log in self._logs(path):
            _attempt("producer_expiry_failed", log, log.remove_expired_producers)

    def checkpoint_recovery_points(self, path: Path | None = None) -> None:
        """Write the recovery points of all logs."""
        for directory in self._live(path):
            self._log_checkpoints.write_recovery_points(directory)

    def checkpoint_log_start_offsets(self, path: Path | None = None) -> None:
        """Write the log start offsets of all logs."""
        for directory in self._live(path):
            self._log_checkpoints.write_log_start_offsets(directory)

    def checkpoint_high_watermarks(self, path: Path | None = None) -> None:
        """Write the high watermarks of all logs."""
        for directory in self._live(path):
            self._log_checkpoints.write_high_watermarks(directory)

    def _logs(self, path: Path | None) -> list[UnifiedLog]:
        return self._registry.all() if path is None else self._registry.in_directory(path)

    def _live(self, path: Path | None) -> list[LogDirectory]:
        return [directory for directory in self._directories.live if path in {None, directory.path}]


def _attempt(event: str, log: UnifiedLog, work: Callable[[], int | None]) -> int | None:
    """Run `work` and log its error: an error of one log must not stop the work on others."""
    try:
        return work()
    except LogClosedError:  # it was deleted or replaced
        return None
    except Exception:  # noqa: BLE001  # an error of one log must not stop the work on others
        _log.exception(event, log=str(log.topic_partition))
        return None
