"""Opening the logs of all log directories at the start, and setting those aside that no topic has."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import structlog

from core.errors import CorruptDataError
from local_tier.errors import LogDirectoryOfflineError
from local_tier.files.file_names import (
    DirectoryState,
    PartitionDirectory,
    parse_segment_file,
    suffixed_partition_directory,
)
from local_tier.files.metadata_files import (
    read_topic_id,
    remove_set_aside_offsets,
    write_set_aside_offsets,
)
from local_tier.manager.directory_services import DirectoryPool
from local_tier.manager.set_aside_logs import Disposal, SetAsideLog
from local_tier.manager.set_aside_marks import read_mark
from local_tier.topic_partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path
    from uuid import UUID

    from core.ids import Ids
    from local_tier.config import LogConfig
    from local_tier.files.file_system import FileSystem
    from local_tier.manager.directory_services import DirectoryServices
    from local_tier.manager.log_directories import (
        DirectoryContents,
        LogDirectories,
        LogDirectory,
        LogDirFailureChannel,
    )
    from local_tier.manager.log_opener import LogOpener
    from local_tier.manager.log_registry import LogRegistry
    from local_tier.manager.set_aside_logs import SetAsideLogs

_log = structlog.get_logger(__name__)


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


class DirectoryLoader:
    """Goes through the partition directories at the start, and hands each log to `opener`.

    It renames the directories of logs that no topic has, and adds them to the logs that wait or to the queues
    of deletions. It is not used after the start.
    """

    def __init__(
        self,
        *,
        file_system: FileSystem,
        ids: Ids,
        opener: LogOpener,
        services: Mapping[Path, DirectoryServices],
        registry: LogRegistry,
        directories: LogDirectories,
        failures: LogDirFailureChannel,
        set_aside: SetAsideLogs,
        threads: int,
    ) -> None:
        self._file_system = file_system
        self._ids = ids
        self._opener = opener
        self._services = services
        self._registry = registry
        self._directories = directories
        self._failures = failures
        self._set_aside = set_aside
        self._threads = threads
        self._unknown: list[UnknownLog] = []

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
            self._opener.progress.begin(directory.path, len(contents.logs))
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
                self._opener.open_found(directory, name, config, topic_id)
            except CorruptDataError as error:
                self._opener.set_unreadable(directory, name, error)
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
        mark = read_mark(self._file_system, directory.path / name.name)
        if disposal is Disposal.WAIT or mark is not None:  # if it becomes a stray, a crash may come before
            found = self._opener.offsets_of(directory, name, mark)
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
            if mark is not None:
                remove_set_aside_offsets(self._file_system, path)
            self._record_stray(directory, aside)

    def _is_copy(self, name: PartitionDirectory, topic_id: UUID | None) -> bool:
        """Return True for the future log of a log that is open."""
        current = self._registry.get(TopicPartition(name.topic, name.partition))
        return (
            name.state is DirectoryState.FUTURE
            and current is not None
            and topic_id in {None, current.topic_id}
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
            self._opener.set_unreadable(directory, name, error)
        finally:
            self._opener.progress.log_loaded(directory.path)

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
        self._opener.open_found(directory, name, config, topic_id, is_recovered_fully=is_future)

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

    def _has_segments(self, path: Path) -> bool:
        return any(parse_segment_file(each) is not None for each in self._file_system.list_dir(path))

    def _find_stray(self, directory: LogDirectory, name: PartitionDirectory) -> None:
        path = directory.path / name.name
        topic_id = self._topic_id(directory, name) if read_mark(self._file_system, path) is not None else None
        if topic_id is None:
            self._record_stray(directory, name)
        else:
            self._set_aside.add(SetAsideLog(path, topic_id, name.partition))

    def _record_stray(self, directory: LogDirectory, name: PartitionDirectory) -> None:
        self._set_aside.count_stray()
        _log.warning("stray_log", directory=str(directory.path / name.name))


def _log_name(name: PartitionDirectory) -> TopicPartition:
    return TopicPartition(name.topic, name.partition)
