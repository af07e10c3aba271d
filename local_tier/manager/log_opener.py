"""Opening single logs: at the start, when one is created, and when one is served again."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

import structlog

from core.errors import CorruptDataError
from local_tier.errors import CorruptLogError, LogDirectoryOfflineError
from local_tier.files.file_names import PartitionDirectory, parse_partition_directory
from local_tier.files.metadata_files import SetAsideOffsets
from local_tier.files.process_limits import Reserve, process_limits
from local_tier.log.log_loader import open_log
from local_tier.manager.log_registry import UnreadableLog
from local_tier.manager.set_aside_marks import read_mark
from local_tier.topic_partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from uuid import UUID

    from core.clock import Clock
    from core.ids import Ids
    from local_tier.config import LogConfig
    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.directory_services import DirectoryServices
    from local_tier.manager.log_directories import LogDirectories, LogDirectory, LogDirFailureChannel
    from local_tier.manager.log_registry import LogRegistry
    from local_tier.manager.set_aside_logs import SetAsideLog

_log = structlog.get_logger(__name__)
LOG_RESERVE: Final = Reserve(descriptors=12, maps=4)
"""At least what creating a log takes at a time: its segment with indexes, a checkpoint, and directories."""
_NO_OFFSETS: Final = SetAsideOffsets(log_start_offset=0, recovery_point=0)


@dataclass(slots=True)
class RecoveryProgress:
    """The logs and segments that must still be recovered, by log directory. Thread-safe.

    Source: remainingLogsToRecover and remainingSegmentsToRecover of Kafka's LogManager.
    """

    logs: dict[Path, int] = field(default_factory=dict)
    segments: dict[Path, int] = field(default_factory=dict)
    _by_log: dict[Path, int] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def begin(self, directory: Path, logs: int) -> None:
        """Set the number of logs to open."""
        with self._lock:
            self.logs[directory], self.segments[directory] = logs, 0

    def log_loaded(self, directory: Path) -> None:
        """Count one log as opened."""
        with self._lock:
            self.logs[directory] -= 1

    def set_segments(self, log: Path, count: int) -> None:
        """Set the number of segments of a log that must still be read."""
        with self._lock:
            self._by_log[log] = count
            self.segments[log.parent] = sum(
                n for path, n in self._by_log.items() if path.parent == log.parent
            )


class LogOpener:
    """Opens or creates one log, and gives it what it needs of its log directory. Any thread may call.

    It changes the partition directory, and adds a log that cannot be opened to `registry` as unreadable. Only
    `open_found` adds the opened log to `registry`; otherwise the caller does.
    """

    def __init__(
        self,
        *,
        file_system: FileSystem,
        clock: Clock,
        ids: Ids,
        services: Mapping[Path, DirectoryServices],
        registry: LogRegistry,
        directories: LogDirectories,
        failures: LogDirFailureChannel,
    ) -> None:
        self._file_system = file_system
        self._clock = clock
        self._ids = ids
        self._services = services
        self._registry = registry
        self._directories = directories
        self._failures = failures
        self._add_lock = threading.Lock()
        self.progress = RecoveryProgress()
        self.marked: list[UnifiedLog] = []
        """Logs that were found with a mark: the agent was killed while it opened or closed them."""

    def create(
        self,
        name: PartitionDirectory,
        topic_id: UUID | None,
        config: LogConfig,
        directories: Iterable[LogDirectory],
        *,
        prepare: Callable[[LogDirectory], None] = lambda _: None,
    ) -> UnifiedLog:
        """Create a log in the first of `directories` whose disk works, after `prepare` of the directory.

        Raises LogDirectoryOfflineError if there is none, and ProcessLimitError if the process may open or map
        too few files.
        """
        with process_limits.reserving(LOG_RESERVE):
            for directory in directories:
                prepare(directory)
                try:
                    return self._open(directory, name, config, topic_id=topic_id, had_clean_shutdown=True)
                except LogDirectoryOfflineError:  # the failure was reported already
                    continue
        raise LogDirectoryOfflineError(
            f"no log directory can take log {name.topic}-{name.partition}",
            remedy="repair or replace the failed disks, then start the agent again",
        )

    def reopen(
        self, directory: LogDirectory, found: SetAsideLog, name: TopicPartition, config: LogConfig
    ) -> UnifiedLog:
        """Open a log that was set aside, under a name that no directory has.

        If it cannot be opened, it is unreadable, as at a start. Raises LogDirectoryOfflineError then, and
        after a failure of the disk.
        """
        live = PartitionDirectory(name.topic, name.partition)
        try:
            offsets = read_mark(self._file_system, found.path) or _NO_OFFSETS
            self._file_system.rename(found.path, directory.path / live.name)
            self._file_system.sync_dir(directory.path)
            return self._open(
                directory,
                live,
                config,
                topic_id=found.topic_id,
                had_clean_shutdown=False,
                log_start_offset=offsets.log_start_offset,
                recovery_point=offsets.recovery_point,
            )
        except OSError as error:
            self._failures.report_and_raise(directory.path, error)
        except CorruptDataError as error:
            self.set_unreadable(directory, live, error)
            self._registry.require_readable(name)
            raise

    def open_found(
        self,
        directory: LogDirectory,
        name: PartitionDirectory,
        config: LogConfig,
        topic_id: UUID | None,
        *,
        is_recovered_fully: bool = False,
    ) -> None:
        """Open a log that was found at the start, and add it to the registry.

        Raises CorruptDataError if it cannot be opened, or if there is another log of that name.
        """
        log_name, contents = TopicPartition(name.topic, name.partition), directory.contents
        mark = read_mark(self._file_system, directory.path / name.name)
        offsets = self.offsets_of(directory, name, mark)
        log = self._open(
            directory,
            name,
            config,
            topic_id=topic_id,
            had_clean_shutdown=contents.had_clean_shutdown and mark is None,
            log_start_offset=offsets.log_start_offset,
            recovery_point=0 if is_recovered_fully else offsets.recovery_point,
        )
        log.update_high_watermark(contents.high_watermarks.get(log_name, 0))
        self._add(log)
        if mark is not None:
            with self._add_lock:
                self.marked.append(log)

    def offsets_of(
        self, directory: LogDirectory, name: PartitionDirectory, mark: SetAsideOffsets | None
    ) -> SetAsideOffsets:
        """Return a log's entries of the checkpoints, or those of its mark if they are higher."""
        log_name, contents = TopicPartition(name.topic, name.partition), directory.contents
        marked = mark or _NO_OFFSETS
        return SetAsideOffsets(
            log_start_offset=max(contents.log_start_offsets.get(log_name, 0), marked.log_start_offset),
            recovery_point=max(contents.recovery_points.get(log_name, 0), marked.recovery_point),
        )

    def _open(
        self,
        directory: LogDirectory,
        name: PartitionDirectory,
        config: LogConfig,
        *,
        topic_id: UUID | None,
        had_clean_shutdown: bool,
        log_start_offset: int = 0,
        recovery_point: int = 0,
    ) -> UnifiedLog:
        return open_log(
            self._file_system,
            directory.path / name.name,
            config,
            topic_partition=TopicPartition(name.topic, name.partition),
            topic_id=topic_id,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            had_clean_shutdown=had_clean_shutdown,
            clock=self._clock,
            ids=self._ids,
            scheduler=self._services[directory.path].schedulers.tasks,
            on_failure=self._failures.report,
            on_segments_remaining=partial(self.progress.set_segments, directory.path / name.name),
        )

    def set_unreadable(
        self, directory: LogDirectory, name: PartitionDirectory, error: CorruptDataError
    ) -> None:
        """Leave a log as it is. Its partition is offline until the agent starts again."""
        log_name, path = TopicPartition(name.topic, name.partition), directory.path / name.name
        contents = directory.contents
        _log.error("log_unreadable", directory=str(path), reason=str(error))
        directory.has_unreadable_logs = True
        self._registry.add_unreadable(
            log_name,
            UnreadableLog(
                directory=path,
                reason=str(error),
                recovery_point=contents.recovery_points.get(log_name),
                log_start_offset=contents.log_start_offsets.get(log_name),
                high_watermark=contents.high_watermarks.get(log_name),
            ),
        )

    def _add(self, log: UnifiedLog) -> None:
        """Add a log. Of two logs of the same name none is served: nothing says which one is newer."""
        with self._add_lock:
            try:
                self._registry.add(log)
            except CorruptLogError as error:
                log.close_handles()
                other = self._registry.remove(log.topic_partition)
                if other is not None:
                    self._set_other_unreadable(other, error)
                raise

    def _set_other_unreadable(self, log: UnifiedLog, error: CorruptLogError) -> None:
        log.close_handles()
        directory = self._directories.get(log.directory.parent)
        name = parse_partition_directory(log.directory.name)
        if directory is not None and name is not None:
            self.set_unreadable(directory, name, error)
