"""The context of one log: its directory, file system, clock and configuration."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from local_tier.errors import LogClosedError, LogDirectoryOfflineError
from local_tier.files import file_names
from local_tier.segment.log_segment import LogSegment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from core.clock import Clock
    from core.ids import Ids
    from local_tier.config import LogConfig
    from local_tier.files.file_system import FileSystem
    from local_tier.scheduler import Scheduler
    from local_tier.topic_partition import TopicPartition

_log = structlog.get_logger(__name__)


@dataclass(slots=True, kw_only=True)
class LogContext:
    """The state and services that the parts of one log share.

    When the disk fails, `on_failure` is called with the log directory (the parent of this log's directory)
    and the error. From then on all operations of the log raise LogDirectoryOfflineError.
    """

    file_system: FileSystem
    directory: Path
    topic_partition: TopicPartition
    config: LogConfig
    clock: Clock
    ids: Ids
    scheduler: Scheduler
    on_failure: Callable[[Path, OSError], None]
    is_offline: bool = False
    is_closed: bool = False

    @property
    def log_name(self) -> str:
        """The name of the log for messages."""
        return str(self.topic_partition)

    @contextmanager
    def disk_operation(self, operation: str) -> Iterator[None]:
        """Report a disk failure in the block once, and raise it as LogDirectoryOfflineError."""
        if self.is_offline:
            raise LogDirectoryOfflineError(
                f"{self.log_name} cannot be used: log directory {self.directory.parent} is offline",
                remedy="repair or replace the disk, then start the agent again",
            )
        try:
            yield
        except OSError as error:
            if self.is_closed and isinstance(error, FileNotFoundError):  # the directory was renamed
                raise LogClosedError(f"log {self.log_name} is closed") from error
            self.is_offline = True
            _log.error("log_directory_failed", log=self.log_name, operation=operation, reason=str(error))
            self.on_failure(self.directory.parent, error)
            raise LogDirectoryOfflineError(
                f"{operation} of {self.log_name} in {self.directory.parent} failed: {error}",
                remedy="repair or replace the disk, then start the agent again",
            ) from error

    def check_open(self) -> None:
        """Raise LogClosedError if the log was closed or deleted."""
        if self.is_closed:
            raise LogClosedError(f"log {self.log_name} is closed")

    def open_segment(self, base_offset: int, *, suffix: str = "") -> LogSegment:
        """Open a segment of this log. A new file is preallocated if the topic's configuration says so."""
        config = self.config
        jitter = config.segment_jitter_ms
        return LogSegment(
            self.file_system,
            self.directory,
            base_offset,
            config,
            clock=self.clock,
            roll_jitter_ms=int(self.ids.random() * jitter) if jitter else 0,
            suffix=suffix,
            preallocate=config.segment_bytes if config.preallocate else 0,
        )

    def delete_segment_files(self, base_offset: int, suffix: str) -> None:
        """Unlink the files of a segment with that suffix, if they exist."""
        for kind in (file_names.OFFSET_INDEX, file_names.TIME_INDEX, file_names.TXN_INDEX, file_names.LOG):
            path = file_names.segment_file(self.directory, base_offset, kind, suffix)
            self.file_system.unlink(path, missing_ok=True)

    def schedule_once(self, name: str, task: Callable[[], None], delay_ms: int = 0) -> None:
        """Run a task with disk operations on the scheduler. A failure takes the log directory offline.

        A task of a log that was closed or replaced meanwhile ends quietly.
        """

        def run() -> None:
            try:
                with self.disk_operation(name):
                    task()
            except LogClosedError:
                if not self.is_closed:
                    raise

        self.scheduler.schedule_once(name, run, delay_ms)
