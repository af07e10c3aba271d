"""Counters of maintenance: what one round, or all rounds of a process, removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, fields

Progress = Callable[[], None]
"""Called by a task whenever it has made progress; it may raise to end the round."""


@dataclass(slots=True, kw_only=True)
class GarbageReport:
    """Counters of a round; objects that could not be deleted are retried in a later round."""

    expired_extents: int = 0
    expired_bytes: int = 0
    fenced_sessions: int = 0
    released_jobs: int = 0
    removed_rows: int = 0
    dead_files: int = 0
    dead_bytes: int = 0
    orphans: int = 0
    orphan_bytes: int = 0
    aborted_uploads: int = 0
    removed_owners: int = 0
    expired_producers: int = 0
    aborted_transactions: int = 0
    not_deleted: int = 0

    def as_dict(self) -> dict[str, int]:
        """Return the counters for reports."""
        return asdict(self)

    def add(self, other: GarbageReport) -> None:
        """Add the counters of another round."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))

    def removed(self) -> dict[str, int]:
        """Return the counters that are not zero."""
        return {name: count for name, count in self.as_dict().items() if count}
