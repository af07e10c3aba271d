"""What the topics must hold in the end, worked out from the input alone with plain dictionaries.

Nothing here is shared with the code that it judges: the placement by murmur2 is written out again, from the
description of Kafka's default partitioner.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from siltstone.demo.input_data import Row

_MASK = 0xFFFFFFFF
_MULTIPLIER = 0x5BD1E995
_SEED = 0x9747B28C


@dataclass(frozen=True, slots=True)
class Expected:
    """A record as it must be read back."""

    key: str
    value: str
    timestamp: int


def murmur2(data: bytes) -> int:
    """Austin Appleby's MurmurHash2, 32 bits, with the seed that Kafka's producers use."""
    state = _SEED ^ len(data)
    whole = len(data) & ~3
    for at in range(0, whole, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        state = state * _MULTIPLIER & _MASK ^ word
    if whole < len(data):
        state = (state ^ int.from_bytes(data[whole:], "little")) * _MULTIPLIER & _MASK
    state = (state ^ state >> 13) * _MULTIPLIER & _MASK
    return state ^ state >> 15


def partition_of(key: str, partition_count: int) -> int:
    """Where Kafka's default partitioner puts a key."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partition_count


@dataclass(slots=True)
class ExpectedTopic:
    """All that a topic must hold: by partition, the surviving records by offset.

    `placements` has (partition, offset) for every row of the input, or None where a compacted topic refuses
    the row because it has no key.
    """

    partitions: list[dict[int, Expected]]
    placements: list[tuple[int, int] | None] = field(default_factory=list)

    @property
    def record_count(self) -> int:
        """How many records must be read back."""
        return sum(len(records) for records in self.partitions)

    @property
    def refused(self) -> int:
        """How many rows must be refused."""
        return self.placements.count(None)


def expect(rows: Iterable[Row], partition_count: int, *, compacted: bool) -> ExpectedTopic:
    """Append every row to its partition; keep the last of each key when `compacted`, else all."""
    topic = ExpectedTopic([{} for _ in range(partition_count)])
    end_offsets = [0] * partition_count
    places: dict[str, int] = {}
    newest: dict[str, int] = {}
    for row in rows:
        if row.key is None:
            topic.placements.append(None)
            continue
        partition = places.get(row.key)
        if partition is None:
            partition = places[row.key] = partition_of(row.key, partition_count)
        offset = end_offsets[partition]
        end_offsets[partition] += 1
        topic.placements.append((partition, offset))
        if compacted and row.key in newest:
            del topic.partitions[partition][newest[row.key]]
        newest[row.key] = offset
        topic.partitions[partition][offset] = Expected(row.key, row.value, row.timestamp)
    return topic
