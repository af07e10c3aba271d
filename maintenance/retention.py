"""Lets go of what topics need not keep any longer: by time, by size, and below their log starts.

A round asks for the partitions that have something to lose, page by page, and removes it in transactions of
bounded size. It may be broken off and repeated at any point, also by several at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from catalog.lifecycle.retention import RetentionRule

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import PartitionId
    from catalog.open import Catalog

PARTITIONS_AT_ONCE: Final = 100


@dataclass(slots=True, kw_only=True)
class RetentionReport:
    """What a round of retention removed; bytes are those of the extents."""

    partitions: int = 0
    extents: int = 0
    size: int = 0


def expire(catalog: Catalog) -> RetentionReport:
    """One round over all topics; by the catalog's time."""
    report = RetentionReport()
    rules = {topic.topic_id: RetentionRule.of(topic.config) for topic in catalog.topics.list()}
    page = catalog.retention.due(rules)
    while page.last is not None:
        for begin in range(0, len(page.partitions), PARTITIONS_AT_ONCE):
            _expire_some(catalog, page.partitions[begin : begin + PARTITIONS_AT_ONCE], report)
        page = catalog.retention.due(rules, after=page.last)
    return report


def _expire_some(catalog: Catalog, due: Sequence[PartitionId], report: RetentionReport) -> None:
    report.partitions += len(due)
    while due:
        done = catalog.retention.expire(due)
        report.extents += done.extents
        report.size += done.size
        due = done.unfinished
