"""Opening the logs of all log directories at the start, and creating new logs."""

from __future__ import annotations

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import structlog

from core.errors import CorruptDataError
from local_tier.errors import CorruptLogError, LogDirectoryOfflineError
from local_tier.files.file_names import (
    DirectoryState,
    PartitionDirectory,
    parse_partition_directory,
    parse_segment_file,
    suffixed_partition_directory,
)
from local_tier.files.metadata_files import (
    SetAsideOffsets,
    read_set_aside_offsets,
    read_topic_id,
    write_set_aside_offsets,
)
from local_tier.log.log_loader import open_log
from local_tier.manager.log_registry import UnreadableLog
from local_tier.manager.set_aside_logs import Disposal, SetAsideLog
from local_tier.topic_partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path
    from uuid import UUID

    from core.clock import Clock
    from core.ids import Ids
    from local_tier.config import LogConfig
    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.directory_services import DirectoryServices
    from local_tier.manager.log_directories import (
        DirectoryContents,
        LogDirectories,
        LogDirectory,
        LogDirFailureChannel,
    )
    from local_tier.manager.log_registry import LogRegistry
    from local_tier.manager.set_aside_logs import SetAsideLogs

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")
_NO_OFFSETS = SetAsideOffsets(log_start_offset=0, recovery_point=0)


class ConfigLookup(Protocol):
    """A function that returns the configuration of a log found on disk."""

    def __call__(
        self, log: TopicPartition, topic_id: UUID | None, directory_id: UUID, *, is_future: bool
    ) -> LogConfig | None:
        """Return the configuration, or None for a log that does not belong into that directory.

        A future log belongs there if it was to replace the current log: then it is complete, and becomes
        the log.
        """
        ...


class DisposalLookup(Protocol):
    """A function that decides about logs without a configuration."""

    def __call__(
        self, logs: Collection[tuple[TopicPartition, UUID]]
    ) -> Mapping[tuple[TopicPartition, UUID], Disposal]:
        """Return what becomes of logs, given by name and topic id. A log that is left out is a stray."""
        ...


def all_strays(
    logs: Collection[tuple[TopicPartition, UUID]],
) -> Mapping[tuple[TopicPartition, UUID], Disposal]:
    """Return nothing, so that all unknown logs are kept."""
    del logs
    return {}


class UnknownLog(NamedTuple):
    """A partition directory without a topic, and the topic id in it."""

    directory: LogDirectory
    name: PartitionDirectory
    topic_id: UUID | None


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


class DirectoryPool:
    """Threads that work on the logs of one log directory.

    Each directory has its own threads, so that a slow disk does not delay others.
    """

    def __init__(self, name: str, directory: Path, threads: int) -> None:
        self._directory = directory
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"{name}-{directory.name}")

    def map(
        self, work: Callable[[_T], None], items: Iterable[_T]
    ) -> Callable[[], OSError | LogDirectoryOfflineError | None]:
        """Start `work` on each item. Return a function that waits for all of it.

        That function returns the first disk error, or None. It raises the first error of another kind.
        """
        futures = [self._pool.submit(work, item) for item in items]

        def wait() -> OSError | LogDirectoryOfflineError | None:
            try:
                errors = [error for future in futures if (error := future.exception()) is not None]
            finally:
                self._pool.shutdown()
            disk = [error for error in errors if isinstance(error, (OSError, LogDirectoryOfflineError))]
            for error in errors:
                _log.error("log_directory_task_failed", directory=str(self._directory), error=str(error))
                if error not in disk:
                    raise error
            return disk[0] if disk else None

        return wait


