"""What fsck says: differences, which should not be, and what merely waits."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from catalog.lifecycle.repair import RemovedWriters


class DifferenceKind(StrEnum):
    """What is wrong, by the place where it shows."""

    STORE_IDENTITY = "store_identity"  # store: its marker is gone
    BOUNDS = "bounds"  # catalog: a partition's offsets are not in order
    COVERAGE = "coverage"  # catalog: live extents leave a gap, overlap, or miss an end of the log
    FILE_COUNTS = "file_counts"  # catalog: what is kept per file is not what its extents say
    SUMS = "sums"  # catalog: what is kept per partition is not the sum of its extents
    RECORD_COUNT = "record_count"  # an extent's count does not fit its offsets, or not its bytes
    MISSING_OBJECT = "missing_object"  # store: a live file has no object
    OBJECT_SIZE = "object_size"  # store: an object is shorter or longer than its file
    ORPHAN = "orphan"  # store: an object that nobody knows, and that nobody can commit any more
    QUARANTINED = "quarantined"  # catalog: a file spoils every job and is left out of compaction
    CORRUPT = "corrupt"  # bytes: a checksum or a structure is wrong
    CONTENT = "content"  # bytes: they are sound, but not what the catalog says they are


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that is not as it should be: where, what was expected, what is there, what to do."""

    kind: DifferenceKind
    expected: str
    found: str
    remedy: str
    object_name: str | None = None
    topic: str | None = None
    partition: int | None = None
    repaired: bool = False

    def as_dict(self) -> dict[str, object]:
        """For reports; `object` and `topic`, `partition` only where they apply."""
        place: dict[str, object] = {}
        if self.object_name is not None:
            place["object"] = self.object_name
        if self.topic is not None:
            place |= {"topic": self.topic, "partition": self.partition}
        return {
            "kind": self.kind.value,
            **place,
            "expected": self.expected,
            "found": self.found,
            "remedy": self.remedy,
            "repaired": self.repaired,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class FsckReport:
    """`differences` is empty when all is well; `pending` counts what is in order and will go or come.

    Of more differences than the run was told to keep, the first are kept; `differences_total` counts all,
    `repaired_total` those that were set right.
    `checked` tells how much was looked at, by name of the thing. `pending` has, in numbers of objects and in
    bytes: `dead_files` that wait for their grace or for garbage collection, `unpublished` objects that a live
    session or a running job may still commit, and `foreign` objects whose name Siltstone did not build.
    `forgotten` is None unless those were forgotten who wrote when a backup was taken.
    """

    differences: tuple[Difference, ...]
    differences_total: int
    checked: Mapping[str, int]
    pending: Mapping[str, int]
    deep: bool
    repaired_total: int = 0
    forgotten: RemovedWriters | None = None

    def as_dict(self) -> dict[str, object]:
        """For `--json`."""
        return {
            "differences": [each.as_dict() for each in self.differences],
            "differences_total": self.differences_total,
            "repaired_total": self.repaired_total,
            "checked": dict(self.checked),
            "pending": dict(self.pending),
            "deep": self.deep,
            "forgotten": None if self.forgotten is None else asdict(self.forgotten),
        }


@dataclass(slots=True)
class Findings:
    """Gathers a report in bounded memory."""

    max_differences: int
    differences: list[Difference] = field(default_factory=list)
    total: int = 0
    repaired: int = 0
    kinds: set[DifferenceKind] = field(default_factory=set)
    checked: dict[str, int] = field(default_factory=dict)
    pending: dict[str, int] = field(default_factory=dict)

    def add(self, difference: Difference) -> None:
        """Note a difference; beyond the bound it is counted only."""
        self.total += 1
        self.repaired += difference.repaired
        self.kinds.add(difference.kind)
        if len(self.differences) < self.max_differences:
            self.differences.append(difference)

    def count(self, name: str, number: int = 1) -> None:
        """Note that `number` more of a thing were looked at."""
        self.checked[name] = self.checked.get(name, 0) + number

    def wait_for(self, name: str, size: int) -> None:
        """Note an object of `size` bytes that is in order, and will go or come in time."""
        for key, number in ((f"{name}_objects", 1), (f"{name}_bytes", size)):
            self.pending[key] = self.pending.get(key, 0) + number

    def report(self, *, deep: bool) -> FsckReport:
        """What was gathered."""
        return FsckReport(
            differences=tuple(self.differences),
            differences_total=self.total,
            checked=dict(sorted(self.checked.items())),
            pending=dict(sorted(self.pending.items())),
            deep=deep,
            repaired_total=self.repaired,
        )
