"""What producers were told, held against what readers find: the invariants as a slow and obvious model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Place = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Sent:
    """One record that was given to a producer."""

    topic: str
    partition: int
    key: bytes
    value: bytes


@dataclass(frozen=True, slots=True)
class Found:
    """One record that a reader found."""

    offset: int
    key: bytes
    value: bytes


@dataclass
class Model:
    """`values` are unique, numbered as they are sent; `acknowledged` has the offsets that came back."""

    compacted: frozenset[str]
    sent: dict[bytes, Sent] = field(default_factory=dict)
    acknowledged: dict[Place, dict[int, Sent]] = field(default_factory=dict)

    def send(self, topic: str, partition: int, key: bytes) -> Sent:
        """The next record to send."""
        sent = Sent(topic, partition, key, b"%08d" % len(self.sent) + b"." * 40)
        self.sent[sent.value] = sent
        return sent

    def acknowledge(self, sent: Sent, offset: int) -> None:
        """The producer was told that this record stands at this offset."""
        place = self.acknowledged.setdefault((sent.topic, sent.partition), {})
        assert offset not in place, f"two records were acknowledged at offset {offset} of {sent}"
        place[offset] = sent

    def problems(self, logs: Mapping[Place, Sequence[Found]]) -> list[str]:
        """What is not as it must be, in sentences."""
        found: list[str] = []
        for place in sorted(self.acknowledged.keys() | logs.keys()):
            found += self._problems_of(place, logs.get(place, ()))
        return found

    def _problems_of(self, place: Place, log: Sequence[Found]) -> list[str]:
        found = [
            f"{place}: {record} was never sent there"
            for record in log
            if (sent := self.sent.get(record.value)) is None
            or (sent.topic, sent.partition, sent.key) != (*place, record.key)
        ]
        offsets = [record.offset for record in log]
        if offsets != sorted(set(offsets)):
            found.append(f"{place}: offsets do not rise: {offsets}")
        values = [record.value for record in log]
        if values != sorted(set(values)):
            found.append(f"{place}: records are there twice or out of the producer's order")
        return found + self._lost(place, log)

    def _lost(self, place: Place, log: Sequence[Found]) -> list[str]:
        by_offset = {record.offset: record for record in log}
        newest = {record.key: record.offset for record in log}
        lost = []
        for offset, sent in self.acknowledged.get(place, {}).items():
            record = by_offset.get(offset)
            if record is None:
                superseded = place[0] in self.compacted and newest.get(sent.key, -1) > offset
                if not superseded:
                    lost.append(f"{place}: {sent} was acknowledged at {offset} and is not there")
            elif record.value != sent.value:
                lost.append(f"{place}: {sent} was acknowledged at {offset}, where {record} stands")
        return lost
