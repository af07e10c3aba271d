"""Valid topic names and partition counts: Kafka's rules (org.apache.kafka.common.internals.Topic)."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from uuid import UUID

from catalog.errors import InvalidTopicError

if TYPE_CHECKING:
    from typing import Final

MAX_NAME_LENGTH = 249
RESERVED_IDS: Final = frozenset({UUID(int=0), UUID(int=1)})
"""Kafka's `Uuid.ZERO_UUID`, which means no id, and `Uuid.METADATA_TOPIC_ID`."""
MAX_PARTITIONS = 100_000
_VALID_NAME = re.compile(r"[a-zA-Z0-9._-]+")


def check_topic_name(name: str) -> None:
    """Raise InvalidTopicError if Kafka would reject `name`."""
    remedy = "use 1 to 249 of a-z, A-Z, 0-9, '.', '_' and '-'"
    if not name:
        raise InvalidTopicError("a topic's name is empty", remedy=remedy)
    if name in {".", ".."}:
        raise InvalidTopicError(f"a topic cannot be named {name!r}", remedy=remedy)
    if len(name) > MAX_NAME_LENGTH:
        raise InvalidTopicError(
            f"the topic name {name[:40]!r}… has {len(name)} characters, more than {MAX_NAME_LENGTH}",
            remedy=remedy,
        )
    if not _VALID_NAME.fullmatch(name):
        raise InvalidTopicError(f"the topic name {name!r} has a character that is not allowed", remedy=remedy)


def check_topic_id(topic_id: UUID) -> None:
    """Raise InvalidTopicError if Kafka reserves the identifier."""
    if topic_id in RESERVED_IDS:
        raise InvalidTopicError(
            f"no topic can have the identifier {topic_id}, which Kafka reserves",
            remedy="use the identifier that siltstone fsck --readopt names",
        )


def collision_key(name: str) -> str:
    """Return a key that only colliding names share: metric names do not distinguish '.' and '_'."""
    return name.replace(".", "_")


def check_partition_count(name: str, partition_count: int) -> None:
    """Raise InvalidTopicError unless 1 ≤ `partition_count` ≤ `MAX_PARTITIONS`."""
    if not 1 <= partition_count <= MAX_PARTITIONS:
        raise InvalidTopicError(
            f"topic {name!r} cannot have {partition_count} partitions",
            remedy=f"choose a number from 1 to {MAX_PARTITIONS}",
        )
