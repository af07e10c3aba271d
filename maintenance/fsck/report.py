"""Report of fsck: differences, which must not exist, and pending objects, which are in order."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

RESTORE_CATALOG: Final = "stop agents and compaction, and restore the catalog from a backup"
"""Remedy of a difference that nothing corrects."""


class DifferenceKind(StrEnum):
    """Kind of a difference, by where it shows."""

    STORE_IDENTITY = "store_identity"  # store: its marker is gone
    TRANSACTIONS = "transactions"  # catalog: last stable offsets or aborted ranges contradict other rows
    PRODUCERS = "producers"  # bytes: a batch is not what the catalog says of its producer or transaction
    BOUNDS = "bounds"  # catalog: a partition's offsets are not in order
    COVERAGE = "coverage"  # catalog: live extents leave a gap, overlap, or miss an end of the log
    FILE_COUNTS = "file_counts"  # catalog: the counts of a file differ from its extents
    SUMS = "sums"  # catalog: the totals of a partition differ from the sums of its extents
    RECORD_COUNT = "record_count"  # the count of an extent disagrees with its offsets or its bytes
    MISSING_OBJECT = "missing_object"  # store: a live file has no object
    OBJECT_SIZE = "object_size"  # store: an object is shorter or longer than its file
    ORPHAN = "orphan"  # store: an object without a file whose owner can no longer commit it
    QUARANTINED = "quarantined"  # catalog: a file makes every job fail and is excluded from compaction
    CORRUPT = "corrupt"  # bytes: a checksum or a structure is wrong
    UNSUPPORTED = "unsupported"  # bytes: not read, because the file needs a newer Siltstone
    UNIQUE_KEYS = "unique_keys"  # bytes: a key occurs twice in an extent that should have each key once
    CONTENT = "content"  # bytes: sound, but not what the catalog says


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One difference: where, what was expected, what was found, and the remedy."""

    kind: DifferenceKind
    expected: str
    found: str
    remedy: str
    object_name: str | None = None
    topic: str | None = None
    partition: int | None = None
    repaired: bool = False

    def as_dict(self) -> dict[str, object]:
        """Return it for reports; `object`, `topic` and `partition` only if they apply."""
        location: dict[str, object] = {}
        if self.object_name is not None:
            location["object"] = self.object_name
        if self.topic is not None:
            location |= {"topic": self.topic, "partition": self.partition}
        return {
            "kind": self.kind.value,
            **location,
            "expected": self.expected,
            "found": self.found,
            "remedy": self.remedy,
            "repaired": self.repaired,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckReport:
    """Result of a run; `differences` is empty if all is well.

    Only the first differences are kept, up to the bound; `differences_total` counts all, `repaired_total` the
    repaired ones. `checked` has the number of things examined, by name. `pending` counts objects and bytes
    that are in order and will disappear or be committed: `dead_files` that wait for their grace period or
    garbage collection, `unpublished` objects that a live session or a running job may still commit,
    `unsettled` objects that a failover or a restore may have lost, and `foreign` objects whose name Siltstone
    did not build. `epoch` is that which a declared restore began, else None.
    """

    differences: tuple[Difference, ...]
    differences_total: int
    checked: Mapping[str, int]
    pending: Mapping[str, int]
    deep: bool
    repaired_total: int = 0
    epoch: int | None = None

    def as_dict(self) -> dict[str, object]:
        """Return it for `--json`."""
        return {
            "differences": [each.as_dict() for each in self.differences],
            "differences_total": self.differences_total,
            "repaired_total": self.repaired_total,
            "checked": dict(self.checked),
            "pending": dict(self.pending),
            "deep": self.deep,
            "epoch": self.epoch,
        }


@dataclass(slots=True)
class Findings:
    """Collects a report in bounded memory."""

    max_differences: int
    differences: list[Difference] = field(default_factory=list)
    total: int = 0
    repaired: int = 0
    kinds: set[DifferenceKind] = field(default_factory=set)
    checked: dict[str, int] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)

    @property
    def has_room(self) -> bool:
        """Return True unless further differences are only counted."""
        return len(self.differences) < self.max_differences

    def add(self, difference: Difference) -> None:
        """Add a difference; beyond the bound only count it."""
        self.total += 1
        self.repaired += difference.repaired
        self.kinds.add(difference.kind)
        if self.has_room:
            self.differences.append(difference)

    def count(self, name: str, number: int = 1) -> None:
        """Count `number` examined things."""
        self.checked[name] = self.checked.get(name, 0) + number

    def wait_for(self, name: str, size: int) -> None:
        """Count an object of `size` bytes that is in order and pending."""
        for key, number in ((f"{name}_objects", 1), (f"{name}_bytes", size)):
            self.pending[key] = self.pending.get(key, 0) + number

    def report(self, *, deep: bool) -> FsckReport:
        """Return the report."""
        return FsckReport(
            differences=tuple(self.differences),
            differences_total=self.total,
            checked=dict(sorted(self.checked.items())),
            pending=dict(sorted(self.pending.items())),
            deep=deep,
            repaired_total=self.repaired,
        )
