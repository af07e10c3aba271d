"""The open ingestion file: batches by partition, in the order of their arrival.

Nothing here knows of time, threads or stores; the write path decides when a file is closed.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from catalog.model import PartitionId

if TYPE_CHECKING:
    from agent.pending_append import PendingAppend
    from agent.validation import BatchColumns, ValidatedBatches
    from bedrock.errors import SiltstoneError


class Piece(NamedTuple):
    """Consecutive batches of one append that go into one file.

    `data` holds exactly the `batches`, and may be written to: offsets are patched where they lie.
    `first_batch` is the number of the first one within the append.
    """

    data: memoryview
    batches: tuple[BatchColumns, ...]
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
    """One ingestion file to be: pieces by partition, and how many bytes of batches they are.

    `requests` and `bytes` count, by idempotent producer, the requests that end in it. `opened` is the loop's
    time at its first append.
    """

    sections: dict[PartitionId, list[Piece]] = field(default_factory=dict)
    size: int = 0
    requests: Counter[int] = field(default_factory=Counter)
    bytes: Counter[int] = field(default_factory=Counter)
    opened: float = 0.0

    def add(self, partition: PartitionId, piece: Piece) -> None:
        """Append `piece` behind what the partition has in this file."""
        section = self.sections.get(partition)
        if section is None:
            self.sections[partition] = [piece]
        else:
            section.append(piece)
        self.size += len(piece.data)

    def receipts(self) -> list[Receipt]:
        """Whom to answer for the file's batches."""
        return [
            Receipt(piece.pending, piece.first_batch, len(piece.batches))
            for section in self.sections.values()
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

    def add(self, validated: ValidatedBatches, pending: PendingAppend) -> list[OpenFile]:
        """Take an append; returns the files that became full by it, oldest first."""
        partition = PartitionId(validated.topic.topic_id, validated.partition)
        full: list[OpenFile] = []
        if self.open.size + len(validated.data) < self._target:
            self.open.add(partition, Piece(validated.data, validated.batches, pending, 0))
            return full
        first = 0
        while first < len(validated.batches):
            last, end = self._fill(validated, first)
            start = validated.batches[first].position
            self.open.add(
                partition,
                Piece(
                    data=validated.data[start:end],
                    batches=validated.batches[first:last],
                    pending=pending,
                    first_batch=first,
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
