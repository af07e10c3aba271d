"""Checkpoint files: text with a version, a count, and one entry per line, always replaced as a whole.

An empty file and a file with only a version have no entries: Kafka creates the file before its first write.

Source: CheckpointFile and OffsetCheckpointFile of Kafka.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

from local_tier.errors import CorruptCheckpointError
from local_tier.files.file_system import read_file, replace_file
from local_tier.topic_partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from local_tier.files.file_system import FileSystem


OFFSET_CHECKPOINT_VERSION: Final = 0


def write_checkpoint(file_system: FileSystem, path: Path, version: int, lines: Collection[str]) -> None:
    """Durably replace a checkpoint. After a crash the file has its old content or the new one."""
    content = "".join(f"{line}\n" for line in (str(version), str(len(lines)), *lines))
    replace_file(file_system, path, content.encode())


def read_checkpoint(file_system: FileSystem, path: Path, version: int) -> list[str] | None:
    """Return the entries, or None if there is no file. Raises CorruptCheckpointError."""
    content = read_file(file_system, path)
    if content is None:
        return None
    try:
        lines = content.decode().splitlines()
    except UnicodeDecodeError:
        raise _corrupt(path, "it is not text") from None
    if lines and parse_number(path, lines[0]) != version:
        raise _corrupt(path, f"its version is {lines[0]}, not {version}")
    if len(lines) < 2:
        return []
    if parse_number(path, lines[1]) != len(lines) - 2:
        raise _corrupt(path, f"it should have {lines[1]} entries but has {len(lines) - 2}")
    return lines[2:]


def parse_number(path: Path, text: str) -> int:
    """Parse a number of a checkpoint. Raises CorruptCheckpointError."""
    if not text.removeprefix("-").isdecimal() or not text.isascii() or len(text) > 20:
        raise _corrupt(path, f"{text[:40]!r} is not a number")
    return int(text)


def _corrupt(path: Path, what: str) -> CorruptCheckpointError:
    return CorruptCheckpointError(f"checkpoint {path} cannot be read: {what}")


class OffsetCheckpointFile:
    """A checkpoint with one offset per log, in lines of topic, partition and offset.

    Recovery points, log start offsets, high watermarks and the cleaner's first dirty offsets are stored like
    this, one file per log directory and purpose. Any thread may read and write.
    """

    def __init__(self, file_system: FileSystem, path: Path) -> None:
        self._file_system = file_system
        self._path = path
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._path

    def read(self) -> dict[TopicPartition, int]:
        """Return the offsets, none if there is no file. Raises CorruptCheckpointError and OSError."""
        with self._lock:
            lines = read_checkpoint(self._file_system, self._path, OFFSET_CHECKPOINT_VERSION)
        return dict(self._parse(line) for line in lines or ())

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Durably replace all offsets. After an OSError the old offsets are still there."""
        lines = [f"{log.topic} {log.partition} {offset}" for log, offset in sorted(offsets.items())]
        with self._lock:
            write_checkpoint(self._file_system, self._path, OFFSET_CHECKPOINT_VERSION, lines)

    def _parse(self, line: str) -> tuple[TopicPartition, int]:
        parts = line.split()
        if len(parts) != 3:
            raise CorruptCheckpointError(f"checkpoint {self._path} has a malformed line: {line[:80]!r}")
        partition, offset = (parse_number(self._path, part) for part in parts[1:])
        return TopicPartition(parts[0], partition), offset
