"""Names of files in a log's directory; the one place that builds and parses them.

Source: LogFileUtils and LocalLog of org.apache.kafka.storage.internals.log. A segment's files begin with its
base offset, 20 digits wide, so that a listing is in the order of offsets.
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
"""LogAppendInfo to a file that waits to be unlinked."""
CLEANED: Final = ".cleaned"
"""LogAppendInfo to the output of a clean or a split while it is written."""
SWAP: Final = ".swap"
"""LogAppendInfo to whole output that is about to take the place of segments."""

LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"

MAX_NAME_BYTES: Final = 255

RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
META_PROPERTIES: Final = "meta.properties"
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
    """The path of one of a segment's files: `kind` is LOG, OFFSET_INDEX, …, `suffix` "" or DELETED, …."""
    return directory / f"{base_offset:020d}{kind}{suffix}"


def parse_segment_file(name: str) -> tuple[int, str] | None:
    """Base offset (for a snapshot: its offset) and kind of a file without further suffix; None for others."""
    match = _SEGMENT_FILE.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def with_suffix(path: Path, suffix: str) -> Path:
    """`path` with `suffix` appended, not replaced."""
    return path.with_name(path.name + suffix)


class DirectoryState(StrEnum):
    """What the tail of a log directory's name says."""

    LIVE = ""
    DELETE = "-delete"
    FUTURE = "-future"
    STRAY = "-stray"


@dataclass(frozen=True, slots=True, order=True)
class PartitionDirectory:
    """The parts of a directory's name; `unique` tells apart those with a tail.

    `topic` may be only the start of a topic's name in a directory that is deleted or astray: it is cut so
    that the name stays one that file systems take.
    """

    topic: str
    partition: int
    state: DirectoryState = DirectoryState.LIVE
    unique: str = ""

    @property
    def name(self) -> str:
        """The directory's name."""
        if self.state is DirectoryState.LIVE:
            return f"{self.topic}-{self.partition}"
        return f"{self.topic}-{self.partition}.{self.unique}{self.state}"


def suffixed_partition_directory(
    topic: str, partition: int, state: DirectoryState, unique: UUID
) -> PartitionDirectory:
    """The directory of a log on its way in or out; the topic's name is cut where the whole gets too long.

    A future log keeps its whole topic, by which it is found again (Kafka does not cut it either).
    """
    rest = len(f"-{partition}.{unique.hex}{state}")
    room = len(topic) if state is DirectoryState.FUTURE else MAX_NAME_BYTES - rest
    return PartitionDirectory(topic[:room], partition, state, unique.hex)


def parse_partition_directory(name: str) -> PartitionDirectory | None:
    """The parts of a name; None for a directory that holds no log."""
    match = _SUFFIXED_DIRECTORY.fullmatch(name)
    if match is not None:
        return PartitionDirectory(
            match["topic"], int(match["partition"]), DirectoryState(match["state"]), match["unique"]
        )
    match = _PARTITION_DIRECTORY.fullmatch(name)
    if match is None:
        return None
    return PartitionDirectory(match["topic"], int(match["partition"]))
