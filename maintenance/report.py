"""Counters of maintenance: what one round, or all rounds of a process, removed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field

Progress = Callable[[], None]
"""Called by a task whenever it has made progress; it may raise to end the round."""


def no_progress() -> None:
    """Take no notice of progress."""


@dataclass(slots=True, kw_only=True)
class MaintenanceReport:
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
    gauges: dict[str, float] = field(default_factory=dict)
    """The measurements of the round, by the names of metrics."""

    def as_dict(self) -> dict[str, int]:
        """Return the counters for reports."""
        return {name: value for name, value in asdict(self).items() if name != "gauges"}

    def add(self, other: MaintenanceReport) -> None:
        """Add the counters of a later round; its gauges replace those of this one."""
        self.gauges.update(other.gauges)
        for name, count in other.as_dict().items():
            setattr(self, name, getattr(self, name) + count)

    def removed(self) -> dict[str, int]:
        """Return the counters that are not zero."""
        return {name: count for name, count in self.as_dict().items() if count}
