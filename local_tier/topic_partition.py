"""The name of a log."""

from __future__ import annotations

from typing import NamedTuple

from typing_extensions import override


class TopicPartition(NamedTuple):
    """A partition by its topic's name, as directories and checkpoints have it."""

    topic: str
    partition: int

    @override
    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
