"""Replacing a log by its copy in another log directory.

The caller fills the copy (`log_copy.py`). A start after a crash decides between the log and its copy by the
directory that the caller has recorded.

Source: LogManager.replaceCurrentWithFutureLog of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import InvalidInputError, NotFoundError, StaleStateError
from local_tier.errors import LogDirectoryOfflineError
from local_tier.files.file_names import DirectoryState, PartitionDirectory, suffixed_partition_directory

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from core.ids import Ids
    from local_tier.cleaner.log_cleaner_manager import LogCleanerManager
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.directory_services import DirectoryServices
    from local_tier.manager.log_checkpoints import LogCheckpoints
    from local_tier.manager.log_directories import LogDirectories, LogDirFailureChannel
    from local_tier.manager.log_disposal import LogDisposal
    from local_tier.manager.log_opener import LogOpener
    from local_tier.manager.log_registry import LogRegistry
    from local_tier.topic_partition import TopicPartition


class LogMoves:
    """Creates future logs, and puts them in the place of current logs. Any thread may call.

    It changes both logs in the registry, their directories, their entries of the checkpoints, and the pauses
    of the cleaner. Only `LogDisposal` deletes the log that is not needed any more.
    """

    def __init__(
        self,
        *,
        ids: Ids,
        opener: LogOpener,
        disposal: LogDisposal,
        registry: LogRegistry,
        services: Mapping[Path, DirectoryServices],
        directories: LogDirectories,
        checkpoints: LogCheckpoints,
        failures: LogDirFailureChannel,
    ) -> None:
        self._ids = ids
        self._opener = opener
        self._disposal = disposal
        self._registry = registry
        self._services = services
        self._directories = directories
        self._checkpoints = checkpoints
        self._failures = failures

    def create_future_log(self, name: TopicPartition, directory: Path) -> UnifiedLog:
        """Create an empty log in another directory, for a copy that later replaces the current log.

        As in Kafka, LogDirectoryOfflineError is raised while any directory is offline.
        """
        self._failures.require_none(name)
        with self._registry.creation_lock(name):
            log, target = self._registry.get(name), self._directories.get(directory)
            if log is None or self._registry.get(name, future=True) is not None:
                raise InvalidInputError(
                    f"log {name} cannot be moved: it does not exist here, or is being moved"
                )
            if target is None or log.directory.parent == directory:
                raise InvalidInputError(f"log {name} cannot be moved to {directory}")
            partition_directory = suffixed_partition_directory(
                name.topic, name.partition, DirectoryState.FUTURE, self._ids.new_uuid()
            )
            future = self._opener.create(partition_directory, log.topic_id, log.config, [target])
            self._registry.add(future, future=True)
            return future

    def remove_future_log(self, future: UnifiedLog) -> bool:
        """Delete a copy that will not replace its log. Return False if it is not there any more."""
        return self._disposal.delete_future(future)

    def pause_cleaning(self, log: UnifiedLog) -> None:
        """Prevent cleaning and deletion of old segments until `resume_cleaning`; wait for a running one."""
        self._cleaner_manager(log.directory.parent).pause(log.topic_partition)

    def resume_cleaning(self, log: UnifiedLog) -> None:
        """Undo one `pause_cleaning`."""
        self._cleaner_manager(log.directory.parent).resume(log.topic_partition)

    def make_replaceable(self, current: UnifiedLog, future: UnifiedLog) -> None:
        """Make a complete copy durable, so that a start after a crash may use it instead of `current`.

        The caller prevents appends to `current`. Raises StaleStateError if one of the two is not in use any
        more or the copy is not complete.
        """
        name, path = current.topic_partition, future.directory.parent
        future.flush(force_active=True)
        directory = self._directories.get(path)
        if directory is None or not self._checkpoints.write_log_start_offsets(directory):
            raise LogDirectoryOfflineError(f"log directory {path} has failed", remedy="repair its disk")
        bounds = [(log.log_start_offset, log.log_end_offset) for log in (current, future)]
        are_used = self._registry.get(name) is current and self._registry.get(name, future=True) is future
        if not are_used or bounds[0] != bounds[1]:
            raise StaleStateError(
                f"the copy of log {name} in {path} has other offsets, or is not needed any more"
            )

    def replace_current_with_future_log(self, name: TopicPartition) -> UnifiedLog:
        """Replace the current log by the future log, and delete the current log."""
        current = self._registry.require(name)
        cleaner_manager = self._cleaner_manager(current.directory.parent)
        with cleaner_manager.paused(name), self._registry.creation_lock(name):
            future = self._registry.get(name, future=True)
            if future is None:
                raise NotFoundError(f"there is no future log of {name}")
            future.rename_directory(future.directory.with_name(PartitionDirectory(*name).name))
            before = self._registry.promote(name)
            if before is not None:
                future.update_high_watermark(before.high_watermark)
                source, target = before.directory.parent, future.directory.parent
                source_cleaner, target_cleaner = self._cleaner_manager(source), self._cleaner_manager(target)
                source_cleaner.move_checkpoint(name, source, target_cleaner, target)
                directory = self._directories.get(target)
                if directory is not None:
                    # Without an entry, all of the log would be recovered.
                    self._checkpoints.write_recovery_points(directory)
                    self._checkpoints.remove_stale_entries(directory, name, future.recovery_point)
                self._disposal.rename(before, DirectoryState.DELETE)
                self._disposal.write_checkpoints({source})
        return future

    def _cleaner_manager(self, path: Path) -> LogCleanerManager:
        return self._services[path].cleaner.manager
