"""What consumers of the classic protocol say inside of JoinGroup and SyncGroup, in bytes of their own.

A coordinator of classic groups reads topics alone; one whose group has members of both protocols also reads
what members own, and writes their assignments. Version 0 of a subscription has topics and the user's data, 1
added the owned partitions, 2 a generation, 3 the rack; an assignment is the same in all of them
(clients/.../message/ConsumerProtocolSubscription.json and ConsumerProtocolAssignment.json). A client may say
a version and end before its fields, as @platformatic/kafka does with 1: then they have their defaults.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.groups.messages import Protocol

CONSUMER_PROTOCOL_TYPE = "consumer"
T = TypeVar("T")
NamedPartitions: TypeAlias = frozenset[tuple[str, int]]
_NEWEST_VERSION = 3
_OWNED_VERSION, _GENERATION_VERSION, _RACK_VERSION = 1, 2, 3
_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")
_NULL = _INT.pack(-1)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a member wants and has; `version` is the one in which it wants its assignment, too."""

    version: int
    topics: frozenset[str]
    owned: NamedPartitions = frozenset()
    rack_id: str | None = None


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics that any of these subscriptions names; None when one of them cannot be read.

    Whatever stands behind the topics does not matter here, and is not looked at.
    """
    try:
        return frozenset(topic for each in metadata for topic in _topics(_Reader(each))[1])
    except (struct.error, ValueError):
        return None


def read_subscription(protocols: Iterable[Protocol]) -> Subscription | None:
    """What a member says, with each of its protocols alike; None when it cannot be read."""
    first = next(iter(protocols), None)
    if first is None:
        return None
    reader = _Reader(first.metadata)
    try:
        version, topics = _topics(reader)
        reader.take_bytes()
        owned: NamedPartitions = frozenset()
        if version >= _OWNED_VERSION and not reader.is_at_end:
            owned = reader.take_partitions()
        if version >= _GENERATION_VERSION and not reader.is_at_end:
            reader.take(_INT)
        has_rack = version >= _RACK_VERSION and not reader.is_at_end
        rack_id = reader.take_text() if has_rack else None
    except (struct.error, ValueError):
        return None
    return Subscription(version, frozenset(topics), owned, rack_id or None)


def read_assignment(assignment: bytes) -> NamedPartitions | None:
    """What a leader has assigned to a member, nothing if there are no bytes; None when it cannot be read."""
    if not assignment:
        return frozenset()
    reader = _Reader(assignment)
    try:
        reader.take_version()
        return reader.take_partitions()
    except (struct.error, ValueError):
        return None


def write_assignment(version: int, partitions: Iterable[tuple[str, int]]) -> bytes:
    """An assignment for a member whose subscription has that version."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        by_topic[topic].append(partition)
    out = bytearray(_SHORT.pack(min(version, _NEWEST_VERSION)) + _INT.pack(len(by_topic)))
    for topic, numbers in by_topic.items():
        name = topic.encode()
        out += _SHORT.pack(len(name)) + name
        out += struct.pack(f">{len(numbers) + 1}i", len(numbers), *numbers)
    return bytes(out + _NULL)  # no data of a user's


def _topics(reader: _Reader) -> tuple[int, list[str]]:
    return reader.take_version(), reader.take_list(reader.take_name)


class _Reader:
    """Takes one value after the other; raises struct.error or ValueError where there is none."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._position = 0

    @property
    def is_at_end(self) -> bool:
        return self._position >= len(self._data)

    def take(self, kind: struct.Struct) -> int:
        (value,) = kind.unpack_from(self._data, self._position)
        self._position += kind.size
        return int(value)

    def take_version(self) -> int:
        version = self.take(_SHORT)
        if version < 0:
            raise ValueError("there is no such version")
        return version

    def take_list(self, take_one: Callable[[], T]) -> list[T]:
        count = self.take(_INT)
        if not 0 <= count <= len(self._data) - self._position:
            raise ValueError("a list ends behind its message")
        return [take_one() for _ in range(count)]

    def take_text(self) -> str | None:
        length = self.take(_SHORT)
        return None if length < 0 else self._take_exactly(length).decode()

    def take_name(self) -> str:
        name = self.take_text()
        if name is None:
            raise ValueError("a topic has no name")
        return name

    def take_bytes(self) -> None:
        length = self.take(_INT)
        if length > 0:
            self._take_exactly(length)

    def take_partitions(self) -> NamedPartitions:
        return frozenset(part for topic in self.take_list(self._take_topic) for part in topic)

    def _take_topic(self) -> list[tuple[str, int]]:
        name = self.take_name()
        return [(name, number) for number in self.take_list(lambda: self.take(_INT))]

    def _take_exactly(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise ValueError("a value ends behind its message")
        taken = self._data[self._position : end]
        self._position = end
        return taken
