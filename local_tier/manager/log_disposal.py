"""Taking logs out of service: they are deleted, wait to be opened again, or are kept as strays.

The directory of a log is renamed first, and its files are deleted after a delay. Readers finish with the
files that they hold open.
"""

from __future__ import annotations

from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

import structlog

from local_tier.errors import LogClosedError, LogDirectoryOfflineError
from local_tier.files.file_names import (
    DirectoryState,
    parse_partition_directory,
    suffixed_partition_directory,
)
from local_tier.manager.set_aside_logs import Disposal, SetAsideLog

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping
    from pathlib import Path

    from core.ids import Ids
    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.directory_services import DirectoryServices
    from local_tier.manager.log_checkpoints import LogCheckpoints
    from local_tier.manager.log_directories import LogDirectories, LogDirFailureChannel
    from local_tier.manager.log_registry import LogRegistry
    from local_tier.manager.set_aside_logs import SetAsideLogs
    from local_tier.manager.set_aside_marks import SetAsideMarks

_log = structlog.get_logger(__name__)


class LogDisposal:
    """Removes logs from the registry and renames their directories. Any thread may call.

    It also changes what refers to these logs: checkpoints, marks, the queues of deletions and the logs that
    wait. It never opens a log.
    """

    def __init__(
        self,
        *,
        file_system: FileSystem,
        ids: Ids,
        registry: LogRegistry,
        services: Mapping[Path, DirectoryServices],
        directories: LogDirectories,
        checkpoints: LogCheckpoints,
        failures: LogDirFailureChannel,
        set_aside: SetAsideLogs,
        marks: SetAsideMarks,
    ) -> None:
        self._file_system = file_system
        self._ids = ids
        self._registry = registry
        self._services = services
        self._directories = directories
        self._checkpoints = checkpoints
        self._failures = failures
        self._set_aside = set_aside
        self._marks = marks

    def delete_future(self, future: UnifiedLog) -> bool:
        """Delete a copy that will not replace its log, after the delay. Return False if it is not there."""
        name = future.topic_partition
        with self._registry.creation_lock(name):
            if self._registry.remove(name, future=True, only=future) is None:
                return False
            self.rename(future, DirectoryState.DELETE)
            self.write_checkpoints({future.directory.parent})
            return True

    def set_aside(self, log: UnifiedLog, disposal: Disposal) -> bool:
        """Remove the logs of a partition, as `set_all_aside` does. Return False if it was not removed."""
        return bool(self.set_all_aside([(log, disposal)]))

    def set_all_aside(self, logs: Iterable[tuple[UnifiedLog, Disposal]]) -> list[UnifiedLog]:
        """Remove the logs of partitions with these current logs. Return the logs that were removed.

        A log is not removed if its disk has failed, or if it is no longer the current one. A log that has
        taken its name meanwhile is not touched. A log without a topic id cannot wait.

        The checkpoints of a directory have the entries of all its logs, so they are written once for all
        logs that are removed. Until then, a crash leaves entries of logs that do not exist any more. A log
        that takes such a name ignores them. An entry of the cleaner is removed before its log: without one,
        all of the log counts as dirty.
        """
        by_directory: dict[Path, list[tuple[UnifiedLog, Disposal]]] = {}
        for log, disposal in logs:
            by_directory.setdefault(log.directory.parent, []).append((log, disposal))
        removed: list[UnifiedLog] = []
        changed: set[Path] = set()
        for path, group in by_directory.items():
            self._marks.remove(path)  # a stray must not have one
            cleaner_manager = self._services[path].cleaner.manager
            with ExitStack() as paused:
                for log, _ in group:
                    paused.enter_context(cleaner_manager.paused(log.topic_partition))
                cleaner_manager.update_checkpoints(path, {log.topic_partition: None for log, _ in group})
                for log, disposal in group:
                    # The failure was reported, or an operator has removed the directory of the log.
                    with suppress(LogDirectoryOfflineError, LogClosedError):
                        if self._set_aside_one(log, disposal, changed):
                            removed.append(log)
        self.write_checkpoints(changed)
        return removed

    def _set_aside_one(self, log: UnifiedLog, disposal: Disposal, changed: set[Path]) -> bool:
        """Remove the logs of a partition, and add the log directories of the removed ones to `changed`."""
        name, topic_id = log.topic_partition, log.topic_id
        state = DirectoryState.DELETE if disposal is Disposal.DELETE else DirectoryState.STRAY
        # No move or request replaces, opens or creates the log meanwhile.
        with self._registry.creation_lock(name):
            if self._registry.get(name) is not log:
                return False
            waits = disposal is Disposal.WAIT and topic_id is not None
            if disposal is Disposal.STRAY and log in self._marks:
                return False  # it was opened again just now
            if waits:
                try:
                    log.flush(force_active=True)
                except LogClosedError:  # its directory has failed
                    return False
                self._marks.write(log)
            if self._registry.remove(name, only=log) is None:
                return False
            changed.add(log.directory.parent)
            self.rename(log, state)
            if waits:
                assert topic_id is not None
                self._marks.write(log)  # records may have been deleted since
                self._set_aside.add(SetAsideLog(log.directory, topic_id, name.partition))
                _log.info("log_set_aside", log=str(name), directory=str(log.directory))
            elif disposal is not Disposal.DELETE:
                self._set_aside.count_stray()
            future = self._registry.get(name, future=True)
            if future is not None and future.topic_id == topic_id:  # a copy of the first log
                removed = self._registry.remove(name, future=True, only=future)
                if removed is not None:
                    changed.add(future.directory.parent)
                    self.rename(future, DirectoryState.DELETE)
            return True

    def delete_set_aside(self, found: SetAsideLog) -> None:
        """Delete a log that waits, after the delay."""
        name, path = parse_partition_directory(found.path.name), found.path.parent
        if name is None or not self._set_aside.take(found):
            return
        aside = suffixed_partition_directory(
            name.topic, name.partition, DirectoryState.DELETE, self._ids.new_uuid()
        )
        try:
            self._file_system.rename(found.path, path / aside.name)
            self._file_system.sync_dir(path)
        except FileNotFoundError:
            return  # an operator has removed it
        except OSError as error:
            self._failures.report_and_raise(path, error)
        self._services[path].deletion_queue.add(path / aside.name)

    def rename(self, log: UnifiedLog, state: DirectoryState) -> None:
        """Rename the directory of a log that is no longer used, and close its files."""
        topic, partition = log.topic_partition
        name = suffixed_partition_directory(topic, partition, state, self._ids.new_uuid()).name
        log.retire(log.directory.with_name(name))
        if state is DirectoryState.DELETE:
            self._services[log.directory.parent].deletion_queue.add(log.directory)

    def write_checkpoints(self, paths: Collection[Path]) -> None:
        """Write the checkpoints of directories without the entries of logs that were removed."""
        for directory in [each for each in self._directories.live if each.path in paths]:
            self._checkpoints.write_recovery_points(directory)
            self._checkpoints.write_log_start_offsets(directory)
