"""The consumer protocol inside JoinGroup and SyncGroup: subscriptions and assignments as bytes.

The coordinator of a classic group parses only the topics of a subscription. A group with members of both
protocols also needs the partitions that a member owns, and encodes the assignments itself.

Version 0 of a subscription has topics and user data. Version 1 added owned partitions, 2 a generation, 3 the
rack. The assignment is the same in all versions (clients/.../message/ConsumerProtocolSubscription.json and
ConsumerProtocolAssignment.json). Some clients send a version without its fields, for example
@platformatic/kafka with version 1; the missing fields have their defaults.
"""

from __future__ import annotations

import struct
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from agent.groups.classic.messages import MemberProtocol

CONSUMER_PROTOCOL_TYPE = "consumer"
T = TypeVar("T")
NamedPartitions: TypeAlias = frozenset[tuple[str, int]]
_NEWEST_VERSION = 3
_MAX_ITEMS = 100_000  # topics and partitions of one member
_MAX_GROUP_ITEMS = 1_000_000
_OWNED_VERSION, _GENERATION_VERSION, _RACK_VERSION = 1, 2, 3
_SHORT, _INT = struct.Struct(">h"), struct.Struct(">i")
_NULL = _INT.pack(-1)


@dataclass(frozen=True, slots=True)
class Subscription:
    """Subscription of a member; the assignment is sent in the same `version`."""

    version: int
    topics: frozenset[str]
    owned: NamedPartitions = frozenset()
    rack_id: str | None = None


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """Return the topics that these subscriptions name; None if one of them cannot be parsed.

    The fields after the topics are not parsed. Subscriptions with more than `_MAX_GROUP_ITEMS` topics in all
    count as ones that cannot be parsed.
    """
    found: set[str] = set()
    left = _MAX_GROUP_ITEMS
    try:
        for each in metadata:
            names = _topics(_Reader(each, left))[1]
            left -= len(names)
            found.update(names)
        return frozenset(found)
    except (struct.error, ValueError):
        return None


def read_subscription(protocols: Iterable[MemberProtocol]) -> Subscription | None:
    """Return a member's subscription, which is the same in all its protocols; None if it cannot be parsed."""
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
    """Return the partitions of an assignment, none if it has no bytes; None if it cannot be parsed."""
    if not assignment:
        return frozenset()
    reader = _Reader(assignment)
    try:
        reader.take_version()
        return reader.take_partitions()
    except (struct.error, ValueError):
        return None


def write_assignment(version: int, partitions: Iterable[tuple[str, int]]) -> bytes:
    """Return the assignment for a member whose subscription has this version."""
    by_topic: dict[str, list[int]] = defaultdict(list)
    for topic, partition in sorted(partitions):
        by_topic[topic].append(partition)
    out = bytearray(_SHORT.pack(min(version, _NEWEST_VERSION)) + _INT.pack(len(by_topic)))
    for topic, indexes in by_topic.items():
        name = topic.encode()
        out += _SHORT.pack(len(name)) + name
        out += struct.pack(f">{len(indexes) + 1}i", len(indexes), *indexes)
    return bytes(out + _NULL)  # no user data


def _topics(reader: _Reader) -> tuple[int, list[str]]:
    return reader.take_version(), reader.take_list(reader.take_name)


class _Reader:
    """Reader of consecutive values; raises struct.error or ValueError where the data end."""

    def __init__(self, data: bytes, max_items: int = _MAX_ITEMS) -> None:
        self._data = data
        self._items_left = min(max_items, _MAX_ITEMS)
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
            raise ValueError("the version is negative")
        return version

    def take_list(self, take_one: Callable[[], T]) -> list[T]:
        count = self.take(_INT)
        if not 0 <= count <= len(self._data) - self._position:
            raise ValueError("a list is longer than its message")
        self._items_left -= count
        if self._items_left < 0:
            raise ValueError("the lists have too many items")
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
        return [(name, partition) for partition in self.take_list(lambda: self.take(_INT))]

    def _take_exactly(self, length: int) -> bytes:
        end = self._position + length
        if end > len(self._data):
            raise ValueError("a value is longer than its message")
        taken = self._data[self._position : end]
        self._position = end
        return taken
