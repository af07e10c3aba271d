"""Names of files and directories. Only this module builds and parses them.

- A log directory (an entry of Kafka's `log.dirs`) holds checkpoints and one partition directory per log.
- A partition directory is named `<topic>-<partition>`. It has a suffix while it is created, deleted or set
  aside.
- The names of a segment's files start with the base offset in 20 digits, so that a sorted listing is in
  offset order.

Source: UnifiedLog, LocalLog, LogFileUtils and LogManager of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"

DELETED: Final = ".deleted"
"""Suffix of a file that is unlinked after a delay."""
CLEANED: Final = ".cleaned"
"""Suffix of a segment that a cleaning or a split is still writing."""
SWAP: Final = ".swap"
"""Suffix of a complete segment that is about to replace others."""

LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"
SET_ASIDE: Final = "set-aside-offsets"
"""File in the directory of a log that waits to be opened again or deleted."""

MAX_NAME_BYTES: Final = 255

RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
META_PROPERTIES: Final = "meta.properties"
CLUSTER_METADATA: Final = "__cluster_metadata"
"""The topic of a KRaft quorum, whose log is not one of the log manager's."""
LOCK: Final = ".lock"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"

_SEGMENT_FILE: Final = re.compile(r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)", re.ASCII)
_PARTITION_DIRECTORY: Final = re.compile(
    r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>0|[1-9][0-9]{0,9})", re.ASCII
)
_SUFFIXED_DIRECTORY: Final = re.compile(
    _PARTITION_DIRECTORY.pattern + r"\.(?P<unique>[0-9a-f]{32})(?P<state>-delete|-future|-stray)", re.ASCII
)


def segment_file(directory: Path, base_offset: int, kind: str, suffix: str = "") -> Path:
    """Return the path of a segment's file of one kind (LOG, …), with an optional suffix (DELETED, …)."""
    return directory / f"{base_offset:020d}{kind}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """Return the base offset and the kind of a file, or None if it is not a segment's file or has a suffix.

    For a snapshot, the offset is the snapshot's own.
    """
    match = _SEGMENT_FILE.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def with_suffix(path: Path, suffix: str) -> Path:
    """Return `path` with `suffix` appended."""
    return path.with_name(path.name + suffix)


class DirectoryState(StrEnum):
    """The state of a partition directory, which is the end of its name."""

    LIVE = ""
    DELETE = "-delete"
    FUTURE = "-future"
    STRAY = "-stray"


@dataclass(frozen=True, slots=True, order=True)
class PartitionDirectory:
    """The parts of a partition directory's name.

    `unique` is a random part that names with a suffix have. In a directory with the suffix `-delete` or
    `-stray`, `topic` may be cut so that the name fits the file system's limit.
    """

    topic: str
    partition: int
    state: DirectoryState = DirectoryState.LIVE
    unique: str = ""

    @property
    def name(self) -> str:
        """The name of the directory."""
        if self.state is DirectoryState.LIVE:
            return f"{self.topic}-{self.partition}"
        return f"{self.topic}-{self.partition}.{self.unique}{self.state}"


def suffixed_partition_directory(
    topic: str, partition: int, state: DirectoryState, unique: UUID
) -> PartitionDirectory:
    """Return the directory of a log that is being created, deleted or set aside.

    The topic is cut where the name would become too long. As in Kafka, that of a future log is never cut: the
    log is identified by it later.
    """
    rest = len(f"-{partition}.{unique.hex}{state}")
    topic_length = len(topic) if state is DirectoryState.FUTURE else MAX_NAME_BYTES - rest
    return PartitionDirectory(topic[:topic_length], partition, state, unique.hex)


def parse_partition_directory(name: str) -> PartitionDirectory | None:
    """Return the parts of a partition directory's name, or None for another name."""
    match = _SUFFIXED_DIRECTORY.fullmatch(name)
    if match is not None:
        return PartitionDirectory(
            match["topic"], int(match["partition"]), DirectoryState(match["state"]), match["unique"]
        )
    match = _PARTITION_DIRECTORY.fullmatch(name)
    if match is None:
        return None
    return PartitionDirectory(match["topic"], int(match["partition"]))
