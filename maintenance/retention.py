"""Retention: remove extents that have expired by time, by size, or below the log start.

A round pages through the partitions that have something to expire and removes it in bounded transactions. It
may be interrupted and repeated at any point, also by several processes at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from catalog.lifecycle.retention import RetentionRule
from maintenance.report import no_progress

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import PartitionId
    from catalog.open import Catalog
    from maintenance.report import MaintenanceReport, Progress

PARTITIONS_AT_ONCE: Final = 100


@dataclass(slots=True, kw_only=True)
class RetentionReport:
    """Extents that a round removed, and their bytes."""

    partitions: int = 0
    extents: int = 0
    size: int = 0


def expire(
    catalog: Catalog, progress: Progress = no_progress, report: RetentionReport | None = None
) -> RetentionReport:
    """Run one round over all topics, by the catalog's clock; add what it removes to `report`."""
    report = report or RetentionReport()
    rules = {topic.topic_id: RetentionRule.of(topic.config) for topic in catalog.topics.list()}
    page = catalog.retention.due(rules)
    while page.last is not None:
        for begin in range(0, len(page.partitions), PARTITIONS_AT_ONCE):
            _expire_some(catalog, page.partitions[begin : begin + PARTITIONS_AT_ONCE], report)
            progress()
        page = catalog.retention.due(rules, after=page.last)
    return report


def remove_expired(catalog: Catalog, report: MaintenanceReport, progress: Progress = no_progress) -> None:
    """Remove the extents that have expired by retention."""
    expired = RetentionReport()
    try:
        expire(catalog, progress, expired)
    finally:  # also what a round removed before it was stopped
        report.expired_extents += expired.extents
        report.expired_bytes += expired.size


def _expire_some(catalog: Catalog, due: Sequence[PartitionId], report: RetentionReport) -> None:
    report.partitions += len(due)
    while due:
        done = catalog.retention.expire(due)
        report.extents += done.extents
        report.size += done.size
        due = done.unfinished
