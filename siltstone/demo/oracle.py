"""Expected content of the topics, computed from the input alone with dictionaries.

It shares no code with what it checks: the partitioner is implemented again, from the description of Kafka's
default partitioner.
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
    """Record that must be read back."""

    key: str
    value: str
    timestamp: int


def murmur2(data: bytes) -> int:
    """Return Austin Appleby's MurmurHash2 with 32 bits and the seed of Kafka's producers."""
    state = _SEED ^ len(data)
    aligned = len(data) & ~3
    for at in range(0, aligned, 4):
        word = int.from_bytes(data[at : at + 4], "little") * _MULTIPLIER & _MASK
        word = (word ^ word >> 24) * _MULTIPLIER & _MASK
        state = state * _MULTIPLIER & _MASK ^ word
    if aligned < len(data):
        state = (state ^ int.from_bytes(data[aligned:], "little")) * _MULTIPLIER & _MASK
    state = (state ^ state >> 13) * _MULTIPLIER & _MASK
    return state ^ state >> 15


def partition_of(key: str, partition_count: int) -> int:
    """Return the partition that Kafka's default partitioner chooses for a key."""
    return (murmur2(key.encode()) & 0x7FFFFFFF) % partition_count


@dataclass(slots=True)
class ExpectedTopic:
    """Expected content of a topic: for each partition, the surviving records by offset.

    `positions` has (partition, offset) for each row of the input, or None if a compacted topic rejects the
    row because it has no key.
    """

    partitions: list[dict[int, Expected]]
    positions: list[tuple[int, int] | None] = field(default_factory=list)

    @property
    def record_count(self) -> int:
        """Number of records that must be read back."""
        return sum(len(records) for records in self.partitions)

    @property
    def rejected(self) -> int:
        """Number of rows that must be rejected."""
        return self.positions.count(None)


def expect(rows: Iterable[Row], partition_count: int, *, compacted: bool) -> ExpectedTopic:
    """Append every row to its partition; if `compacted`, keep only the last row of each key."""
    topic = ExpectedTopic([{} for _ in range(partition_count)])
    end_offsets = [0] * partition_count
    partition_by_key: dict[str, int] = {}
    newest: dict[str, int] = {}
    for row in rows:
        if row.key is None:
            topic.positions.append(None)
            continue
        partition = partition_by_key.get(row.key)
        if partition is None:
            partition = partition_by_key[row.key] = partition_of(row.key, partition_count)
        offset = end_offsets[partition]
        end_offsets[partition] += 1
        topic.positions.append((partition, offset))
        if compacted and row.key in newest:
            del topic.partitions[partition][newest[row.key]]
        newest[row.key] = offset
        topic.partitions[partition][offset] = Expected(row.key, row.value, row.timestamp)
    return topic
