"""All logs of an agent: their directories, creation, deletion, startup and shutdown.

Several log directories, usually one per disk, share the logs. A new log is created in the directory with the
fewest. When a disk fails, its directory and the logs in it go offline, and the others continue.

Source: LogManager of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from core.errors import StaleStateError
from local_tier.cleaner.log_cleaner import combined
from local_tier.errors import LogDirectoryOfflineError
from local_tier.files.file_names import PartitionDirectory
from local_tier.files.metadata_files import uuid_text, write_topic_id
from local_tier.manager.directory_loader import ConfigLookup, DirectoryLoader, DisposalLookup, all_strays
from local_tier.manager.directory_services import DirectoryPool, make_directory_services
from local_tier.manager.log_checkpoints import LogCheckpoints
from local_tier.manager.log_directories import (
    LogDirectories,
    LogDirFailureChannel,
    write_clean_shutdown_marker,
)
from local_tier.manager.log_disposal import LogDisposal
from local_tier.manager.log_moves import LogMoves
from local_tier.manager.log_opener import LogOpener
from local_tier.manager.log_registry import LogRegistry
from local_tier.manager.log_reopening import LogReopening
from local_tier.manager.periodic_tasks import PeriodicTasks
from local_tier.manager.set_aside_logs import SetAsideLogs
from local_tier.manager.set_aside_marks import SetAsideMarks
from local_tier.topic_partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path
    from uuid import UUID

    from core.clock import Clock
    from core.ids import Ids
    from local_tier.cleaner.log_cleaner import CleanerMetrics, LogCleaner
    from local_tier.cleaner.log_cleaner_manager import LogCleanerManager
    from local_tier.config import LogConfig
    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.config import LogManagerConfig
    from local_tier.manager.directory_services import DirectorySchedulers
    from local_tier.manager.log_directories import LogDirectory

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogManagerMetrics:
    """Gauges, with Kafka's names where it has them. The dictionaries are by log directory."""

    logs: int
    log_size_bytes: int
    offline_log_directory_count: int
    remaining_logs_to_recover: dict[str, int]
    remaining_segments_to_recover: dict[str, int]
    logs_waiting_for_deletion: int
    logs_set_aside: int
    stray_logs: int
    offline_logs: int
    cleaner: CleanerMetrics


