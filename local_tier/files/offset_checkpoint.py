"""Checkpoints of one offset per log, one file a directory and purpose.

Source: Kafka's OffsetCheckpointFile: lines of topic, partition and offset. Recovery points, log start
offsets, high watermarks and the cleaner's first dirty offsets are all kept so.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from local_tier.errors import CorruptCheckpointError
from local_tier.files.checkpoint_file import read_checkpoint, whole_number, write_checkpoint
from local_tier.topic_partition import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from local_tier.files.file_system import FileSystem

VERSION = 0


class OffsetCheckpoint:
    """One such file. Reads and writes exclude each other; what is written last stays."""

    def __init__(self, files: FileSystem, path: Path) -> None:
        self._files = files
        self._path = path
        self._lock = threading.Lock()

    @property
    def path(self) -> Path:
        """The file."""
        return self._path

    def read(self) -> dict[TopicPartition, int]:
        """What was written last, nothing when there is no file; CorruptCheckpointError, OSError."""
        with self._lock:
            lines = read_checkpoint(self._files, self._path, VERSION)
        return dict(self._parse(line) for line in lines or ())

    def write(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Durably replace all offsets; after an OSError the old ones are still there."""
        lines = [f"{log.topic} {log.partition} {offset}" for log, offset in sorted(offsets.items())]
        with self._lock:
            write_checkpoint(self._files, self._path, VERSION, lines)

    def _parse(self, line: str) -> tuple[TopicPartition, int]:
        parts = line.split()
        if len(parts) != 3:
            raise CorruptCheckpointError(f"checkpoint {self._path} has a malformed line: {line[:80]!r}")
        partition, offset = (whole_number(self._path, part) for part in parts[1:])
        return TopicPartition(parts[0], partition), offset
