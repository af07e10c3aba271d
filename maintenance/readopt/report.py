"""Report of a readoption: files, records, and old and new offsets."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from catalog.model import OffsetRange


class Outcome(StrEnum):
    """Result of a readoption for one file."""

    WAITING = "waiting"  # dry run: it would be committed again
    DISCARDED = "discarded"  # never acknowledged as far as is known, and not asked for
    READOPTED = "readopted"
    UNREADABLE = "unreadable"  # its object is missing or damaged


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadoptedFile:
    """A file without a row. `acknowledged` is None if it is unknown whether its agent acknowledged it.

    `duplicates` are records of idempotent producers that the log has already. `rejected` are records of
    deleted topics, and those whose sequence numbers do not follow. `unknown_topics` have records in the file
    and no row in the catalog: their records would be rejected, unless they are created with these ids.
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
    unknown_topics: Sequence[UUID] = ()
    old_offsets: Sequence[OffsetRange] = ()
    new_offsets: Sequence[OffsetRange] = ()
    detail: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the file for JSON. Offsets are [topic id, partition, first offset, end offset]."""
        offsets = {
            "old_offsets": [tuple(each) for each in self.old_offsets],
            "new_offsets": [tuple(each) for each in self.new_offsets],
        }
        return {**asdict(self), **offsets, "unknown_topics": [str(each) for each in self.unknown_topics]}


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
    settled_sessions: int = 0

    def add(self, file: ReadoptedFile) -> None:
        """Count a file, and keep it if there is space."""
        self.counts[file.outcome.value] = self.counts.get(file.outcome.value, 0) + 1
        self.acknowledged += bool(file.acknowledged)
        self.records += file.records
        self.duplicates += file.duplicates
        self.rejected += file.rejected
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
            "settled_sessions": self.settled_sessions,
            "files": [file.as_dict() for file in self.files],
        }