class DirectoryLoader:
    """Opens logs and adds them to `registry`. Directories that wait for deletion go to their queues."""

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
        set_aside: SetAsideLogs,
        threads: int,
    ) -> None:
        self._file_system = file_system
        self._clock = clock
        self._ids = ids
        self._services = services
        self._registry = registry
        self._directories = directories
        self._failures = failures
        self._set_aside = set_aside
        self._threads = threads
        self._unknown: list[UnknownLog] = []
        self._contents: dict[Path, DirectoryContents] = {}
        self._add_lock = threading.Lock()
        self.progress = RecoveryProgress()
        self.strays = 0
        self.reopened: list[UnifiedLog] = []
        """Logs with the mark of a log that waits: the agent was killed while it opened or closed them."""

    def load(self, config_of: ConfigLookup) -> None:
        """Open every log of every live directory, with `threads` threads per directory.

        Reports a directory whose disk fails. Raises the first error of another kind.
        """
        waits = []
        for directory in self._directories.live:
            try:
                contents = directory.read_contents()
            except OSError as error:
                self._failures.report(directory.path, error)
                continue
            self._contents[directory.path] = contents
            self.progress.begin(directory.path, len(contents.logs))
            pool = DirectoryPool("log-recovery", directory.path, self._threads)
            work = partial(self._load_partition_directory, directory, contents, config_of)
            waits.append((directory, pool.map(work, contents.logs)))
        for directory, failure in [(directory, wait()) for directory, wait in waits]:
            directory.is_loaded = failure is None and not directory.has_unreadable_logs
            if isinstance(failure, OSError):
                self._failures.report(directory.path, failure)
        for unknown in self._misplaced():
            self._load_misplaced(unknown, config_of)

    def _misplaced(self) -> list[UnknownLog]:
        """Return the unknown logs that are the only ones of their names, if no log can be missing."""
        live = self._directories.live
        if self._failures.failed or any(each.is_new or not each.is_loaded for each in live):
            return []
        found = [each for each in self._unknown if each.name.state is DirectoryState.LIVE]
        names = Counter(TopicPartition(each.name.topic, each.name.partition) for each in found)
        return [
            each
            for each in found
            if names[name := TopicPartition(each.name.topic, each.name.partition)] == 1
            and self._registry.get(name) is None
        ]

    def _load_misplaced(self, unknown: UnknownLog, config_of: ConfigLookup) -> None:
        """Open a log that is recorded in another directory, which is open and does not have it.

        A failover of the catalog has lost the record of a move. The caller records the directory again.
        """
        directory, name, topic_id = unknown
        log_name = TopicPartition(name.topic, name.partition)
        for other in self._directories.live:
            config = config_of(log_name, topic_id, other.directory_id, is_future=False)
            if config is None:
                continue
            self._unknown.remove(unknown)
            _log.warning(
                "log_misplaced", directory=str(directory.path / name.name), recorded_directory=str(other.path)
            )
            try:
                self._open_found(directory, name, config, topic_id)
            except CorruptDataError as error:
                self._set_unreadable(directory, name, error)
                directory.is_loaded = False
            except OSError as error:
                self._failures.report(directory.path, error)
            except LogDirectoryOfflineError:  # the failure was reported already
                directory.is_loaded = False
            return

    def set_unknown_aside(self, find_disposals: DisposalLookup) -> None:
        """Rename the logs without a configuration: to be deleted, to wait, or to be kept.

        Nothing but a deletion that was recorded proves that a log is not needed. The exception is the copy
        of a move that has not ended, if the log that it copied is open, or waits.
        """
        unknown, self._unknown = self._unknown, []
        names = {(_log_name(log.name), log.topic_id) for log in unknown if log.topic_id is not None}
        disposals = find_disposals(names) if names else {}
        for log in sorted(unknown, key=lambda each: each.name.state is DirectoryState.FUTURE):
            disposal = Disposal.STRAY
            if log.topic_id is not None:
                disposal = disposals.get((_log_name(log.name), log.topic_id), Disposal.STRAY)
                if disposal is Disposal.WAIT and log.name.state is DirectoryState.FUTURE:
                    has_original = bool(self._set_aside.of(log.topic_id, log.name.partition))
                    disposal = Disposal.DELETE if has_original else Disposal.STRAY
            if self._is_copy(log.name, log.topic_id):
                disposal = Disposal.DELETE
            try:
                self._set_unknown_log_aside(log, disposal)
            except OSError as error:
                self._failures.report(log.directory.path, error)

    def _set_unknown_log_aside(self, log: UnknownLog, disposal: Disposal) -> None:
        directory, name, topic_id = log
        if disposal is Disposal.WAIT:
            found = self._offsets_of(directory, name, self._read_mark(directory.path / name.name))
            write_set_aside_offsets(self._file_system, directory.path / name.name, found)
        state = DirectoryState.DELETE if disposal is Disposal.DELETE else DirectoryState.STRAY
        aside = suffixed_partition_directory(name.topic, name.partition, state, self._ids.new_uuid())
        path = directory.path / aside.name
        self._file_system.rename(directory.path / name.name, path)
        self._file_system.sync_dir(directory.path)
        if disposal is Disposal.DELETE:
            self._services[directory.path].deletion_queue.add(path)
        elif disposal is Disposal.WAIT:
            assert topic_id is not None
            self._set_aside.add(SetAsideLog(path, topic_id, name.partition))
        else:
            self._record_stray(directory, aside)

    def _offsets_of(
        self, directory: LogDirectory, name: PartitionDirectory, mark: SetAsideOffsets | None
    ) -> SetAsideOffsets:
        """Return a log's entries of the checkpoints, or those of its mark if they are higher."""
        log_name, contents = _log_name(name), self._contents[directory.path]
        marked = mark or _NO_OFFSETS
        return SetAsideOffsets(
            log_start_offset=max(contents.log_start_offsets.get(log_name, 0), marked.log_start_offset),
            recovery_point=max(contents.recovery_points.get(log_name, 0), marked.recovery_point),
        )

    def _read_mark(self, path: Path) -> SetAsideOffsets | None:
        """Return the mark of a log that waits, or None. A damaged mark is none."""
        try:
            return read_set_aside_offsets(self._file_system, path)
        except CorruptDataError as error:
            _log.warning("checkpoint_unreadable", path=str(path), error=str(error))
            return None

    def reopen(
        self, directory: LogDirectory, found: SetAsideLog, name: TopicPartition, config: LogConfig
    ) -> UnifiedLog:
        """Open a log that was set aside, under a name that no directory has.

        If it cannot be opened, it is unreadable, as at a start. Raises LogDirectoryOfflineError then, and
        after a failure of the disk.
        """
        live = PartitionDirectory(name.topic, name.partition)
        try:
            offsets = self._read_mark(found.path) or _NO_OFFSETS
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
            self._failures.report(directory.path, error)
            raise LogDirectoryOfflineError(
                f"log directory {directory.path} has failed", remedy="repair its disk"
            ) from error
        except CorruptDataError as error:
            self._set_unreadable(directory, live, error)
            self._registry.require_readable(name)
            raise

    def _is_copy(self, name: PartitionDirectory, topic_id: UUID | None) -> bool:
        """Return True for the future log of a log that is open."""
        current = self._registry.get(TopicPartition(name.topic, name.partition))
        return (
            name.state is DirectoryState.FUTURE
            and current is not None
            and topic_id in {None, current.topic_id}
        )

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

        Raises LogDirectoryOfflineError if there is none.
        """
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

    def _load_partition_directory(
        self,
        directory: LogDirectory,
        contents: DirectoryContents,
        config_of: ConfigLookup,
        name: PartitionDirectory,
    ) -> None:
        try:
            match name.state:
                case DirectoryState.DELETE:
                    self._services[directory.path].deletion_queue.add(directory.path / name.name)
                case DirectoryState.STRAY:
                    self._find_stray(directory, name)
                case DirectoryState.LIVE | DirectoryState.FUTURE:
                    self._load_log(directory, contents, config_of, name)
        except LogDirectoryOfflineError:
            raise
        except CorruptDataError as error:  # one damaged log must not stop the others
            self._set_unreadable(directory, name, error)
        finally:
            self.progress.log_loaded(directory.path)

    def _set_unreadable(
        self, directory: LogDirectory, name: PartitionDirectory, error: CorruptDataError
    ) -> None:
        """Leave a log as it is. Its partition is offline until the agent starts again."""
        log_name, path = TopicPartition(name.topic, name.partition), directory.path / name.name
        contents = self._contents[directory.path]
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

    def _load_log(
        self,
        directory: LogDirectory,
        contents: DirectoryContents,
        config_of: ConfigLookup,
        name: PartitionDirectory,
    ) -> None:
        log_name = TopicPartition(name.topic, name.partition)
        is_future = name.state is DirectoryState.FUTURE
        topic_id = self._topic_id(directory, name)
        config = config_of(log_name, topic_id, directory.directory_id, is_future=is_future)
        if is_future and config is not None:
            live = PartitionDirectory(name.topic, name.partition)
            if live in contents.logs:
                config = None
            else:
                self._adopt(directory, name, live)
                name = live
        is_empty = topic_id is None and not self._has_segments(directory.path / name.name)
        if config is None and is_empty and not is_future:
            _log.warning("not_a_partition_directory", path=str(directory.path / name.name))
            return
        if config is None:
            self._unknown.append(UnknownLog(directory, name, topic_id))
            return
        self._open_found(directory, name, config, topic_id, is_recovered_fully=is_future)

    def _open_found(
        self,
        directory: LogDirectory,
        name: PartitionDirectory,
        config: LogConfig,
        topic_id: UUID | None,
        *,
        is_recovered_fully: bool = False,
    ) -> None:
        log_name, contents = TopicPartition(name.topic, name.partition), self._contents[directory.path]
        mark = self._read_mark(directory.path / name.name)
        offsets = self._offsets_of(directory, name, mark)
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
                self.reopened.append(log)

    def _topic_id(self, directory: LogDirectory, name: PartitionDirectory) -> UUID | None:
        """Return the topic id in a partition directory. A damaged copy or stray has none."""
        try:
            return read_topic_id(self._file_system, directory.path / name.name)
        except CorruptDataError:
            if name.state in {DirectoryState.FUTURE, DirectoryState.STRAY}:
                return None
            raise

    def _adopt(self, directory: LogDirectory, future: PartitionDirectory, live: PartitionDirectory) -> None:
        """Give the complete copy of a move the name of a log. A crash came before."""
        self._file_system.rename(directory.path / future.name, directory.path / live.name)
        self._file_system.sync_dir(directory.path)
        _log.warning("log_move_completed", directory=str(directory.path / live.name))

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
            self._set_unreadable(directory, name, error)

    def _has_segments(self, path: Path) -> bool:
        return any(parse_segment_file(each) is not None for each in self._file_system.list_dir(path))

    def _find_stray(self, directory: LogDirectory, name: PartitionDirectory) -> None:
        path = directory.path / name.name
        topic_id = self._topic_id(directory, name) if self._read_mark(path) is not None else None
        if topic_id is None:
            self._record_stray(directory, name)
        else:
            self._set_aside.add(SetAsideLog(path, topic_id, name.partition))

    def _record_stray(self, directory: LogDirectory, name: PartitionDirectory) -> None:
        self.strays += 1
        _log.warning("stray_log", directory=str(directory.path / name.name))

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


def _log_name(name: PartitionDirectory) -> TopicPartition:
    return TopicPartition(name.topic, name.partition)
