"""Which topic a log belongs to, by the id that survives a topic's name.

Source: Kafka's PartitionMetadataFile: `version: 0`, then `topic_id: ` and the id. It is written before the
first append, so that a log of a deleted topic is never taken for that of a new one with the same name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from local_tier.errors import CorruptCheckpointError
from local_tier.files.file_names import PARTITION_METADATA
from local_tier.files.kafka_uuid import parse_uuid, uuid_text
from local_tier.files.whole_files import read_file, replace_file

if TYPE_CHECKING:
    from pathlib import Path
    from uuid import UUID

    from local_tier.files.file_system import FileSystem

VERSION = 0


def write_topic_id(files: FileSystem, directory: Path, topic_id: UUID) -> None:
    """Durably bind the log in `directory` to a topic."""
    content = f"version: {VERSION}\ntopic_id: {uuid_text(topic_id)}"
    replace_file(files, directory / PARTITION_METADATA, content.encode())


def read_topic_id(files: FileSystem, directory: Path) -> UUID | None:
    """The topic of the log in `directory`; None when none was written. Raises CorruptCheckpointError."""
    path = directory / PARTITION_METADATA
    content = read_file(files, path)
    if content is None:
        return None
    fields = dict(line.partition(": ")[::2] for line in content.decode(errors="replace").splitlines())
    topic_id = parse_uuid(fields.get("topic_id", ""))
    if fields.get("version") != str(VERSION) or topic_id is None:
        raise CorruptCheckpointError(
            f"{path} does not name a topic",
            remedy="if the log is of no use, remove its directory; the agent does not touch it",
        )
    return topic_id
