"""All logs of an agent: their directories, creation, deletion, startup and shutdown.

Several log directories, usually one per disk, share the logs. A new log is created in the directory with the
fewest. When a disk fails, its directory and the logs in it go offline, and the others continue.

Source: LogManager of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import threading
import zlib
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, NoReturn

import structlog

from core.errors import InvalidInputError, NotFoundError, StaleStateError
from local_tier.cleaner.log_cleaner import LogCleaner, combined
from local_tier.cleaner.log_cleaner_manager import LogCleanerManager
from local_tier.errors import CorruptCheckpointError, LogClosedError, LogDirectoryOfflineError
from local_tier.files.descriptors import require_descriptors
from local_tier.files.file_names import (
    DirectoryState,
    PartitionDirectory,
    parse_partition_directory,
    suffixed_partition_directory,
)
from local_tier.files.metadata_files import (
    SetAsideOffsets,
    remove_set_aside_offsets,
    uuid_text,
    write_set_aside_offsets,
    write_topic_id,
)
from local_tier.log.leader_epoch_file_cache import latest_epoch
from local_tier.manager.directory_loader import (
    ConfigLookup,
    DirectoryLoader,
    DirectoryPool,
    DisposalLookup,
    all_strays,
)
from local_tier.manager.directory_services import DirectoryServices
from local_tier.manager.log_checkpoints import LogCheckpoints
from local_tier.manager.log_directories import (
    LogDirectories,
    LogDirFailureChannel,
    write_clean_shutdown_marker,
)
from local_tier.manager.log_registry import DeletionQueue, LogRegistry
from local_tier.manager.periodic_tasks import PeriodicTasks
from local_tier.manager.set_aside_logs import Disposal, MarkedLogs, SetAsideLog, SetAsideLogs
from local_tier.topic_partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
    from pathlib import Path
    from uuid import UUID

    from core.clock import Clock
    from core.ids import Ids
    from local_tier.cleaner.log_cleaner import CleanerMetrics
    from local_tier.config import LogConfig
    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.manager.config import LogManagerConfig
    from local_tier.manager.directory_services import DirectorySchedulers
    from local_tier.manager.log_directories import LogDirectory

_CREATION_LOCKS: Final = 64
_LOG_DESCRIPTORS: Final = 12
"""At least what opening a log takes at a time: its segment with indexes, a checkpoint, and directories."""
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
        # Held while a log is created or replaced. Other names rarely have the same lock, so that a disk that
        # hangs does not stop the creation of logs on other disks.
        self._creation_locks = [threading.Lock() for _ in range(_CREATION_LOCKS)]
        self._registry = LogRegistry()
        self._set_aside = SetAsideLogs()
        self._marked = MarkedLogs()
        self.on_reopen: Callable[[UUID, int], None] | None = None
        """Called with topic id and partition, just before and after a log that waited is served again."""
        self._failures = LogDirFailureChannel(
            {path: each.failures for path, each in schedulers.items()}, self._take_offline
        )
        self._directories = LogDirectories(
            config.directories, config.owner, file_system=file_system, failures=self._failures
        )
        self._log_checkpoints = LogCheckpoints(self._registry, config.directories, self._failures.report)
        self._services = {path: self._make_services(path, schedulers[path]) for path in config.directories}
        self._loader = DirectoryLoader(
            file_system=file_system,
            clock=clock,
            ids=ids,
            services=self._services,
            registry=self._registry,
            directories=self._directories,
            failures=self._failures,
            set_aside=self._set_aside,
            threads=config.recovery_threads_per_directory,
        )
        self.periodic_tasks = PeriodicTasks(
            registry=self._registry,
            directories=self._directories,
            checkpoints=self._log_checkpoints,
            cleaner_managers={path: each.cleaner.manager for path, each in self._services.items()},
            clock=clock,
        )

    def _make_services(self, path: Path, schedulers: DirectorySchedulers) -> DirectoryServices:
        on_failure = self._failures.report
        return DirectoryServices(
            schedulers=schedulers,
            deletion_queue=DeletionQueue(
                file_system=self._file_system,
                clock=self._clock,
                scheduler=schedulers.tasks,
                delay_ms=self._config.file_delete_delay_ms,
                on_failure=on_failure,
            ),
            cleaner=LogCleaner(
                self._config.cleaner.divided(len(self._config.directories)),
                LogCleanerManager(
                    file_system=self._file_system,
                    directories=(path,),
                    logs=partial(self._registry.current_in, path),
                    clock=self._clock,
                    on_failure=on_failure,
                ),
                file_system=self._file_system,
                clock=self._clock,
                ids=self._ids,
                on_failure=on_failure,
            ),
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
            self._marked.add(self._loader.reopened)
            self.remove_marks()
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
        older topic of the same name, and NoDescriptorError if too few files may be opened for a new log.
        """
        name = TopicPartition(topic, partition)
        with self._creation_lock(name):
            log = self._registry.get(name)
            if log is None:
                self._registry.require_readable(name)
                self._require_not_set_aside(name, topic_id)
                require_descriptors(_LOG_DESCRIPTORS)
                directories = self._directories.by_load(self._registry)
                log = self._loader.create(
                    PartitionDirectory(topic, partition),
                    topic_id,
                    config,
                    directories,
                    prepare=lambda directory: self._remove_stale_entries(directory, name, 0),
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

    def _remove_stale_entries(
        self, directory: LogDirectory, name: TopicPartition, recovery_point: int
    ) -> None:
        """Remove entries of the checkpoints that an older log with this name has left.

        With them, the recovery of the log would be wrong.
        """
        self._log_checkpoints.lower_recovery_point(directory, name, recovery_point)
        self._log_checkpoints.remove_log_start_offset(directory, name)

    @property
    def directories(self) -> tuple[Path, ...]:
        """All directories, failed ones included."""
        return tuple(self._config.directories)

    def create_future_log(self, name: TopicPartition, directory: Path) -> UnifiedLog:
        """Create an empty log in another directory, for a copy that later replaces the current log.

        As in Kafka, LogDirectoryOfflineError is raised while any directory is offline.
        """
        self._require_online(name)
        with self._creation_lock(name):
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
            future = self._loader.create(partition_directory, log.topic_id, log.config, [target])
            self._registry.add(future, future=True)
            return future

    def remove_future_log(self, future: UnifiedLog) -> bool:
        """Delete a copy that will not replace its log. Return False if it is not there any more."""
        name = future.topic_partition
        with self._creation_lock(name):
            return self._delete(name, future=True, only=future)

    def pause_cleaning(self, log: UnifiedLog) -> None:
        """Prevent cleaning and deletion of old segments until `resume_cleaning`; wait for a running one."""
        self._manager_of(log).pause(log.topic_partition)

    def resume_cleaning(self, log: UnifiedLog) -> None:
        """Undo one `pause_cleaning`."""
        self._manager_of(log).resume(log.topic_partition)

    def make_replaceable(self, current: UnifiedLog, future: UnifiedLog) -> None:
        """Make a complete copy durable, so that a start after a crash may use it instead of `current`.

        The caller prevents appends to `current`. Raises StaleStateError if one of the two is not in use any
        more or the copy is not complete.
        """
        name, path = current.topic_partition, future.directory.parent
        future.flush(force_active=True)
        directory = self._directories.get(path)
        if directory is None or not self._log_checkpoints.write_log_start_offsets(directory):
            raise LogDirectoryOfflineError(f"log directory {path} has failed", remedy="repair its disk")
        bounds = [(log.log_start_offset, log.log_end_offset) for log in (current, future)]
        are_used = self._registry.get(name) is current and self._registry.get(name, future=True) is future
        if not are_used or bounds[0] != bounds[1]:
            raise StaleStateError(
                f"the copy of log {name} in {path} has other offsets, or is not needed any more"
            )

    def replace_current_with_future_log(self, name: TopicPartition) -> UnifiedLog:
        """Replace the current log by the future log, and delete the current log."""
        current = self._require_log(name)
        with self._cleaning_paused(current), self._creation_lock(name):
            future = self._registry.get(name, future=True)
            if future is None:
                raise NotFoundError(f"there is no future log of {name}")
            future.rename_directory(future.directory.with_name(PartitionDirectory(*name).name))
            before = self._registry.promote(name)
            if before is not None:
                future.update_high_watermark(before.high_watermark)
                source, target = before.directory.parent, future.directory.parent
                cleaners = self.cleaners
                cleaners[source].manager.move_checkpoint(name, source, cleaners[target].manager, target)
                self._checkpoint_recovery(target)  # without an entry, all of the log would be recovered
                directory = self._directories.get(target)
                if directory is not None:
                    self._remove_stale_entries(directory, name, future.recovery_point)
                self._rename_aside(before, DirectoryState.DELETE)
                self._write_checkpoints({source})
        return future

    def delete(self, name: TopicPartition, *, future: bool = False) -> bool:
        """Remove a log, and delete its files after the delay. Return False if there is none.

        Raises LogDirectoryOfflineError if the log may be in a directory that is offline.
        """
        if self._delete(name, future=future):
            return True
        self._require_online(name)
        return False

    def _delete(self, name: TopicPartition, *, future: bool, only: UnifiedLog | None = None) -> bool:
        log = self._registry.remove(name, future=future, only=only)
        if log is None:
            return False
        if not future:
            with self._cleaning_paused(log):
                self._manager_of(log).update_checkpoints(log.directory.parent, {name: None})
        self._rename_aside(log, DirectoryState.DELETE)
        self._write_checkpoints({log.directory.parent})
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
            self.remove_marks(path)  # a stray must not have one
            cleaner_manager = self._services[path].cleaner.manager
            with ExitStack() as paused:
                for log, _ in group:
                    paused.enter_context(self._cleaning_paused(log))
                cleaner_manager.update_checkpoints(path, {log.topic_partition: None for log, _ in group})
                for log, disposal in group:
                    # The failure was reported, or an operator has removed the directory of the log.
                    with suppress(LogDirectoryOfflineError, LogClosedError):
                        if self._set_aside_one(log, disposal, changed):
                            removed.append(log)
        self._write_checkpoints(changed)
        return removed

    def _set_aside_one(self, log: UnifiedLog, disposal: Disposal, changed: set[Path]) -> bool:
        """Remove the logs of a partition, and add the log directories of the removed ones to `changed`."""
        name, topic_id = log.topic_partition, log.topic_id
        state = DirectoryState.DELETE if disposal is Disposal.DELETE else DirectoryState.STRAY
        with self._creation_lock(name):  # no move or request replaces, opens or creates the log meanwhile
            if self._registry.get(name) is not log:
                return False
            waits = disposal is Disposal.WAIT and topic_id is not None
            if disposal is Disposal.STRAY and log in self._marked:
                return False  # it was opened again just now
            if waits:
                try:
                    log.flush(force_active=True)
                except LogClosedError:  # its directory has failed
                    return False
                self._mark(log)
            if self._registry.remove(name, only=log) is None:
                return False
            changed.add(log.directory.parent)
            self._rename_aside(log, state)
            if waits:
                assert topic_id is not None
                self._mark(log)  # records may have been deleted since
                self._set_aside.add(SetAsideLog(log.directory, topic_id, name.partition))
                _log.info("log_set_aside", log=str(name), directory=str(log.directory))
            else:
                self._loader.strays += disposal is not Disposal.DELETE
            future = self._registry.get(name, future=True)
            if future is not None and future.topic_id == topic_id:  # a copy of the first log
                removed = self._registry.remove(name, future=True, only=future)
                if removed is not None:
                    changed.add(future.directory.parent)
                    self._rename_aside(future, DirectoryState.DELETE)
            return True

    def _mark(self, log: UnifiedLog) -> None:
        """Mark a log as one that waits, with its entries of the checkpoints."""
        offsets = SetAsideOffsets(log_start_offset=log.log_start_offset, recovery_point=log.recovery_point)
        try:
            write_set_aside_offsets(self._file_system, log.directory, offsets)
        except OSError as error:
            self._fail(log.directory.parent, error)

    def remove_marks(self, path: Path | None = None) -> None:
        """Remove the marks of logs that are served again, in one log directory or all.

        First the checkpoints are written, once for all logs of a directory, so that they have the entries of
        these logs. Until then, a start takes the entries from the mark, if they are higher, and recovers the
        log.
        """
        for directory in self._directories.live:
            logs = self._marked.take(directory.path) if path in {None, directory.path} else []
            if logs and self._log_checkpoints.write_log_start_offsets(directory):
                self._log_checkpoints.write_recovery_points(directory)
                for log in logs:
                    self._remove_mark(log)

    def _remove_mark(self, log: UnifiedLog) -> None:
        with self._creation_lock(log.topic_partition):
            if self._registry.get(log.topic_partition) is not log:
                return  # it was set aside again, and needs the mark
            try:
                remove_set_aside_offsets(self._file_system, log.directory)
            except OSError as error:
                self._failures.report(log.directory.parent, error)

    def _fail(self, path: Path, error: OSError) -> NoReturn:
        self._failures.report(path, error)
        raise LogDirectoryOfflineError(
            f"log directory {path} has failed", remedy="repair its disk"
        ) from error

    def set_aside_logs(self, directory: Path | None = None) -> list[SetAsideLog]:
        """Return the logs that wait, in one log directory or all."""
        return [log for log in self._set_aside.all() if directory in {None, log.path.parent}]

    def latest_epoch(self, found: SetAsideLog) -> int | None:
        """Return the last leader epoch in a log that waits, or None if it has none that can be read."""
        try:
            return self._set_aside.latest_epoch(found, partial(latest_epoch, self._file_system, found.path))
        except (OSError, CorruptCheckpointError):
            return None

    def find_set_aside(self, topic_id: UUID, partition: int, recorded: UUID | None) -> SetAsideLog | None:
        """Return the log of a partition that waits and may be opened, or None.

        `recorded` is the id of the log directory that is known to have it. A log elsewhere may be opened if
        it is the only one, and if that directory is open and does not have the log, or none is known.
        """
        found = self._set_aside.of(topic_id, partition)
        here = [log for log in found if self.directory_id(log.path.parent) == recorded]
        may_be_elsewhere = recorded is None or recorded in self.directory_ids
        candidates = here or (found if may_be_elsewhere else [])
        return candidates[0] if len(candidates) == 1 else None

    def reopen(self, name: TopicPartition, found: SetAsideLog, config: LogConfig) -> UnifiedLog | None:
        """Open a log that waits under a name, because its topic exists again.

        Return the log of that name, or None if it cannot be opened now: another topic's log still has the
        name, or the directory is gone. Other logs of the partition that wait become strays. The log has its
        mark until `remove_marks`.
        """
        with self._creation_lock(name):
            current = self._registry.get(name)
            if current is not None and current.topic_id != found.topic_id:
                return None
            log = current or self._reopen(name, found, config)
            if log is not None:
                for other in self._set_aside.of(found.topic_id, found.partition):
                    self._forget_set_aside(other)
            return log

    def _reopen(self, name: TopicPartition, found: SetAsideLog, config: LogConfig) -> UnifiedLog | None:
        directory = self._directories.get(found.path.parent)
        self._registry.require_readable(name)
        live = found.path.with_name(PartitionDirectory(*name).name)
        if directory is None or self._exists(live) or not self._set_aside.take(found):
            return None
        if not self._exists(found.path):
            return None  # an operator has removed it
        self._remove_stale_entries(directory, name, 0)  # a start after a crash would take the higher ones
        log = self._loader.reopen(directory, found, name, config)
        log.update_high_watermark(log.log_end_offset)
        self._announce_reopening(found)
        self._registry.add(log)
        self._marked.add([log])
        self._announce_reopening(found)
        _log.info("log_reopened", log=str(name), directory=str(log.directory))
        return log

    def _require_not_set_aside(self, name: TopicPartition, topic_id: UUID) -> None:
        """Raise LogDirectoryOfflineError if a log of the partition waits. A new one would hide it."""
        for found in self._set_aside.of(topic_id, name.partition):
            raise LogDirectoryOfflineError(
                f"log {name} was set aside in {found.path} and is not open again",
                remedy="retry; if it stays so, remove all but one of the partition's directories that wait",
            )

    def _announce_reopening(self, found: SetAsideLog) -> None:
        if self.on_reopen is not None:
            self.on_reopen(found.topic_id, found.partition)

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
            self._fail(path, error)
        self._services[path].deletion_queue.add(path / aside.name)

    def _forget_set_aside(self, other: SetAsideLog) -> None:
        """Make a stray of an old copy of a log that is served again."""
        if self._set_aside.take(other):
            _log.warning("stray_log", directory=str(other.path))
            self._loader.strays += 1
            try:
                remove_set_aside_offsets(self._file_system, other.path)
            except OSError as error:
                self._failures.report(other.path.parent, error)

    def _exists(self, path: Path) -> bool:
        try:
            return self._file_system.status(path) is not None
        except OSError as error:
            self._fail(path.parent, error)

    def delete_records(self, name: TopicPartition, before_offset: int) -> int:
        """Durably hide the records below an offset (-1: the high watermark). Return the log start offset.

        Raises LogDirectoryOfflineError if the checkpoint could not be written.
        """
        log = self._require_log(name)
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
            with self._cleaning_paused(log):
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
        logs, failed, progress = self._registry.all(), self._failures.failed, self._loader.progress
        return LogManagerMetrics(
            logs=len(logs),
            log_size_bytes=sum(log.size for log in logs),
            offline_log_directory_count=len(failed),
            remaining_logs_to_recover={str(path): count for path, count in progress.logs.items()},
            remaining_segments_to_recover={str(path): count for path, count in progress.segments.items()},
            logs_waiting_for_deletion=sum(len(each.deletion_queue) for each in self._services.values()),
            logs_set_aside=len(self._set_aside),
            stray_logs=self._loader.strays,
            offline_logs=self._registry.offline_count,
            cleaner=combined([each.metrics() for each in self.cleaners.values()]),
        )

    def _mark_closed(self, directory: LogDirectory) -> None:
        self.remove_marks(directory.path)
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

    @contextmanager
    def _cleaning_paused(self, log: UnifiedLog) -> Iterator[None]:
        """Prevent cleaning and deletion of old segments of a log."""
        manager = self._manager_of(log)
        manager.pause(log.topic_partition)
        try:
            yield
        finally:
            manager.resume(log.topic_partition)

    def _manager_of(self, log: UnifiedLog) -> LogCleanerManager:
        return self._services[log.directory.parent].cleaner.manager

    def _creation_lock(self, name: TopicPartition) -> threading.Lock:
        return self._creation_locks[zlib.crc32(str(name).encode()) % _CREATION_LOCKS]

    def _truncate(self, name: TopicPartition, truncate: Callable[[UnifiedLog], object]) -> None:
        log = self._require_log(name)
        self.remove_marks(log.directory.parent)  # the recovery point in a mark may be above the new log end
        with self._cleaning_paused(log):
            truncate(log)
            self._manager_of(log).truncate_checkpoint(
                log.directory.parent, name, log.active_segment.base_offset
            )
        directory = self._directories.get(log.directory.parent)
        if directory is not None:
            self._log_checkpoints.lower_recovery_point(directory, log.topic_partition, log.recovery_point)

    def _require_log(self, name: TopicPartition) -> UnifiedLog:
        log = self._registry.get(name)
        if log is None:
            raise NotFoundError(f"there is no log of {name}")
        return log

    def _checkpoint_recovery(self, path: Path) -> None:
        directory = self._directories.get(path)
        if directory is not None:
            self._log_checkpoints.write_recovery_points(directory)

    def _rename_aside(self, log: UnifiedLog, state: DirectoryState) -> None:
        """Rename the directory of a log that is no longer used, and close its files."""
        topic, partition = log.topic_partition
        name = suffixed_partition_directory(topic, partition, state, self._ids.new_uuid()).name
        log.retire(log.directory.with_name(name))
        if state is DirectoryState.DELETE:
            self._services[log.directory.parent].deletion_queue.add(log.directory)

    def _write_checkpoints(self, paths: Collection[Path]) -> None:
        """Write the checkpoints of directories without the entries of logs that were removed."""
        for directory in [each for each in self._directories.live if each.path in paths]:
            self._log_checkpoints.write_recovery_points(directory)
            self._log_checkpoints.write_log_start_offsets(directory)

    def _require_online(self, name: TopicPartition) -> None:
        failed = self._failures.failed
        if failed:
            raise LogDirectoryOfflineError(
                f"log {name} may be in a log directory that is offline: {', '.join(map(str, failed))}",
                remedy="repair or replace the disk, then start the agent again",
            )

    def _take_offline(self, path: Path) -> None:
        self._drop_logs(path)
        self._directories.remove(path)

    def _drop_logs(self, path: Path) -> None:
        services = self._services[path]
        services.cleaner.manager.remove_directory(path)
        services.deletion_queue.clear()
        self._set_aside.remove_directory(path)
        self._marked.take(path)
        for log in self._registry.remove_directory(path):
            log.close_handles()

    def _drop_all(self) -> None:
        for path in self._config.directories:
            self._drop_logs(path)
        self._directories.unlock_all()


def _flush_and_close(log: UnifiedLog) -> None:
    log.flush(force_active=True)
    log.close()
