"""Names of files in a log's directory; the one place that builds and parses them.

Source: LogFileUtils and LocalLog of org.apache.kafka.storage.internals.log. A segment's files begin with its
base offset, 20 digits wide, so that a listing is in the order of offsets.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

LOG: Final = ".log"
OFFSET_INDEX: Final = ".index"
TIME_INDEX: Final = ".timeindex"
TXN_INDEX: Final = ".txnindex"
SNAPSHOT: Final = ".snapshot"

DELETED: Final = ".deleted"
"""Appended to a file that waits to be unlinked."""
CLEANED: Final = ".cleaned"
"""Appended to the output of a clean or a split while it is written."""
SWAP: Final = ".swap"
"""Appended to whole output that is about to take the place of segments."""

LEADER_EPOCH_CHECKPOINT: Final = "leader-epoch-checkpoint"
PARTITION_METADATA: Final = "partition.metadata"

_SEGMENT_FILE: Final = re.compile(r"([0-9]{20})(\.log|\.index|\.timeindex|\.txnindex|\.snapshot)", re.ASCII)


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
