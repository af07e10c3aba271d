"""Opening logs again that wait, because their topic exists again."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import structlog

from local_tier.errors import CorruptCheckpointError, LogDirectoryOfflineError
from local_tier.files.file_names import LOG, PartitionDirectory, parse_segment_file
from local_tier.files.process_limits import process_limits
from local_tier.log.leader_epoch_file_cache import latest_epoch
from local_tier.manager.log_opener import LOG_RESERVE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from uuid import UUID

    from local_tier.config import LogConfig
    from local_tier.files.file_system import FileSystem
    from local_tier.files.process_limits import Reserve
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.log_checkpoints import LogCheckpoints
    from local_tier.manager.log_directories import LogDirectories, LogDirFailureChannel
    from local_tier.manager.log_opener import LogOpener
    from local_tier.manager.log_registry import LogRegistry
    from local_tier.manager.set_aside_logs import SetAsideLog, SetAsideLogs
    from local_tier.manager.set_aside_marks import SetAsideMarks
    from local_tier.topic_partition import TopicPartition

_log = structlog.get_logger(__name__)


class LogReopening:
    """Finds logs that wait, and moves them back into the registry. Any thread may call.

    It changes the logs that wait, their directories and marks, and entries of the checkpoints that an older
    log of the same name has left. It never removes a log from the registry.
    """

    def __init__(
        self,
        *,
        file_system: FileSystem,
        opener: LogOpener,
        registry: LogRegistry,
        directories: LogDirectories,
        checkpoints: LogCheckpoints,
        failures: LogDirFailureChannel,
        set_aside: SetAsideLogs,
        marks: SetAsideMarks,
    ) -> None:
        self._file_system = file_system
        self._opener = opener
        self._registry = registry
        self._directories = directories
        self._checkpoints = checkpoints
        self._failures = failures
        self._set_aside = set_aside
        self._marks = marks
        self.on_reopen: Callable[[UUID, int], None] | None = None
        """Called with topic id and partition, just before and after a log that waited is served again."""

    def set_aside_logs(self, directory: Path | None = None) -> list[SetAsideLog]:
        """Return the logs that wait, in one log directory or all."""
        return [log for log in self._set_aside.all() if directory in {None, log.path.parent}]

    def latest_epoch(self, found: SetAsideLog) -> int | None:
        """Return the last leader epoch in a log that waits, or None if it has none that can be read."""
        try:
            return self._set_aside.latest_epoch(found, partial(latest_epoch, self._file_system, found.path))
        except (OSError, CorruptCheckpointError):
            return None

    def find(self, topic_id: UUID, partition: int, recorded: UUID | None) -> SetAsideLog | None:
        """Return the log of a partition that waits and may be opened, or None.

        `recorded` is the id of the log directory that is known to have it. A log elsewhere may be opened if
        it is the only one, and if that directory is open and does not have the log, or none is known.
        """
        ids = {directory.path: directory.directory_id for directory in self._directories.live}
        found = self._set_aside.of(topic_id, partition)
        here = [log for log in found if ids.get(log.path.parent) == recorded]
        may_be_elsewhere = recorded is None or recorded in ids.values()
        candidates = here or (found if may_be_elsewhere else [])
        return candidates[0] if len(candidates) == 1 else None

    def require_none(self, name: TopicPartition, topic_id: UUID) -> None:
        """Raise LogDirectoryOfflineError if a log of the partition waits. A new one would hide it."""
        for found in self._set_aside.of(topic_id, name.partition):
            raise LogDirectoryOfflineError(
                f"log {name} was set aside in {found.path} and is not open again",
                remedy="retry; if it stays so, remove all but one of the partition's directories that wait",
            )

    def reopen(self, name: TopicPartition, found: SetAsideLog, config: LogConfig) -> UnifiedLog | None:
        """Open a log that waits under a name, because its topic exists again.

        Return the log of that name, or None if it cannot be opened now: another topic's log still has the
        name, or the directory is gone. Other logs of the partition that wait become strays. The log has its
        mark until `SetAsideMarks.remove`. Raises ProcessLimitError if the process may open or map too few
        files. Only a log with a damaged mark may wait for files, because all of its indexes are rebuilt.
        """
        with self._registry.creation_lock(name):
            current = self._registry.get(name)
            if current is not None and current.topic_id != found.topic_id:
                return None
            log = current or self._reopen(name, found, config)
            if log is not None:
                for other in self._set_aside.of(found.topic_id, found.partition):
                    self._make_stray(other)
            return log

    def _reopen(self, name: TopicPartition, found: SetAsideLog, config: LogConfig) -> UnifiedLog | None:
        directory = self._directories.get(found.path.parent)
        self._registry.require_readable(name)
        live = found.path.with_name(PartitionDirectory(*name).name)
        if directory is None or self._exists(live):
            return None
        with process_limits.reserving(self._reserve_of(found.path)):  # nothing was changed yet
            if not self._set_aside.take(found) or not self._exists(found.path):
                return None  # another thread has opened it, or an operator has removed it
            # A start after a crash would take the higher entries.
            self._checkpoints.remove_stale_entries(directory, name, 0)
            log = self._opener.reopen(directory, found, name, config)
        log.update_high_watermark(log.log_end_offset)
        self._announce(found)
        self._registry.add(log)
        self._marks.add([log])
        self._announce(found)
        _log.info("log_reopened", log=str(name), directory=str(log.directory))
        return log

    def _reserve_of(self, path: Path) -> Reserve:
        """Return what opening a log takes that was flushed: one descriptor for each further segment.

        The log must not wait for the last ones: it has a creation lock, which other logs may need.
        """
        try:
            with process_limits.refusing():
                names = self._file_system.list_dir(path)
        except FileNotFoundError:
            return LOG_RESERVE  # an operator has removed it
        except OSError as error:
            self._failures.report_and_raise(path.parent, error)
        found = map(parse_segment_file, names)
        segments = sum(file is not None and file[1] == LOG for file in found)
        return LOG_RESERVE._replace(descriptors=LOG_RESERVE.descriptors + segments)

    def _announce(self, found: SetAsideLog) -> None:
        if self.on_reopen is not None:
            self.on_reopen(found.topic_id, found.partition)

    def _make_stray(self, other: SetAsideLog) -> None:
        """Make a stray of an old copy of a log that is served again."""
        if self._set_aside.take(other):
            _log.warning("stray_log", directory=str(other.path))
            self._set_aside.count_stray()
            self._marks.remove_file(other.path)

    def _exists(self, path: Path) -> bool:
        try:
            return self._file_system.status(path) is not None
        except OSError as error:
            self._failures.report_and_raise(path.parent, error)
