"""The catalog alone: bounds in order, and live extents that cover each log, no more and no less."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from catalog.model import PartitionId
from planner.fsck.report import Difference, DifferenceKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from catalog.model import Extent, PartitionState
    from catalog.open import Catalog
    from planner.fsck.report import Findings

EXTENTS_AT_ONCE: Final = 1000
LOOKS: Final = 3


class Problem(NamedTuple):
    """What is wrong with a partition, before its name is put to it."""

    kind: DifferenceKind
    expected: str
    found: str


@dataclass(slots=True)
class PartitionLook:
    """One look at a partition: its bounds first, then its extents in offset order, one at a time."""

    state: PartitionState
    problems: list[Problem] = field(default_factory=list)
    extents: int = 0
    next_offset: int | None = None

    def check_bounds(self) -> None:
        """Kafka's order of a log's offsets."""
        state = self.state
        names = ("log start offset", "last stable offset", "high watermark", "log end offset")
        bounds = (
            state.log_start_offset,
            state.last_stable_offset,
            state.high_watermark,
            state.log_end_offset,
        )
        if bounds[0] < 0 or list(bounds) != sorted(bounds):
            found = ", ".join(f"{name} {value}" for name, value in zip(names, bounds, strict=True))
            self._problem(DifferenceKind.BOUNDS, f"0 <= {' <= '.join(names)}", found)
        if not 0 <= state.first_dirty_offset <= state.log_end_offset:
            self._problem(
                DifferenceKind.BOUNDS,
                f"a first dirty offset up to the log end offset {state.log_end_offset}",
                f"{state.first_dirty_offset}",
            )

    def add(self, extent: Extent) -> None:
        """Take the next extent; what was appended after the look at the bounds is none of it."""
        if (
            extent.last_offset < self.state.log_start_offset
            or extent.base_offset >= self.state.log_end_offset
        ):
            return
        self.extents += 1
        span = extent.last_offset - extent.base_offset + 1
        at = f"the extent at offset {extent.base_offset}"
        if not 0 <= extent.record_count <= span or (extent.record_count and not extent.length):
            self._problem(
                DifferenceKind.RECORD_COUNT,
                f"0 to {span} records in {at}, and bytes where there are any",
                f"{extent.record_count} records in {extent.length} bytes",
            )
        if self.next_offset is None:
            if extent.base_offset > self.state.log_start_offset:
                self._gap(self.state.log_start_offset, extent.base_offset)
        elif extent.base_offset > self.next_offset:
            self._gap(self.next_offset, extent.base_offset)
        elif extent.base_offset < self.next_offset:
            self._problem(
                DifferenceKind.COVERAGE,
                f"an extent that begins at offset {self.next_offset}",
                f"{at} overlaps the one before it",
            )
        self.next_offset = max(extent.last_offset + 1, self.next_offset or 0)

    def finish(self) -> None:
        """The last extent ends where the log does."""
        end = self.state.log_end_offset
        reached = self.state.log_start_offset if self.next_offset is None else self.next_offset
        if reached < end:
            self._gap(reached, end)
        elif reached > end:
            self._problem(
                DifferenceKind.COVERAGE,
                f"extents up to the log end offset {end}",
                f"the last one ends at offset {reached - 1}",
            )

    def _gap(self, start: int, end: int) -> None:
        self._problem(
            DifferenceKind.COVERAGE, "extents without a gap", f"none from offset {start} to {end - 1}"
        )

    def _problem(self, kind: DifferenceKind, expected: str, found: str) -> None:
        self.problems.append(Problem(kind, expected, found))


def check_partitions(catalog: Catalog, findings: Findings) -> None:
    """Check every partition of every topic, holding one page of extents at a time."""
    for topic in catalog.topics.list():
        findings.count("topics")
        for state in catalog.topics.partitions(topic.topic_id):
            look = _look(catalog, PartitionId(topic.topic_id, state.partition))
            if look is None:
                continue
            findings.count("partitions")
            findings.count("extents", look.extents)
            for problem in look.problems:
                findings.add(
                    Difference(
                        kind=problem.kind,
                        topic=topic.name,
                        partition=state.partition,
                        expected=problem.expected,
                        found=problem.found,
                        remedy="stop agents and compaction, and restore the catalog from a backup",
                    )
                )


def _look(catalog: Catalog, partition: PartitionId) -> PartitionLook | None:
    """Look at a partition, and again while something is wrong; None when it was deleted meanwhile.

    Bounds and pages of extents are of different moments: a swap between two pages looks like an overlap.
    """
    look: PartitionLook | None = None
    for _ in range(LOOKS):
        states = catalog.topics.states([partition])
        if not states:
            return None
        look = PartitionLook(states[0])
        look.check_bounds()
        for extent in live_extents(catalog, partition):
            look.add(extent)
        look.finish()
        if not look.problems:
            return look
    return look


def live_extents(catalog: Catalog, partition: PartitionId) -> Iterator[Extent]:
    """The extents of a partition in offset order, also those below its log start, page by page."""
    offset = 0
    while page := catalog.planning.extents_of(partition, offset, EXTENTS_AT_ONCE):
        yield from page
        offset = page[-1].last_offset + 1
