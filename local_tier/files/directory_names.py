"""The names of logs' directories, and of the files beside them, built and parsed here and nowhere else.

They are Kafka's (UnifiedLog, LogManager): `<topic>-<partition>`, with a tail when the directory is on its way
in or out. What is inside a log's directory is named in `file_names`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from uuid import UUID

MAX_NAME_BYTES: Final = 255

RECOVERY_POINT_CHECKPOINT: Final = "recovery-point-offset-checkpoint"
LOG_START_OFFSET_CHECKPOINT: Final = "log-start-offset-checkpoint"
HIGH_WATERMARK_CHECKPOINT: Final = "replication-offset-checkpoint"
CLEANER_CHECKPOINT: Final = "cleaner-offset-checkpoint"
META_PROPERTIES: Final = "meta.properties"
LOCK: Final = ".lock"
CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"


class DirectoryState(StrEnum):
    """What the tail of a log directory's name says."""

    LIVE = ""
    DELETE = "-delete"
    FUTURE = "-future"
    STRAY = "-stray"


@dataclass(frozen=True, slots=True, order=True)
class LogDirectory:
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


_LOG_DIRECTORY: Final = re.compile(r"(?P<topic>[a-zA-Z0-9._-]+)-(?P<partition>0|[1-9][0-9]{0,9})", re.ASCII)
_PASSING_DIRECTORY: Final = re.compile(
    _LOG_DIRECTORY.pattern + r"\.(?P<unique>[0-9a-f]{32})(?P<state>-delete|-future|-stray)", re.ASCII
)


def log_directory(topic: str, partition: int) -> LogDirectory:
    """The directory of a log that is in use."""
    return LogDirectory(topic, partition)


def passing_directory(topic: str, partition: int, state: DirectoryState, unique: UUID) -> LogDirectory:
    """The directory of a log on its way in or out; the topic's name is cut where the whole gets too long.

    A future log keeps its whole topic, by which it is found again (Kafka does not cut it either).
    """
    rest = len(f"-{partition}.{unique.hex}{state}")
    room = len(topic) if state is DirectoryState.FUTURE else MAX_NAME_BYTES - rest
    return LogDirectory(topic[:room], partition, state, unique.hex)


def parse_directory_name(name: str) -> LogDirectory | None:
    """The parts of a name; None for a directory that holds no log."""
    match = _PASSING_DIRECTORY.fullmatch(name)
    if match is not None:
        return LogDirectory(
            match["topic"], int(match["partition"]), DirectoryState(match["state"]), match["unique"]
        )
    match = _LOG_DIRECTORY.fullmatch(name)
    if match is None:
        return None
    return LogDirectory(match["topic"], int(match["partition"]))
