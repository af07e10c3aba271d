"""Which topics a consumer's metadata names.

The coordinator reads as much of the consumer protocol as version 0 has, a version number and a list of topic
names; later versions only add to it (clients/.../message/ConsumerProtocolSubscription.json).
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CONSUMER_PROTOCOL_TYPE = "consumer"
_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(metadata: Iterable[bytes]) -> frozenset[str] | None:
    """The topics that any of these subscriptions names; None when one of them cannot be read."""
    try:
        return frozenset(topic for each in metadata for topic in _topics(each))
    except (struct.error, ValueError):
        return None


def _topics(metadata: bytes) -> list[str]:
    _version, count = _HEAD.unpack_from(metadata)
    position = _HEAD.size
    topics = []
    for _ in range(count):
        (length,) = _LENGTH.unpack_from(metadata, position)
        position += _LENGTH.size
        if length < 0 or position + length > len(metadata):
            raise ValueError("a topic's name ends behind the subscription")
        topics.append(metadata[position : position + length].decode())
        position += length
    return topics
