"""The open ingestion file: batches by partition, in the order of arrival.

This module knows nothing of time, threads or stores. The write path decides when a file is closed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence
    from uuid import UUID

    from agent.write.pending_append import PendingAppend
    from agent.write.validation import ValidatedAppend, ValidatedBatch
    from catalog.model import ProducerStamp, Topic
    from core.errors import SiltstoneError


class Piece(NamedTuple):
    """Consecutive batches of one append that go into the same file.

    `data` holds exactly the `batches`. It is writable, because offsets are patched in place. `first_batch` is
    the index of the first batch within the append.
    """

    data: memoryview
    batches: tuple[ValidatedBatch, ...]
    pending: PendingAppend
    first_batch: int


@dataclass(slots=True, eq=False)
class OpenFile:
    """An ingestion file that is being filled: pieces by topic and partition, and the size of all batches.

    `known_topics` has the topics as the validation of the batches knew them. `requests` counts the requests
    of each idempotent producer that end in this file. `producers` has the id and epoch of each one with
    batches in it, and `has_transactions` says whether one of them is transactional. `opened_at` is the loop's
    time of its first append, `appended_at` that of each request that ends in this file. `reason` says why it
    was closed.
    """

    # By topic first: neighbours in a request have the same topic, and hashing a UUID is slow.
    topics: dict[UUID, dict[int, list[Piece]]] = field(default_factory=dict)
    known_topics: dict[UUID, Topic] = field(default_factory=dict)
    size: int = 0
    requests: Counter[int] = field(default_factory=Counter)
    producers: set[tuple[int, int]] = field(default_factory=set)
    has_transactions: bool = False
    opened_at: float = 0.0
    appended_at: list[float] = field(default_factory=list)
    reason: str = "full"

    def remember(self, topic: Topic) -> None:
        """Keep the topic of an append; a request that took long may know fewer partitions."""
        known = self.known_topics.get(topic.topic_id)
        if known is None or known.partition_count <= topic.partition_count:
            self.known_topics[topic.topic_id] = topic

    def sections(self, topic_id: UUID) -> dict[int, list[Piece]]:
        """Return the pieces of a topic, by partition."""
        found = self.topics.get(topic_id)
        if found is None:
            found = self.topics[topic_id] = {}
        return found

    def add(self, topic_id: UUID, partition: int, piece: Piece) -> None:
        """Append `piece` to the section of the partition."""
        self.sections(topic_id).setdefault(partition, []).append(piece)
        self.size += len(piece.data)

    def note_producer(self, stamp: ProducerStamp) -> None:
        """Note the idempotent producer of batches in this file."""
        self.producers.add(stamp.identity)
        if stamp.is_transactional:
            self.has_transactions = True

    def fail(self, error: SiltstoneError) -> None:
        """Fail the batches that have no result yet."""
        for sections in self.topics.values():
            for section in sections.values():
                for piece in section:
                    piece.pending.fail(piece.first_batch, len(piece.batches), error)


class IngestionBuffer:
    """Divides a stream of appends into files of at least `target` bytes, in whole batches.

    A file is full once it reaches `target`, and exceeds it by less than one batch. An append that does not
    fit into the rest of a file continues in the next file.
    """

    def __init__(self, target: int) -> None:
        self._target = target
        self.open = OpenFile()

    def add_all(self, appends: Sequence[ValidatedAppend], size: int, pending: PendingAppend) -> bool:
        """Add appends of `size` bytes in all, and return True. If they fill the file, add none.

        The batches of all appends have consecutive indexes in `pending`.
        """
        file = self.open
        if file.size + size >= self._target:
            return False
        file.size += size
        topic = None
        sections: dict[int, list[Piece]] = {}
        first = 0
        new = tuple.__new__  # the constructor of a named tuple is a Python function and takes twice as long
        for append_topic, partition, data, batches in appends:
            if append_topic is not topic:
                topic = append_topic
                file.remember(topic)
                sections = file.sections(topic.topic_id)
            piece = new(Piece, (data, batches, pending, first))
            section = sections.get(partition)
            if section is None:
                sections[partition] = [piece]
            else:
                section.append(piece)
            first += len(batches)
        return True

    def add(self, validated: ValidatedAppend, pending: PendingAppend, first_batch: int = 0) -> list[OpenFile]:
        """Add an append, and return the files that became full, oldest first.

        Its batches have the indexes from `first_batch` on in `pending`.
        """
        topic_id, partition = validated.topic.topic_id, validated.partition
        full: list[OpenFile] = []
        first = 0
        while first < len(validated.batches):
            last, end = self._fill(validated, first)
            start = validated.batches[first].position
            self.open.remember(validated.topic)
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

    def _fill(self, validated: ValidatedAppend, first: int) -> tuple[int, int]:
        """Return how many batches from `first` on the open file takes.

        The result is (index after the last batch, end position).
        """
        free = self._target - self.open.size
        start = validated.batches[first].position
        number = first
        end = start
        while number < len(validated.batches) and end - start < free:
            end = validated.batches[number].position + validated.batches[number].size
            number += 1
        return number, end

    def take(self) -> OpenFile:
        """Close the open file and start a new one."""
        closed, self.open = self.open, OpenFile()
        return closed
