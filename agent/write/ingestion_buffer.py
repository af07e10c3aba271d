"""The open ingestion file: batches by partition, in the order of their arrival.

Nothing here knows of time, threads or stores; the write path decides when a file is closed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from agent.write.pending_append import PendingAppend
    from agent.write.validation import ValidatedBatch, ValidatedBatches
    from core.errors import SiltstoneError


class Piece(NamedTuple):
    """Consecutive batches of one append that go into one file.

    `data` holds exactly the `batches`, and may be written to: offsets are patched where they lie.
    `first_batch` is the number of the first one within the append.
    """

    data: memoryview
    batches: tuple[ValidatedBatch, ...]
    pending: PendingAppend
    first_batch: int


@dataclass(frozen=True, slots=True)
class Receipt:
    """Whom to answer for `batch_count` batches of an append, from `first_batch` on."""

    pending: PendingAppend
    first_batch: int
    batch_count: int

    def fail(self, error: SiltstoneError) -> None:
        """Answer with `error` for those of them that have no answer yet."""
        self.pending.fail(self.first_batch, self.batch_count, error)


@dataclass(slots=True, eq=False)
class OpenFile:
    """One ingestion file to be: pieces by topic and partition, and how many bytes of batches they are.

    `requests` and `bytes` count, by idempotent producer, the requests that end in it. `opened` is the loop's
    time at its first append.
    """

    # By a topic first: neighbours in a request have the same one, and a UUID is slow to look up.
    topics: dict[UUID, dict[int, list[Piece]]] = field(default_factory=dict)
    size: int = 0
    requests: Counter[int] = field(default_factory=Counter)
    bytes: Counter[int] = field(default_factory=Counter)
    opened: float = 0.0

    def sections(self, topic_id: UUID) -> dict[int, list[Piece]]:
        """What there is of a topic, by partition."""
        found = self.topics.get(topic_id)
        if found is None:
            found = self.topics[topic_id] = {}
        return found

    def add(self, topic_id: UUID, partition: int, piece: Piece) -> None:
        """Append `piece` behind what the partition has in this file."""
        self.sections(topic_id).setdefault(partition, []).append(piece)
        self.size += len(piece.data)

    def receipts(self) -> list[Receipt]:
        """Whom to answer for the file's batches."""
        return [
            Receipt(piece.pending, piece.first_batch, len(piece.batches))
            for sections in self.topics.values()
            for section in sections.values()
            for piece in section
        ]


class IngestionBuffer:
    """Cuts a stream of appends into files of at least `target` bytes, by whole batches.

    A file is full once it reaches `target`; it exceeds it by less than one batch. An append with more than
    what is left of a file goes on in the next one.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.open = OpenFile()

    def add_all(self, appends: Sequence[ValidatedBatches], size: int, pending: PendingAppend) -> bool:
        """Take appends of `size` bytes in all, unless they fill the file: then none of them, and False.

        The batches of all are numbered on through the appends in `pending`.
        """
        file = self.open
        if file.size + size >= self._target:
            return False
        file.size += size
        topic = None
        sections: dict[int, list[Piece]] = {}
        first = 0
        new = tuple.__new__  # takes half as long as the constructor, which is a function in Python
        for append_topic, partition, data, batches in appends:
            if append_topic is not topic:
                topic = append_topic
                sections = file.sections(topic.topic_id)
            piece = new(Piece, (data, batches, pending, first))
            section = sections.get(partition)
            if section is None:
                sections[partition] = [piece]
            else:
                section.append(piece)
            first += len(batches)
        return True

    def add(
        self, validated: ValidatedBatches, pending: PendingAppend, first_batch: int = 0
    ) -> list[OpenFile]:
        """Take an append; returns the files that became full by it, oldest first.

        Its batches are those of `pending` from `first_batch` on.
        """
        topic_id, partition = validated.topic.topic_id, validated.partition
        full: list[OpenFile] = []
        first = 0
        while first < len(validated.batches):
            last, end = self._fill(validated, first)
            start = validated.batches[first].position
            self.open.add(
                topic_id,
                partition,
                Piece(
                    data=validated.data[start:end],
                    batches=validated.batches[first:last],
                    pending=pending,
                    first_batch=first_batch + first,
                ),
            )
            if self.open.size >= self._target:
                full.append(self.take())
            first = last
        return full

    def _fill(self, validated: ValidatedBatches, first: int) -> tuple[int, int]:
        """How far the open file takes the batches from `first`: (number behind the last, end position)."""
        room = self._target - self.open.size
        start = validated.batches[first].position
        number = first
        end = start
        while number < len(validated.batches) and end - start < room:
            end = validated.batches[number].position + validated.batches[number].size
            number += 1
        return number, end

    def take(self) -> OpenFile:
        """Close the open file and begin a new one."""
        closed, self.open = self.open, OpenFile()
        return closed
