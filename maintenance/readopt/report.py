"""Report of a readoption: files, records, and old and new offsets."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from catalog.lifecycle.missing_topics import MissingTopic
    from catalog.model import OffsetRange


class Outcome(StrEnum):
    """Result of a readoption for one file."""

    WAITING = "waiting"  # for `--apply`, or for topics that the catalog lacks
    DISCARDED = "discarded"  # never acknowledged as far as is known, and not asked for
    READOPTED = "readopted"
    UNREADABLE = "unreadable"  # its object is missing or damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadoptedFile:
    """A file without a row. `acknowledged` is None if it is unknown whether its agent acknowledged it.

    `duplicates` are records of idempotent producers that the log has already. `rejected` are records of
    deleted topics, and those whose sequence numbers do not follow. `rejected_acknowledged` are those of them
    in sections that were in the lost log, without records of transactions. `missing_topics` must be created,
    or get partitions, before the file can be committed. The object of an unreadable file that was
    acknowledged is kept (`is_kept`).
    """

    file_id: UUID
    object_name: str
    session_id: UUID
    acknowledged: bool | None
    outcome: Outcome
    sections: int = 0
    records: int = 0
    duplicates: int = 0
    rejected: int = 0
    rejected_acknowledged: int = 0
    missing_topics: Sequence[MissingTopic] = ()
    old_offsets: Sequence[OffsetRange] = ()
    new_offsets: Sequence[OffsetRange] = ()
    detail: str | None = None
    is_kept: bool = False

    def as_dict(self) -> dict[str, Any]:
        """Return the file for JSON. Offsets are [topic id, partition, first offset, end offset]."""
        offsets = {
            "old_offsets": [tuple(each) for each in self.old_offsets],
            "new_offsets": [tuple(each) for each in self.new_offsets],
        }
        return {**asdict(self), **offsets, "missing_topics": list(map(_missing_fields, self.missing_topics))}


@dataclass(slots=True, kw_only=True)
class ReadoptReport:
    """Files of a readoption. The first `max_files` are kept, all are counted."""

    applied: bool
    max_files: int = 10_000
    files: list[ReadoptedFile] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0  # files
    records: int = 0
    duplicates: int = 0
    rejected: int = 0
    kept: int = 0  # unreadable files
    settled_sessions: int = 0
    missing_topics: dict[UUID, MissingTopic] = field(default_factory=dict)  # of all files

    def add(self, file: ReadoptedFile) -> None:
        """Count a file, and keep it if there is space."""
        self.counts[file.outcome.value] = self.counts.get(file.outcome.value, 0) + 1
        self.acknowledged += bool(file.acknowledged)
        self.records += file.records
        self.duplicates += file.duplicates
        self.rejected += file.rejected
        self.kept += file.is_kept
        for topic in file.missing_topics:
            known = self.missing_topics.setdefault(topic.topic_id, topic)
            if known.partition_count < topic.partition_count:
                self.missing_topics[topic.topic_id] = topic
        if len(self.files) < self.max_files:
            self.files.append(file)

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "applied": self.applied,
            "counts": self.counts,
            "acknowledged": self.acknowledged,
            "records": self.records,
            "duplicates": self.duplicates,
            "rejected": self.rejected,
            "kept": self.kept,
            "settled_sessions": self.settled_sessions,
            "missing_topics": [
                {**_missing_fields(each), "command": each.command} for each in self.missing_topics.values()
            ],
            "files": [file.as_dict() for file in self.files],
        }


def _missing_fields(topic: MissingTopic) -> dict[str, Any]:
    return {"topic_id": str(topic.topic_id), "name": topic.name, "partitions": topic.partition_count}
