"""Who owns a directory of logs: Kafka's meta.properties, in the form of Java's property files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from local_tier.errors import CorruptCheckpointError
from local_tier.files.directory_names import META_PROPERTIES
from local_tier.files.kafka_uuid import parse_uuid, uuid_text
from local_tier.files.whole_files import read_file, replace_file

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from core.clock import Clock
    from local_tier.files.file_system import FileSystem

VERSION: Final = "1"


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryProperties:
    """The cluster and node that write to a directory, and the directory's own id."""

    cluster_id: str
    node_id: int
    directory_id: UUID


def write_properties(
    files: FileSystem, directory: Path, properties: DirectoryProperties, clock: Clock
) -> None:
    """Durably replace the properties of `directory`."""
    written = datetime.fromtimestamp(clock.now_ms() / 1000, UTC)
    fields = {
        "cluster.id": properties.cluster_id,
        "directory.id": uuid_text(properties.directory_id),
        "node.id": str(properties.node_id),
        "version": VERSION,
    }
    lines = ["#", f"#{written:%a %b %d %H:%M:%S UTC %Y}"]
    lines += [f"{name}={_escaped(value)}" for name, value in fields.items()]
    replace_file(files, directory / META_PROPERTIES, "".join(f"{line}\n" for line in lines).encode())


def read_properties(files: FileSystem, directory: Path) -> DirectoryProperties | None:
    """The properties of `directory`; None when it has none. Raises CorruptCheckpointError."""
    path = directory / META_PROPERTIES
    content = read_file(files, path)
    if content is None:
        return None
    lines = [line for line in content.decode(errors="replace").splitlines() if line and line[0] not in "#!"]
    fields = {name.strip(): _unescaped(value.strip()) for name, _, value in (x.partition("=") for x in lines)}
    directory_id = parse_uuid(fields.get("directory.id", ""))
    node_id = fields.get("node.id", "")
    if fields.get("version") != VERSION or directory_id is None or not node_id.isdecimal():
        raise CorruptCheckpointError(
            f"{path} does not say whose directory this is",
            remedy="restore it from a copy, or give the agent another directory",
        )
    return DirectoryProperties(
        cluster_id=fields.get("cluster.id", ""), node_id=int(node_id), directory_id=directory_id
    )


def _escaped(value: str) -> str:
    """Java puts a backslash before these."""
    return "".join(f"\\{letter}" if letter in "\\:=#!" else letter for letter in value)


def _unescaped(value: str) -> str:
    letters = iter(value)
    return "".join(next(letters, "") if letter == "\\" else letter for letter in letters)
