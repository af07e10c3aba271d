"""The log directories of an agent (Kafka's `log.dirs`), usually one per disk.

Each directory has a lock, an identity (`meta.properties`), checkpoints, and the marker of a clean shutdown. A
directory whose disk fails is offline until the agent starts again.

Source: LogManager, CleanShutdownFileHandler and LogDirFailureChannel of
org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NoReturn

import orjson
import structlog

from core.errors import FatalError, InvalidInputError
from local_tier.errors import CorruptCheckpointError, LogDirectoryOfflineError
from local_tier.files.checkpoint_files import OffsetCheckpointFile
from local_tier.files.file_names import (
    CLEAN_SHUTDOWN,
    CLUSTER_METADATA,
    HIGH_WATERMARK_CHECKPOINT,
    LOCK,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    PartitionDirectory,
    parse_partition_directory,
)
from local_tier.files.file_system import replace_file
from local_tier.files.metadata_files import (
    MetaProperties,
    new_directory_id,
    read_meta_properties,
    uuid_text,
    write_meta_properties,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from uuid import UUID

    from core.clock import Clock
    from core.ids import Ids
    from local_tier.files.file_system import FileLock, FileSystem
    from local_tier.manager.log_registry import LogRegistry
    from local_tier.scheduler import Scheduler
    from local_tier.topic_partition import TopicPartition

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryOwner:
    """The cluster (the catalog's id) and the node (the agent's id) that may write to a log directory."""

    cluster_id: str
    node_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryContents:
    """The partition directories and checkpoints of a log directory before its logs are opened.

    A log may be missing in the offset maps.
    """

    had_clean_shutdown: bool
    logs: tuple[PartitionDirectory, ...]
    recovery_points: Mapping[TopicPartition, int]
    log_start_offsets: Mapping[TopicPartition, int]
    high_watermarks: Mapping[TopicPartition, int]


_NOTHING: Final = DirectoryContents(
    had_clean_shutdown=False, logs=(), recovery_points={}, log_start_offsets={}, high_watermarks={}
)


class LogDirectory:
    """One log directory that this process has locked."""

    def __init__(
        self, file_system: FileSystem, path: Path, directory_id: UUID, lock: FileLock, *, is_new: bool
    ) -> None:
        self._file_system = file_system
        self._lock = lock
        self.path = path
        self.directory_id = directory_id
        self.is_new = is_new
        """True if it had no identity before: an empty disk, or the mount point of a disk that is away."""
        self.recovery_points = OffsetCheckpointFile(file_system, path / RECOVERY_POINT_CHECKPOINT)
        self.log_start_offsets = OffsetCheckpointFile(file_system, path / LOG_START_OFFSET_CHECKPOINT)
        self.high_watermarks = OffsetCheckpointFile(file_system, path / HIGH_WATERMARK_CHECKPOINT)
        self.contents = _NOTHING
        self.had_clean_shutdown = False
        self.has_unreadable_logs = False
        self.is_loaded = False
        """True if all its logs were opened. Otherwise a clean shutdown must not be recorded later."""

    @classmethod
    def open(
        cls, file_system: FileSystem, path: Path, owner: DirectoryOwner, clock: Clock, ids: Ids
    ) -> LogDirectory:
        """Create the directory if it is missing, lock it, and check that it belongs to `owner`.

        Raises OSError when the disk fails, InvalidInputError when another process uses the directory or
        another agent owns it, and CorruptCheckpointError when `meta.properties` cannot be read.
        """
        if file_system.status(path) is None:
            file_system.make_dir(path)
            file_system.sync_dir(path.parent)
        lock = file_system.lock(path / LOCK)
        if lock is None:
            raise InvalidInputError(
                f"log directory {path} is in use by another process",
                remedy="stop that process, or give this agent another directory",
            )
        try:
            directory_id, is_new = _identify(file_system, path, owner, clock, ids)
            return cls(file_system, path, directory_id, lock, is_new=is_new)
        except BaseException:
            lock.release()
            raise

    def read_contents(self) -> DirectoryContents:
        """List the logs, read the checkpoints, and remove the marker of a clean shutdown.

        A checkpoint that cannot be read counts as empty: recovery then begins at the start of each log, and
        a log starts at its first segment.
        """
        self.had_clean_shutdown = take_clean_shutdown_marker(self._file_system, self.path)
        found = []
        for name in self._file_system.list_dir(self.path):
            status = self._file_system.status(self.path / name)
            if status is not None and status.is_directory:
                parsed = parse_partition_directory(name)
                if parsed is None or parsed.topic == CLUSTER_METADATA:
                    _log.warning("not_a_partition_directory", path=str(self.path / name))
                else:
                    found.append(parsed)
        self.contents = DirectoryContents(
            had_clean_shutdown=self.had_clean_shutdown,
            logs=tuple(found),
            recovery_points=_read(self.recovery_points),
            log_start_offsets=_read(self.log_start_offsets),
            high_watermarks=_read(self.high_watermarks),
        )
        return self.contents

    def unlock(self) -> None:
        """Release the lock."""
        self._lock.release()


class LogDirFailureChannel:
    """Collects disk failures and takes the failed directories offline, each on a separate thread.

    Any thread may report a failure, with any lock held, so `report` never waits. `on_offline` is called once
    for each failed directory. It may have to wait for a thread that the disk holds up.
    """

    def __init__(self, schedulers: Mapping[Path, Scheduler], on_offline: Callable[[Path], None]) -> None:
        self._schedulers = schedulers
        self._on_offline = on_offline
        self._reported: set[Path] = set()
        self._lock = threading.Lock()
        self.failed: set[Path] = set()

    def report(self, path: Path, error: OSError | CorruptCheckpointError) -> None:
        """Mark a log directory as failed until the process starts again."""
        with self._lock:
            if path in self.failed:
                return
            self.failed = {*self.failed, path}
            self._reported.add(path)
        _log.error("log_directory_failed", path=str(path), error=str(error))
        self._schedulers[path].schedule_once("log-directory-failure", lambda: self._take_offline(path))

    def report_and_raise(self, path: Path, error: OSError) -> NoReturn:
        """Report a failure, and raise LogDirectoryOfflineError."""
        self.report(path, error)
        raise LogDirectoryOfflineError(
            f"log directory {path} has failed", remedy="repair its disk"
        ) from error

    def require_none(self, name: TopicPartition) -> None:
        """Raise LogDirectoryOfflineError if a directory has failed: a log may be in it."""
        if self.failed:
            raise LogDirectoryOfflineError(
                f"log {name} may be in a log directory that is offline: {', '.join(map(str, self.failed))}",
                remedy="repair or replace the disk, then start the agent again",
            )

    def take_failed_offline(self) -> None:
        """Call `on_offline` for each directory that was reported since the last call."""
        for path in list(self._reported):
            self._take_offline(path)

    def _take_offline(self, path: Path) -> None:
        with self._lock:
            if path not in self._reported:
                return
            self._reported.remove(path)
        self._on_offline(path)


class LogDirectories:
    """The configured log directories; those that have failed are in `failures`."""

    def __init__(
        self,
        paths: Sequence[Path],
        owner: DirectoryOwner,
        *,
        file_system: FileSystem,
        failures: LogDirFailureChannel,
    ) -> None:
        self._paths = paths
        self._owner = owner
        self._file_system = file_system
        self._failures = failures
        self._directories: dict[Path, LogDirectory] = {}

    @property
    def live(self) -> list[LogDirectory]:
        """The directories that have not failed."""
        return [one for path, one in list(self._directories.items()) if path not in self._failures.failed]

    def get(self, path: Path) -> LogDirectory | None:
        """Return the directory, or None if it has failed."""
        return self._directories.get(path) if path not in self._failures.failed else None

    def open_all(self, clock: Clock, ids: Ids) -> None:
        """Lock and identify all directories, and report those whose disk fails.

        A directory whose `meta.properties` cannot be read has failed, too. Raises InvalidInputError as
        `LogDirectory.open` does, and if two directories have the same id.
        """
        for path in self._paths:
            try:
                opened = LogDirectory.open(self._file_system, path, self._owner, clock, ids)
            except (OSError, CorruptCheckpointError) as error:
                self._failures.report(path, error)
                continue
            self._directories[path] = opened
            for other in self._directories.values():
                if other is not opened and other.directory_id == opened.directory_id:
                    raise InvalidInputError(
                        f"log directories {other.path} and {path} have the same id, "
                        f"{uuid_text(opened.directory_id)}: one is a copy of the other",
                        remedy="remove the copy, or delete its meta.properties and its logs",
                    )

    def require_live(self) -> None:
        """Raise FatalError if all directories have failed."""
        if not self.live:
            raise FatalError(
                "no log directory can be used: " + ", ".join(map(str, self._paths)),
                remedy="see the errors logged before; the agent needs at least one log directory that works",
            )

    def by_load(self, registry: LogRegistry) -> list[LogDirectory]:
        """Return the directories that have not failed, the one with the fewest logs first."""
        live = self.live
        if len(live) == 1:
            return live
        counts = Counter(log.directory.parent for log in registry.all())
        return sorted(live, key=lambda directory: counts[directory.path])

    def remove(self, path: Path) -> None:
        """Remove and unlock a failed directory."""
        directory = self._directories.pop(path, None)
        if directory is not None:
            directory.unlock()

    def unlock_all(self) -> None:
        """Release all locks."""
        for directory in self._directories.values():
            directory.unlock()
        self._directories.clear()


def write_clean_shutdown_marker(file_system: FileSystem, directory: Path, epoch: int = -1) -> None:
    """Durably record that all logs of a log directory were flushed and closed.

    Only the presence of the file counts. It holds the epoch of the process as JSON (KIP-966).
    """
    replace_file(file_system, directory / CLEAN_SHUTDOWN, orjson.dumps({"version": 0, "brokerEpoch": epoch}))


def take_clean_shutdown_marker(file_system: FileSystem, directory: Path) -> bool:
    """Durably remove the marker of a clean shutdown; return True if it was there.

    It is removed before any log is loaded: a crash during loading must not look like a clean shutdown at the
    next start (KAFKA-10471).
    """
    path = directory / CLEAN_SHUTDOWN
    if file_system.status(path) is None:
        return False
    file_system.unlink(path, missing_ok=True)
    file_system.sync_dir(directory)
    return True


def _identify(
    file_system: FileSystem, path: Path, owner: DirectoryOwner, clock: Clock, ids: Ids
) -> tuple[UUID, bool]:
    """Return the id of a directory, and True if it was given now."""
    properties = read_meta_properties(file_system, path)
    is_new = properties is None
    if properties is None:
        properties = MetaProperties(
            cluster_id=owner.cluster_id, node_id=owner.node_id, directory_id=new_directory_id(ids)
        )
        write_meta_properties(file_system, path, properties, clock)
    if (properties.cluster_id, properties.node_id) != (owner.cluster_id, owner.node_id):
        raise InvalidInputError(
            f"log directory {path} belongs to node {properties.node_id} of cluster {properties.cluster_id}, "
            f"not to node {owner.node_id} of cluster {owner.cluster_id}",
            remedy="give the agent the directory that it used before, or an empty one",
        )
    if properties.directory_id is None:  # a Kafka before 3.7 has written the file
        properties = replace(properties, directory_id=new_directory_id(ids))
        write_meta_properties(file_system, path, properties, clock)
    assert properties.directory_id is not None
    return properties.directory_id, is_new


def _read(checkpoint: OffsetCheckpointFile) -> dict[TopicPartition, int]:
    try:
        return checkpoint.read()
    except CorruptCheckpointError as error:
        _log.warning("checkpoint_unreadable", path=str(checkpoint.path), error=str(error))
        return {}
