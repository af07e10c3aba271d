"""Which names a group may have: what PostgreSQL can keep, and find again."""

from __future__ import annotations

from typing import Final

from catalog.errors import InvalidGroupError

MAX_NAME_BYTES: Final = 2500
"""What fits an entry of an index beside a partition: that has 2,704 bytes (BTMaxItemSize). Kafka: 32,767."""


def check_group_name(group_id: str) -> None:
    """Raise InvalidGroupError for a name that cannot be kept; an empty one is the caller's business."""
    if "\0" in group_id:
        raise InvalidGroupError(
            "a group's name has a NUL in it", remedy="choose a name without such characters"
        )
    size = len(group_id.encode())
    if size > MAX_NAME_BYTES:
        raise InvalidGroupError(
            f"the group name {group_id[:40]!r}… has {size} bytes, more than {MAX_NAME_BYTES}",
            remedy="choose a shorter name",
        )