class LogManager:
    """The logs of one agent. Any thread may call.

    It starts, closes, creates, finds and truncates logs. Its public parts do the rest: `moves` replaces logs
    by copies on other disks, `disposal` takes logs out of service, `reopening` serves those that wait again,
    and `marks` removes the marks of these.

    Each directory has its own schedulers. The caller starts them before `start` and stops them before
    `close`.
    """

    def __init__(
        self,
        config: LogManagerConfig,
        *,
        file_system: FileSystem,
        clock: Clock,
        ids: Ids,
        schedulers: Mapping[Path, DirectorySchedulers],
    ) -> None:
        self._config = config
        self._file_system = file_system
        self._clock = clock
        self._ids = ids
        self._registry = registry = LogRegistry()
        self._set_aside = set_aside = SetAsideLogs()
        self._failures = failures = LogDirFailureChannel(
            {path: each.failures for path, each in schedulers.items()}, self._take_offline
        )
        self._directories = directories = LogDirectories(
            config.directories, config.owner, file_system=file_system, failures=failures
        )
        self._log_checkpoints = checkpoints = LogCheckpoints(registry, config.directories, failures.report)
        self._services = services = {
            path: make_directory_services(
                path,
                schedulers[path],
                cleaner_config=config.cleaner.divided(len(config.directories)),
                delete_delay_ms=config.file_delete_delay_ms,
                registry=registry,
                file_system=file_system,
                clock=clock,
                ids=ids,
                on_failure=failures.report,
            )
            for path in config.directories
        }
        self._opener = LogOpener(
            file_system=file_system,
            clock=clock,
            ids=ids,
            services=services,
            registry=registry,
            directories=directories,
            failures=failures,
        )
        self._loader = DirectoryLoader(
            file_system=file_system,
            ids=ids,
            opener=self._opener,
            services=services,
            registry=registry,
            directories=directories,
            failures=failures,
            set_aside=set_aside,
            threads=config.recovery_threads_per_directory,
        )
        self.marks = SetAsideMarks(
            file_system=file_system,
            registry=registry,
            directories=directories,
            checkpoints=checkpoints,
            failures=failures,
        )
        self.disposal = LogDisposal(
            file_system=file_system,
            ids=ids,
            registry=registry,
            services=services,
            directories=directories,
            checkpoints=checkpoints,
            failures=failures,
            set_aside=set_aside,
            marks=self.marks,
        )
        self.reopening = LogReopening(
            file_system=file_system,
            opener=self._opener,
            registry=registry,
            directories=directories,
            checkpoints=checkpoints,
            failures=failures,
            set_aside=set_aside,
            marks=self.marks,
        )
        self.moves = LogMoves(
            ids=ids,
            opener=self._opener,
            disposal=self.disposal,
            registry=registry,
            services=services,
            directories=directories,
            checkpoints=checkpoints,
            failures=failures,
        )
        self.periodic_tasks = PeriodicTasks(
            registry=registry,
            directories=directories,
            checkpoints=checkpoints,
            cleaner_managers={path: each.cleaner.manager for path, each in services.items()},
            clock=clock,
        )

    @property
    def cleaners(self) -> dict[Path, LogCleaner]:
        """The cleaner of each log directory."""
        return {path: each.cleaner for path, each in self._services.items()}

    def start(
        self, config_of: ConfigLookup, find_disposals: DisposalLookup = all_strays, *, clean: bool = True
    ) -> None:
        """Lock the directories, open and recover all logs, and start background work.

        `find_disposals` decides about logs without a configuration; they are strays by default. Both
        functions are called after the directories were locked and listed.

        A directory whose disk fails goes offline. Raises FatalError if no directory is left, and
        InvalidInputError if a directory is in use or belongs to another agent. With `clean=False`, the
        cleaner's threads are not started.
        """
        try:
            self._directories.open_all(self._clock, self._ids)
            self._loader.load(config_of)
            self._loader.set_unknown_aside(find_disposals)
            self.marks.add(self._opener.marked)
            self.marks.remove()
            self._failures.take_failed_offline()
            self._directories.require_live()
        except BaseException:
            self._drop_all()
            raise
        for directory in self._directories.live:
            services = self._services[directory.path]
            self.periodic_tasks.schedule(self._config, directory.path, services.schedulers.tasks)
            if clean:
                services.cleaner.start()

    def close(self) -> None:
        """Flush and close all logs, write all checkpoints, and write the markers of a clean shutdown.

        A directory with a failure gets no marker.
        """
        for cleaner in self.cleaners.values():
            cleaner.stop()
        self._failures.take_failed_offline()
        threads = self._config.recovery_threads_per_directory
        waits = [
            (
                directory,
                DirectoryPool("log-closing", directory.path, threads).map(
                    _flush_and_close, self._registry.in_directory(directory.path)
                ),
            )
            for directory in self._directories.live
        ]
        try:
            for directory, wait in waits:
                error = wait()
                if error is None:
                    self._mark_closed(directory)
                else:
                    _log.error("log_directory_not_closed", path=str(directory.path), error=str(error))
        finally:
            self._directories.unlock_all()

    def get(self, name: TopicPartition, *, future: bool = False) -> UnifiedLog | None:
        """Return the log, or None if it does not exist here or its directory is offline."""
        return self._registry.get(name, future=future)

    def logs(self) -> list[UnifiedLog]:
        """Return all current logs."""
        return list(self._registry.current().values())

    def future_logs(self) -> list[UnifiedLog]:
        """Return all copies that will replace a log."""
        return list(self._registry.futures().values())

    def find_misnamed(self, name: TopicPartition, topic_id: UUID) -> UnifiedLog | None:
        """Return the log of a partition that is open under the former name of its topic, or None."""
        log = self._registry.find_by_id(topic_id, name.partition)
        return None if log is None or log.topic_partition == name else log

    def get_existing(self, name: TopicPartition, topic_id: UUID, directory_id: UUID) -> UnifiedLog:
        """Return the log of a partition that is known to be in a directory; never create it.

        Raises LogDirectoryOfflineError if the log is not there.
        """
        log = self._registry.get(name)
        if (
            log is not None
            and log.topic_id == topic_id
            and self.directory_id(log.directory.parent) == directory_id
        ):
            return log
        self._registry.require_readable(name)
        path = next((one.path for one in self._directories.live if one.directory_id == directory_id), None)
        if path is None:
            raise LogDirectoryOfflineError(
                f"log {name} is in the log directory with id {uuid_text(directory_id)}, which is not open",
                remedy="repair or mount its disk, then start the agent again; meta.properties has the id",
            )
        raise LogDirectoryOfflineError(
            f"log {name} is missing in log directory {path}",
            remedy="restore the partition directory from a copy, or delete the topic",
        )

    def get_or_create(self, topic: str, topic_id: UUID, partition: int, config: LogConfig) -> UnifiedLog:
        """Return the log of a partition. If there is none, create it in the directory with the fewest logs.

        The caller knows that no directory that is offline has the log. Raises LogDirectoryOfflineError if no
        directory works or if a log of the partition waits, StaleStateError if the log here belongs to an
        older topic of the same name, and ProcessLimitError if the process may open or map too few
        files for a new log.
        """
        name = TopicPartition(topic, partition)
        with self._registry.creation_lock(name):
            log = self._registry.get(name)
            if log is None:
                self._registry.require_readable(name)
                self.reopening.require_none(name, topic_id)
                directories = self._directories.by_load(self._registry)
                log = self._opener.create(
                    PartitionDirectory(topic, partition),
                    topic_id,
                    config,
                    directories,
                    prepare=lambda directory: self._log_checkpoints.remove_stale_entries(directory, name, 0),
                )
                self._registry.add(log)
            if log.topic_id is None:  # a crash prevented the write of the id; the log has no records
                write_topic_id(self._file_system, log.directory, topic_id)
                log.topic_id = topic_id
        if log.topic_id != topic_id:
            raise StaleStateError(
                f"log {name} belongs to topic id {log.topic_id}, not to {topic_id}",
                remedy="delete the old log first",
            )
        return log

    @property
    def directories(self) -> tuple[Path, ...]:
        """All directories, failed ones included."""
        return tuple(self._config.directories)

    def delete_records(self, name: TopicPartition, before_offset: int) -> int:
        """Durably hide the records below an offset (-1: the high watermark). Return the log start offset.

        Raises LogDirectoryOfflineError if the checkpoint could not be written.
        """
        log = self._registry.require(name)
        start = log.delete_records(before_offset)
        self.checkpoint_log_starts(log.directory.parent)
        return start

    def checkpoint_log_starts(self, path: Path) -> None:
        """Make the log start offsets of a directory durable, after records of some of its logs were deleted.

        Raises LogDirectoryOfflineError if the checkpoint could not be written.
        """
        directory = self._directories.get(path)
        if directory is None or not self._log_checkpoints.write_log_start_offsets(directory):
            raise LogDirectoryOfflineError(
                f"log start offsets could not be written to {path}",
                remedy="repair or replace the disk, then start the agent again",
            )

    def truncate_to(self, name: TopicPartition, offset: int) -> None:
        """Drop everything from `offset` on. Cleaning is paused meanwhile."""
        self._truncate(name, lambda log: log.truncate_to(offset))

    def truncate_fully(self, name: TopicPartition, offset: int, log_start_offset: int | None = None) -> None:
        """Drop everything and continue at `offset`."""
        self._truncate(name, lambda log: log.truncate_fully_and_start_at(offset, log_start_offset))

    def update_config(self, log: UnifiedLog, config: LogConfig) -> None:
        """Set the configuration of a log and of the copy that will replace it."""
        was_compacted = log.config.compact
        future = self._registry.get(log.topic_partition, future=True)
        for each in (log, future):
            if each is not None:
                each.update_config(config)
        if was_compacted and not config.compact:
            with self._cleaner_manager(log).paused(log.topic_partition):
                return  # a cleaning with the old configuration has ended

    @property
    def live_directories(self) -> list[Path]:
        """The directories that have not failed."""
        return [directory.path for directory in self._directories.live]

    @property
    def offline_directories(self) -> list[Path]:
        """The directories that have failed."""
        return [path for path in self._config.directories if path in self._failures.failed]

    @property
    def may_miss_logs(self) -> bool:
        """True if a directory has failed or was empty at the start: logs may be on a disk that is away."""
        return bool(self._failures.failed) or any(one.is_new for one in self._directories.live)

    @property
    def directory_ids(self) -> set[UUID]:
        """The ids of the directories that have not failed."""
        return {directory.directory_id for directory in self._directories.live}

    def directory_id(self, path: Path) -> UUID | None:
        """Return the id of a directory, or None if it has failed."""
        directory = self._directories.get(path)
        return directory.directory_id if directory is not None else None

    def metrics(self) -> LogManagerMetrics:
        """Return the current gauges."""
        logs, failed, progress = self._registry.all(), self._failures.failed, self._opener.progress
        return LogManagerMetrics(
            logs=len(logs),
            log_size_bytes=sum(log.size for log in logs),
            offline_log_directory_count=len(failed),
            remaining_logs_to_recover={str(path): count for path, count in progress.logs.items()},
            remaining_segments_to_recover={str(path): count for path, count in progress.segments.items()},
            logs_waiting_for_deletion=sum(len(each.deletion_queue) for each in self._services.values()),
            logs_set_aside=len(self._set_aside),
            stray_logs=self._set_aside.strays,
            offline_logs=self._registry.offline_count,
            cleaner=combined([each.metrics() for each in self.cleaners.values()]),
        )

    def _mark_closed(self, directory: LogDirectory) -> None:
        self.marks.remove(directory.path)
        for write in (
            self._log_checkpoints.write_recovery_points,
            self._log_checkpoints.write_log_start_offsets,
            self._log_checkpoints.write_high_watermarks,
        ):
            write(directory)
        if (
            directory.had_clean_shutdown or directory.is_loaded
        ) and directory.path not in self._failures.failed:
            try:
                write_clean_shutdown_marker(self._file_system, directory.path, self._config.epoch)
            except OSError as error:
                self._failures.report(directory.path, error)

    def _truncate(self, name: TopicPartition, truncate: Callable[[UnifiedLog], object]) -> None:
        log = self._registry.require(name)
        self.marks.remove(log.directory.parent)  # the recovery point in a mark may be above the new log end
        cleaner_manager = self._cleaner_manager(log)
        with cleaner_manager.paused(name):
            truncate(log)
            cleaner_manager.truncate_checkpoint(log.directory.parent, name, log.active_segment.base_offset)
        directory = self._directories.get(log.directory.parent)
        if directory is not None:
            self._log_checkpoints.lower_recovery_point(directory, log.topic_partition, log.recovery_point)

    def _cleaner_manager(self, log: UnifiedLog) -> LogCleanerManager:
        return self._services[log.directory.parent].cleaner.manager

    def _take_offline(self, path: Path) -> None:
        self._drop_logs(path)
        self._directories.remove(path)

    def _drop_logs(self, path: Path) -> None:
        services = self._services[path]
        services.cleaner.manager.remove_directory(path)
        services.deletion_queue.clear()
        self._set_aside.remove_directory(path)
        self.marks.remove_directory(path)
        for log in self._registry.remove_directory(path):
            log.close_handles()

    def _drop_all(self) -> None:
        for path in self._config.directories:
            self._drop_logs(path)
        self._directories.unlock_all()


def _flush_and_close(log: UnifiedLog) -> None:
    log.flush(force_active=True)
    log.close()
