"""Comparison of the agent's responses and of the records read back with the oracle."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from siltstone.demo.oracle import Expected, ExpectedTopic

_SHOWN = 10
REJECTED = "INVALID_RECORD"


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """Position of a produced record, or the error that it failed with; Kafka's error name comes first."""

    partition: int | None
    offset: int | None
    error: str | None

    @property
    def is_refusal(self) -> bool:
        """Return True if the broker rejected the record itself."""
        return self.error is not None and self.error.startswith(REJECTED)


@dataclass(frozen=True, slots=True)
class FetchedRecord:
    """Record as it was read."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass(slots=True)
class Differences:
    """Number of differences, with a text for the first few."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, text: str) -> None:
        """Add one difference."""
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
    """Compare the outcome of each row with its expected position; a row without one must be rejected."""
    for row, outcome in zip(rows, outcomes, strict=True):
        position = expected.positions[row]
        actual = None if outcome.error is not None else (outcome.partition, outcome.offset)
        if position != actual or (actual is None and not outcome.is_refusal):
            differences.add(
                f"{topic}, row {row}: expected {_describe(position)}, the agent returned "
                f"{_describe(actual)}{f' ({outcome.error})' if outcome.error else ''}"
            )


def check_partition(
    topic: str,
    partition: int,
    records: Iterable[FetchedRecord],
    expected: dict[int, Expected],
    differences: Differences,
) -> int:
    """Compare the records read from a partition with the expected ones; return the number of records read."""
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
            differences.add(f"{where}: unexpected record, key {record.key!r}")
        elif (record.key, record.value, record.timestamp) != (
            wanted.key.encode(),
            wanted.value.encode(),
            wanted.timestamp,
        ):
            differences.add(
                f"{where}: key, value or timestamp differs; key {record.key!r}, expected {wanted.key!r}"
            )
    for offset, wanted in missing.items():
        differences.add(f"{topic}-{partition} at offset {offset}: missing, key {wanted.key!r}")
    return count


def _describe(position: tuple[int | None, int | None] | None) -> str:
    return "a rejection" if position is None else f"partition {position[0]}, offset {position[1]}"
