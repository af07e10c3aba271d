"""The name of a partition's log."""

from __future__ import annotations

from typing import NamedTuple

from typing_extensions import override


class TopicPartition(NamedTuple):
    """A topic's name and a partition number, as in directory names and checkpoints."""

    topic: str
    partition: int

    @override
    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"
