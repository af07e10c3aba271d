"""Valid names of consumer groups: names that PostgreSQL can store and index."""

from __future__ import annotations

from typing import Final

from catalog.errors import InvalidGroupError

MAX_NAME_BYTES: Final = 2500
"""The largest name that fits an index entry with a partition (2,704 bytes, BTMaxItemSize). Kafka: 32,767."""


def check_group_name(group_id: str) -> None:
    """Raise InvalidGroupError for a name that cannot be stored; callers check for an empty name."""
    if "\0" in group_id:
        raise InvalidGroupError("a group's name contains a NUL", remedy="choose a name without NUL")
    size = len(group_id.encode())
    if size > MAX_NAME_BYTES:
        raise InvalidGroupError(
            f"the group name {group_id[:40]!r}… has {size} bytes, more than {MAX_NAME_BYTES}",
            remedy="choose a shorter name",
        )
