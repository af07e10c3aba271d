"""Model of what readers must find: every acknowledged record, once, at its offset."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Partition = tuple[str, int]


@dataclass(frozen=True, slots=True)
class SentRecord:
    """A record that was passed to a producer."""

    topic: str
    partition: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record that a reader found."""

    offset: int
    key: bytes
    value: bytes


@dataclass
class Model:
    """The records sent so far, by their unique value, and the acknowledged ones, by partition and offset.

    Topics in `compacted` keep only the newest record of each key.
    """

    compacted: frozenset[str]
    sent: dict[bytes, SentRecord] = field(default_factory=dict)
    acknowledged: dict[Partition, dict[int, SentRecord]] = field(default_factory=dict)

    def send(self, topic: str, partition: int, key: bytes) -> SentRecord:
        """Return the next record to send."""
        sent = SentRecord(topic, partition, key, b"%08d" % len(self.sent) + b"." * 40)
        self.sent[sent.value] = sent
        return sent

    def acknowledge(self, sent: SentRecord, offset: int) -> None:
        """Note that the producer got this offset for the record."""
        partition = self.acknowledged.setdefault((sent.topic, sent.partition), {})
        assert offset not in partition, f"two records were acknowledged at offset {offset} of {sent}"
        partition[offset] = sent

    def problems(self, logs: Mapping[Partition, Sequence[ReadRecord]]) -> list[str]:
        """Return a sentence for each violation."""
        problems: list[str] = []
        for partition in sorted(self.acknowledged.keys() | logs.keys()):
            problems += self._problems_of(partition, logs.get(partition, ()))
        return problems

    def _problems_of(self, partition: Partition, log: Sequence[ReadRecord]) -> list[str]:
        found = [
            f"{partition}: {record} was never sent"
            for record in log
            if (sent := self.sent.get(record.value)) is None
            or (sent.topic, sent.partition, sent.key) != (*partition, record.key)
        ]
        offsets = [record.offset for record in log]
        if offsets != sorted(set(offsets)):
            found.append(f"{partition}: offsets do not increase: {offsets}")
        values = [record.value for record in log]
        if values != sorted(set(values)):
            found.append(f"{partition}: records are duplicated or out of order")
        return found + self._lost(partition, log)

    def _lost(self, partition: Partition, log: Sequence[ReadRecord]) -> list[str]:
        by_offset = {record.offset: record for record in log}
        newest = {record.key: record.offset for record in log}
        lost = []
        for offset, sent in self.acknowledged.get(partition, {}).items():
            record = by_offset.get(offset)
            if record is None:
                superseded = partition[0] in self.compacted and newest.get(sent.key, -1) > offset
                if not superseded:
                    lost.append(f"{partition}: {sent} was acknowledged at {offset} and is missing")
            elif record.value != sent.value:
                lost.append(f"{partition}: {sent} was acknowledged at {offset}, where {record} is")
        return lost
