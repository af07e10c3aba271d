"""Opening the logs of directories at the start, and making new ones."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Protocol

import structlog

from local_tier.errors import LogDirectoryOfflineError
from local_tier.files.directory_names import DirectoryState, LogDirectory, passing_directory
from local_tier.files.partition_metadata import read_topic_id
from local_tier.log.opening import open_log
from local_tier.manager.directory_work import DirectoryPool, RecoveryProgress
from local_tier.topic_partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from core.clock import Clock
    from core.ids import Ids
    from local_tier.config import LogConfig
    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.data_directory import DataDirectory, DirectoryContents
    from local_tier.manager.deleted_logs import DeletedLogs
    from local_tier.manager.log_directories import LogDirectories
    from local_tier.manager.log_registry import LogRegistry
    from local_tier.scheduling import Scheduler

_log = structlog.get_logger(__name__)


class ConfigOf(Protocol):
    """Looks up the configuration of a log that is found on disk."""

    def __call__(self, log: TopicPartition, topic_id: UUID | None) -> LogConfig | None:
        """None for a log that nobody knows any more: it is set aside as a stray."""
        ...


class LogOpener:
    """Opens logs into `registry`; directories that wait to be deleted go to `deleted`."""

    def __init__(
        self,
        *,
        files: FileSystem,
        clock: Clock,
        ids: Ids,
        scheduler: Scheduler,
        registry: LogRegistry,
        directories: LogDirectories,
        deleted: DeletedLogs,
        threads: int,
    ) -> None:
        self._files = files
        self._clock = clock
        self._ids = ids
        self._scheduler = scheduler
        self._registry = registry
        self._directories = directories
        self._deleted = deleted
        self._threads = threads
        self.progress = RecoveryProgress()
        self.strays = 0

    def load(self, config_of: ConfigOf) -> None:
        """Open every log of every live directory, on `threads` threads each.

        A directory whose disk fails is reported. Raises the first error of another kind.
        """
        waits = []
        for directory in self._directories.live:
            try:
                contents = directory.look()
            except OSError as error:
                self._directories.report_failure(directory.path, error)
                continue
            self.progress.begin(directory.path, len(contents.logs))
            pool = DirectoryPool("log-recovery", directory.path, self._threads)
            work = partial(self._load_one, directory, contents, config_of)
            waits.append((directory, pool.map(work, contents.logs)))
        for directory, failure in [(directory, wait()) for directory, wait in waits]:
            directory.is_loaded = failure is None
            if isinstance(failure, OSError):
                self._directories.report_failure(directory.path, failure)

    def create(
        self, name: LogDirectory, topic_id: UUID | None, config: LogConfig, places: Iterable[DataDirectory]
    ) -> UnifiedLog:
        """A new log in the first of `places` whose disk takes it, else LogDirectoryOfflineError."""
        for place in places:
            try:
                return self._open(place, name, config, topic_id=topic_id, was_clean=True)
            except LogDirectoryOfflineError:  # it was reported
                continue
        raise LogDirectoryOfflineError(
            f"no log directory is left for log {name.topic}-{name.partition}",
            remedy="repair or replace the disks that failed, and start the agent again",
        )

    def _load_one(
        self, directory: DataDirectory, contents: DirectoryContents, config_of: ConfigOf, name: LogDirectory
    ) -> None:
        try:
            match name.state:
                case DirectoryState.DELETE:
                    self._deleted.add(directory.path / name.name)
                case DirectoryState.STRAY:
                    self._note_stray(directory, name)
                case DirectoryState.LIVE | DirectoryState.FUTURE:
                    self._load_log(directory, contents, config_of, name)
        finally:
            self.progress.log_done(directory.path)

    def _load_log(
        self, directory: DataDirectory, contents: DirectoryContents, config_of: ConfigOf, name: LogDirectory
    ) -> None:
        log_name = TopicPartition(name.topic, name.partition)
        topic_id = read_topic_id(self._files, directory.path / name.name)
        config = config_of(log_name, topic_id)
        if config is None:
            stray = passing_directory(name.topic, name.partition, DirectoryState.STRAY, self._ids.new_uuid())
            self._files.rename(directory.path / name.name, directory.path / stray.name)
            self._files.sync_dir(directory.path)
            self._note_stray(directory, stray)
            return
        is_future = name.state is DirectoryState.FUTURE
        log = self._open(
            directory,
            name,
            config,
            topic_id=topic_id,
            was_clean=contents.was_clean,
            log_start_offset=0 if is_future else contents.log_start_offsets.get(log_name, 0),
            recovery_point=0 if is_future else contents.recovery_points.get(log_name),
        )
        if not is_future:
            log.update_high_watermark(contents.high_watermarks.get(log_name, 0))
        self._registry.add(log, future=is_future)

    def _note_stray(self, directory: DataDirectory, name: LogDirectory) -> None:
        self.strays += 1
        _log.warning("stray_log", directory=str(directory.path / name.name))

    def _open(
        self,
        directory: DataDirectory,
        name: LogDirectory,
        config: LogConfig,
        *,
        topic_id: UUID | None,
        was_clean: bool,
        log_start_offset: int = 0,
        recovery_point: int | None = 0,
    ) -> UnifiedLog:
        return open_log(
            self._files,
            directory.path / name.name,
            config,
            topic_partition=TopicPartition(name.topic, name.partition),
            topic_id=topic_id,
            log_start_offset=log_start_offset,
            recovery_point=recovery_point,
            had_clean_shutdown=was_clean,
            clock=self._clock,
            ids=self._ids,
            scheduler=self._scheduler,
            on_failure=self._directories.report_failure,
            on_remaining=partial(self.progress.set_segments, directory.path / name.name),
        )
