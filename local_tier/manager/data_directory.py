"""One directory of logs: its lock, its id and its checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import structlog

from core.errors import InvalidInputError
from local_tier.errors import CorruptCheckpointError
from local_tier.files.clean_shutdown import take_clean_mark
from local_tier.files.directory_names import (
    HIGH_WATERMARK_CHECKPOINT,
    LOCK,
    LOG_START_OFFSET_CHECKPOINT,
    RECOVERY_POINT_CHECKPOINT,
    LogDirectory,
    parse_directory_name,
)
from local_tier.files.directory_properties import DirectoryProperties, read_properties, write_properties
from local_tier.files.offset_checkpoint import OffsetCheckpoint

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from uuid import UUID

    from core.clock import Clock
    from core.ids import Ids
    from local_tier.files.file_system import FileLock, FileSystem
    from local_tier.topic_partition import TopicPartition

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryOwner:
    """Who may write to a directory: the cluster (here: the catalog) and the node (here: the agent)."""

    cluster_id: str
    node_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryContents:
    """What a directory says before its logs are opened; offsets are by log, and may be missing."""

    was_clean: bool
    logs: tuple[LogDirectory, ...]
    recovery_points: Mapping[TopicPartition, int]
    log_start_offsets: Mapping[TopicPartition, int]
    high_watermarks: Mapping[TopicPartition, int]


class DataDirectory:
    """A directory that this process has locked."""

    def __init__(self, files: FileSystem, path: Path, directory_id: UUID, lock: FileLock) -> None:
        self._files = files
        self._lock = lock
        self.path = path
        self.directory_id = directory_id
        self.recovery_points = OffsetCheckpoint(files, path / RECOVERY_POINT_CHECKPOINT)
        self.log_start_offsets = OffsetCheckpoint(files, path / LOG_START_OFFSET_CHECKPOINT)
        self.high_watermarks = OffsetCheckpoint(files, path / HIGH_WATERMARK_CHECKPOINT)
        self.was_clean = False
        self.is_loaded = False
        """Whether all its logs were opened: otherwise a clean shutdown cannot be claimed later."""

    @classmethod
    def open(
        cls, files: FileSystem, path: Path, owner: DirectoryOwner, clock: Clock, ids: Ids
    ) -> DataDirectory:
        """Make it when it is not there, lock it, and see that it is `owner`'s.

        Raises OSError when the disk fails, InvalidInputError when somebody else uses it or owns it,
        CorruptCheckpointError when it does not say.
        """
        if files.status(path) is None:
            files.make_dir(path)
            files.sync_dir(path.parent)
        lock = files.lock(path / LOCK)
        if lock is None:
            raise InvalidInputError(
                f"log directory {path} is in use by another process",
                remedy="stop that process, or give this one a directory of its own",
            )
        try:
            return cls(files, path, _identify(files, path, owner, clock, ids), lock)
        except BaseException:
            lock.release()
            raise

    def look(self) -> DirectoryContents:
        """List its logs and read its checkpoints; the mark of a clean shutdown is gone afterwards.

        A checkpoint that cannot be read is taken for an empty one: recovery then begins at the start of each
        log, and a log begins with its first segment.
        """
        self.was_clean = take_clean_mark(self._files, self.path)
        found = []
        for name in self._files.list_dir(self.path):
            status = self._files.status(self.path / name)
            if status is not None and status.is_directory:
                parsed = parse_directory_name(name)
                if parsed is None:
                    _log.warning("directory_holds_no_log", path=str(self.path / name))
                else:
                    found.append(parsed)
        return DirectoryContents(
            was_clean=self.was_clean,
            logs=tuple(found),
            recovery_points=_read(self.recovery_points),
            log_start_offsets=_read(self.log_start_offsets),
            high_watermarks=_read(self.high_watermarks),
        )

    def unlock(self) -> None:
        """Let others have it."""
        self._lock.release()


def _identify(files: FileSystem, path: Path, owner: DirectoryOwner, clock: Clock, ids: Ids) -> UUID:
    properties = read_properties(files, path)
    if properties is None:
        properties = DirectoryProperties(
            cluster_id=owner.cluster_id, node_id=owner.node_id, directory_id=ids.new_uuid()
        )
        write_properties(files, path, properties, clock)
    elif (properties.cluster_id, properties.node_id) != (owner.cluster_id, owner.node_id):
        raise InvalidInputError(
            f"log directory {path} belongs to node {properties.node_id} of cluster {properties.cluster_id}, "
            f"not to node {owner.node_id} of cluster {owner.cluster_id}",
            remedy="give the agent the directory it had before, or an empty one",
        )
    return properties.directory_id


def _read(checkpoint: OffsetCheckpoint) -> dict[TopicPartition, int]:
    try:
        return checkpoint.read()
    except CorruptCheckpointError as error:
        _log.warning("checkpoint_unreadable", path=str(checkpoint.path), error=str(error))
        return {}
