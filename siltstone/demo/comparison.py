"""Holds what the agent said and what it gives back against the oracle, record by record."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from siltstone.demo.oracle import Expected, ExpectedTopic

_SHOWN = 10
REFUSED = "INVALID_RECORD"


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """Where a record stands, or why it does not; Kafka's name of the error comes first."""

    partition: int | None
    offset: int | None
    error: str | None

    @property
    def is_refusal(self) -> bool:
        """Whether the record itself was refused."""
        return self.error is not None and self.error.startswith(REFUSED)


@dataclass(frozen=True, slots=True)
class FetchedRecord:
    """A record as it was read."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class Differences:
    """How many there are, and the first few in words."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Count one more."""
        self.count += 1
        if len(self.examples) < _SHOWN:
            self.examples.append(text)


def check_outcomes(
    topic: str,
    rows: Sequence[int],
    outcomes: Sequence[RecordOutcome],
    expected: ExpectedTopic,
    differences: Differences,
) -> None:
    """Compare what became of rows with their placements: where one has none, its record must be refused."""
    for row, outcome in zip(rows, outcomes, strict=True):
        expected_placement = expected.placements[row]
        actual = None if outcome.error is not None else (outcome.partition, outcome.offset)
        if expected_placement != actual or (actual is None and not outcome.is_refusal):
            differences.add(
                f"{topic}, row {row}: expected {_describe(expected_placement)}, the agent answered "
                f"{_describe(actual)}{f' ({outcome.error})' if outcome.error else ''}"
            )


def check_partition(
    topic: str,
    partition: int,
    records: Iterable[FetchedRecord],
    expected: dict[int, Expected],
    differences: Differences,
) -> int:
    """Compare all that was read from a partition with all that must be there; returns how much was read."""
    count = 0
    last_offset = -1
    missing = dict(expected)
    for record in records:
        count += 1
        where = f"{topic}-{partition} at offset {record.offset}"
        if record.offset <= last_offset:
            differences.add(f"{where}: came after offset {last_offset}")
        last_offset = max(last_offset, record.offset)
        wanted = missing.pop(record.offset, None)
        if wanted is None:
            differences.add(f"{where}: a record that must not be there, key {record.key!r}")
        elif (record.key, record.value, record.timestamp) != (
            wanted.key.encode(),
            wanted.value.encode(),
            wanted.timestamp,
        ):
            differences.add(
                f"{where}: key, value or timestamp differs, key {record.key!r}, not {wanted.key!r}"
            )
    for offset, wanted in missing.items():
        differences.add(f"{topic}-{partition} at offset {offset}: missing, key {wanted.key!r}")
    return count


def _describe(expected_placement: tuple[int | None, int | None] | None) -> str:
    return (
        "a refusal"
        if expected_placement is None
        else f"partition {expected_placement[0]}, offset {expected_placement[1]}"
    )
