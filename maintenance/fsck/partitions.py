"""Check the invariants of `catalog.invariants`, partition by partition, in bounded memory."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from catalog.invariants import bounds_ordered, extents_cover_log, record_counts_agree, sizes_add_up
from catalog.model import PartitionId
from maintenance.fsck.report import RESTORE_CATALOG, Difference, DifferenceKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catalog.invariants import Violation
    from catalog.jobs.planning_queries import PartitionSize
    from catalog.model import Extent, Topic
    from catalog.open import Catalog
    from maintenance.fsck.report import Findings

EXTENTS_AT_ONCE: Final = 1000
LOOKS: Final = 5
_REMEDY_OF_SUMS: Final = "siltstone fsck --repair corrects them"
_EXPECTED: Final = {
    "bounds_ordered": (
        DifferenceKind.BOUNDS,
        "0 <= log start <= last stable <= high watermark <= log end offset >= first dirty offset",
    ),
    "extents_cover_log": (
        DifferenceKind.COVERAGE,
        "extents that cover the log from its start to its end, without gap or overlap",
    ),
    "record_counts_agree": (DifferenceKind.RECORD_COUNT, "at most as many records as offsets"),
    "sizes_add_up": (DifferenceKind.SUMS, "totals of the partition equal to the sums of its extents"),
}


@dataclass(slots=True)
class Look:
    """One look at a partition: its extents, compared with bounds that were read before them."""

    size: PartitionSize
    violations: list[Violation] = field(default_factory=list)
    extents: int = 0

    def walk(self, pages: Iterator[list[Extent]]) -> Iterator[Extent]:
        """Check each page and its border to the page before, and pass the extents on.

        `extents_cover_log` checks each page together with the last extent of the page before it, as if the
        log ended with the page; the last page is checked with the log's true end.
        """
        state = self.size.state
        before: list[Extent] = []
        start = state.log_start_offset
        page = next(pages, [])
        while True:
            following = next(pages, [])
            end = max(start, page[-1].last_offset + 1) if following else state.log_end_offset
            part = replace(state, log_start_offset=start, log_end_offset=end)
            self.violations += extents_cover_log(part, [*before, *page])
            for extent in page:
                self.extents += 1
                self.violations += record_counts_agree(extent)
                yield extent
            if not following:
                return
            before, start = page[-1:], max(start, page[-1].base_offset)
            page = following


def check_partitions(catalog: Catalog, findings: Findings, *, repair: bool = False) -> None:
    """Check every partition of every topic, with two pages of extents in memory at a time.

    With `repair`, set totals that are wrong to the sums of the extents.
    """
    for topic in catalog.topics.list():
        findings.count("topics")
        for partition in range(topic.partition_count):
            violations = _check_partition(catalog, findings, PartitionId(topic.topic_id, partition))
            certain = repair and any(each.invariant == "sizes_add_up" for each in violations)
            if certain:
                catalog.repair.recount_partition(PartitionId(topic.topic_id, partition))
            for violation in violations:
                findings.add(_difference(topic, partition, violation, repair=repair))


def check_transactions(catalog: Catalog, findings: Findings) -> None:
    """Compare last stable offsets and aborted transactions with the other rows of transactions."""
    names = {topic.topic_id: topic.name for topic in catalog.topics.list()}
    for each in catalog.transaction_lookups.contradictions():
        findings.add(
            Difference(
                kind=DifferenceKind.TRANSACTIONS,
                topic=names.get(each.partition.topic_id, str(each.partition.topic_id)),
                partition=each.partition.partition,
                expected=each.expected,
                found=each.found,
                remedy=RESTORE_CATALOG,
            )
        )


def _check_partition(catalog: Catalog, findings: Findings, key: PartitionId) -> list[Violation]:
    """Look until bounds, totals and pages of extents belong to one moment.

    That is the case if bounds and totals are the same before and after the look. A partition that keeps
    changing is counted as `partitions_too_busy`, and only its bounds are checked.
    """
    size = _size(catalog, key)
    look: Look | None = None
    for _ in range(LOOKS):
        if size is None:
            return []  # deleted in the meantime
        look = Look(size)
        look.violations += bounds_ordered(size.state)
        sums = sizes_add_up(size, look.walk(_pages(catalog, key)))
        look.violations += sums
        again = _size(catalog, key)
        if again == size:
            break
        look.violations = bounds_ordered(size.state)
        size = again
    else:
        findings.count("partitions_too_busy")
    if look is None:
        return []
    findings.count("partitions")
    findings.count("extents", look.extents)
    return look.violations


def _difference(topic: Topic, partition: int, violation: Violation, *, repair: bool) -> Difference:
    kind, expected = _EXPECTED[violation.invariant]
    sums = kind is DifferenceKind.SUMS
    return Difference(
        kind=kind,
        topic=topic.name,
        partition=partition,
        expected=expected,
        found=violation.found,
        remedy=_REMEDY_OF_SUMS if sums else RESTORE_CATALOG,
        repaired=repair and sums,
    )


def _size(catalog: Catalog, key: PartitionId) -> PartitionSize | None:
    before = PartitionId(key.topic_id, key.partition - 1)
    found = catalog.planning.partition_sizes([key.topic_id], after=before, limit=1)
    return found[0] if found and found[0].partition_id == key else None


def _pages(catalog: Catalog, partition: PartitionId) -> Iterator[list[Extent]]:
    offset = 0
    while page := catalog.planning.extents_of(partition, offset, EXTENTS_AT_ONCE):
        yield page
        offset = page[-1].last_offset + 1
