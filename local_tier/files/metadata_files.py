"""The files that say to whom a directory belongs, and how a log that was set aside is opened again.

A log directory has a `meta.properties` in the format of Java property files. A partition directory has a
`partition.metadata` with the topic's id. It is written before the first append, so that the log of a deleted
topic is never taken for that of a new topic with the same name. The directory of a log that waits, because
its topic was deleted and may come back, has a file with the log's entries of the checkpoints. Any other stray
is never opened again by itself: it may be an old copy.

Source: MetaProperties and PartitionMetadataFile of Kafka.
"""

from __future__ import annotations

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final
from uuid import UUID

from local_tier.errors import CorruptCheckpointError
from local_tier.files.file_names import META_PROPERTIES, PARTITION_METADATA, SET_ASIDE
from local_tier.files.file_system import read_file, replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from core.clock import Clock
    from core.ids import Ids
    from local_tier.files.file_system import FileSystem


META_PROPERTIES_VERSION: Final = "1"
PARTITION_METADATA_VERSION: Final = 0

_SET_ASIDE_CONTENT: Final = re.compile(
    rb"version: 0\nlog_start_offset: ([0-9]{1,19})\nrecovery_point: ([0-9]{1,19})\n"
)

_RESERVED_IDS: Final = 100
"""Kafka's DirectoryId.reserved: the first ids have a special meaning."""


def new_directory_id(ids: Ids) -> UUID:
    """Return a new id of a log directory. As in Kafka, its text does not begin with a dash."""
    while True:
        found = ids.new_uuid()
        if found.int >= _RESERVED_IDS and not uuid_text(found).startswith("-"):
            return found


def uuid_text(value: UUID) -> str:
    """Return a UUID as Kafka writes it: 22 characters of URL-safe base 64. `parse_uuid` is the inverse."""
    return urlsafe_b64encode(value.bytes).decode().rstrip("=")


def parse_uuid(text: str) -> UUID | None:
    """Return the UUID of such a text, or None if the text is not one."""
    try:
        raw = urlsafe_b64decode(text.encode() + b"==")
    except (binascii.Error, UnicodeEncodeError):
        return None
    value = UUID(bytes=raw) if len(raw) == 16 else None
    return value if value is not None and uuid_text(value) == text else None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetaProperties:
    """The cluster and the node that own a log directory, and the directory's own id.

    The id is None if a Kafka before 3.7 has written the file.
    """

    cluster_id: str
    node_id: int
    directory_id: UUID | None


def write_meta_properties(
    file_system: FileSystem, directory: Path, properties: MetaProperties, clock: Clock
) -> None:
    """Durably replace the `meta.properties` of a log directory."""
    written = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    assert properties.directory_id is not None
    fields = {
        "cluster.id": properties.cluster_id,
        "directory.id": uuid_text(properties.directory_id),
        "node.id": str(properties.node_id),
        "version": META_PROPERTIES_VERSION,
    }
    lines = ["#", f"#{written:%a %b %d %H:%M:%S UTC %Y}"]
    lines += [f"{name}={_escaped(value)}" for name, value in fields.items()]
    replace_file(file_system, directory / META_PROPERTIES, "".join(f"{line}\n" for line in lines).encode())


def read_meta_properties(file_system: FileSystem, directory: Path) -> MetaProperties | None:
    """Return the `meta.properties` of a log directory, or None. Raises CorruptCheckpointError."""
    path = directory / META_PROPERTIES
    content = read_file(file_system, path)
    if content is None:
        return None
    lines = [line for line in content.decode(errors="replace").splitlines() if line and line[0] not in "#!"]
    fields = {name.strip(): _unescaped(value.strip()) for name, _, value in (x.partition("=") for x in lines)}
    written_id = fields.get("directory.id")
    directory_id = None if written_id is None else parse_uuid(written_id)
    has_valid_id = written_id is None or (directory_id is not None and directory_id.int >= _RESERVED_IDS)
    node_id = fields.get("node.id", "")
    if fields.get("version") != META_PROPERTIES_VERSION or not has_valid_id or not node_id.isdecimal():
        raise CorruptCheckpointError(
            f"{path} does not name the owner of the directory",
            remedy="restore the file from a backup, or give the agent another directory",
        )
    return MetaProperties(
        cluster_id=fields.get("cluster.id", ""), node_id=int(node_id), directory_id=directory_id
    )


def _escaped(value: str) -> str:
    """Escape a value as Java does, with a backslash."""
    return "".join(f"\\{character}" if character in "\\:=#!" else character for character in value)


def _unescaped(value: str) -> str:
    characters = iter(value)
    return "".join(next(characters, "") if character == "\\" else character for character in characters)


def write_topic_id(file_system: FileSystem, directory: Path, topic_id: UUID) -> None:
    """Durably bind a partition directory to a topic."""
    content = f"version: {PARTITION_METADATA_VERSION}\ntopic_id: {uuid_text(topic_id)}"
    replace_file(file_system, directory / PARTITION_METADATA, content.encode())


def read_topic_id(file_system: FileSystem, directory: Path) -> UUID | None:
    """Return the topic id of a partition directory, or None if none was written.

    Raises CorruptCheckpointError.
    """
    path = directory / PARTITION_METADATA
    content = read_file(file_system, path)
    if content is None:
        return None
    fields = dict(line.partition(": ")[::2] for line in content.decode(errors="replace").splitlines())
    topic_id = parse_uuid(fields.get("topic_id", ""))
    if fields.get("version") != str(PARTITION_METADATA_VERSION) or topic_id is None:
        raise CorruptCheckpointError(
            f"{path} does not name a topic",
            remedy="remove the directory if the log is not needed; the agent does not change it",
        )
    return topic_id


@dataclass(frozen=True, slots=True, kw_only=True)
class SetAsideOffsets:
    """The entries that a log had in the checkpoints when it was set aside."""

    log_start_offset: int
    recovery_point: int


def write_set_aside_offsets(file_system: FileSystem, directory: Path, offsets: SetAsideOffsets) -> None:
    """Durably mark a partition directory as one that waits."""
    start, point = offsets.log_start_offset, offsets.recovery_point
    text = f"version: 0\nlog_start_offset: {start}\nrecovery_point: {point}\n"
    replace_file(file_system, directory / SET_ASIDE, text.encode())


def read_set_aside_offsets(file_system: FileSystem, directory: Path) -> SetAsideOffsets | None:
    """Return the offsets of a directory that waits, or None. Raises CorruptCheckpointError."""
    content = read_file(file_system, directory / SET_ASIDE)
    if content is None:
        return None
    match = _SET_ASIDE_CONTENT.fullmatch(content)
    if match is None:
        raise CorruptCheckpointError(f"{directory / SET_ASIDE} cannot be read")
    return SetAsideOffsets(log_start_offset=int(match[1]), recovery_point=int(match[2]))


def remove_set_aside_offsets(file_system: FileSystem, directory: Path) -> None:
    """Durably remove the mark."""
    file_system.unlink(directory / SET_ASIDE, missing_ok=True)
    file_system.sync_dir(directory)
