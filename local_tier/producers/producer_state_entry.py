"""What a log knows of one idempotent producer, and the rules by which an append changes it (KIP-98, KIP-360).

Source: ProducerStateEntry and ProducerAppendInfo of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from local_tier.errors import InvalidProducerEpochError, InvalidTransactionError, OutOfOrderSequenceError

if TYPE_CHECKING:
    from local_tier.producers.batches import EndTransactionMarker, ProducerBatch

BATCHES_KEPT: Final = 5
NO_EPOCH: Final = -1
_SEQUENCES: Final = 2**31


class AppendOrigin(Enum):
    """Who appends: a producer, the transaction coordinator, or another log that this one follows."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class BatchMetadata(NamedTuple):
    """A batch that was appended; `offset_delta` is its last offset less its first."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """Sequence numbers wrap round at 2^31."""
        return (self.last_sequence - self.offset_delta) % _SEQUENCES

    @property
    def first_offset(self) -> int:
        """The offset of its first record."""
        return self.last_offset - self.offset_delta


class LastRecord(NamedTuple):
    """The offset of a producer's last record, if it is known, and the producer's epoch."""

    last_data_offset: int | None
    producer_epoch: int


@dataclass(slots=True)
class ProducerStateEntry:
    """One producer: its epoch, its last batches (oldest first), and where its open transaction began."""

    producer_id: int
    producer_epoch: int = NO_EPOCH
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    transaction_start: int | None = None
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=BATCHES_KEPT))

    @property
    def last_sequence(self) -> int:
        """-1 when no batch is known."""
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_offset(self) -> int:
        """Of the last data batch; -1 when none is known."""
        return self.batches[-1].last_offset if self.batches else -1

    @property
    def last_offset_delta(self) -> int:
        """Of the last data batch."""
        return self.batches[-1].offset_delta if self.batches else 0

    def find_duplicate(self, batch: ProducerBatch) -> BatchMetadata | None:
        """The known batch with exactly the same sequence numbers in the same epoch."""
        if batch.producer_epoch != self.producer_epoch:
            return None
        for known in self.batches:
            if (known.first_sequence, known.last_sequence) == (batch.base_sequence, batch.last_sequence):
                return known
        return None

    def begin_epoch(self, epoch: int) -> None:
        """In a new epoch, the batches of the old one are forgotten."""
        if epoch != self.producer_epoch:
            self.batches.clear()
            self.producer_epoch = epoch

    def add(self, epoch: int, batch: BatchMetadata) -> None:
        """Know one more batch, and forget the oldest beyond five."""
        self.begin_epoch(epoch)
        self.batches.append(batch)
        self.last_timestamp = batch.timestamp

    def take(self, newer: ProducerStateEntry) -> None:
        """Become what `newer` is, whose batches come after those known."""
        self.begin_epoch(newer.producer_epoch)
        self.batches.extend(newer.batches)
        self.coordinator_epoch = newer.coordinator_epoch
        self.transaction_start = newer.transaction_start
        self.last_timestamp = newer.last_timestamp


class CompletedTxn(NamedTuple):
    """A transaction from its first record to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerAppendInfo:
    """The batches of one producer in one append: checked one by one, taken over together or not at all."""

    def __init__(self, known: ProducerStateEntry, origin: AppendOrigin, where: str) -> None:
        self._known = known
        self._origin = origin
        self._where = where
        self.updated = ProducerStateEntry(
            producer_id=known.producer_id,
            producer_epoch=known.producer_epoch,
            coordinator_epoch=known.coordinator_epoch,
            last_timestamp=known.last_timestamp,
            transaction_start=known.transaction_start,
        )
        self.started: list[int] = []

    def append(self, batch: ProducerBatch) -> CompletedTxn | None:
        """Check and note a batch; what it completes, if it ends a transaction that has records.

        Raises InvalidProducerEpochError, OutOfOrderSequenceError or InvalidTransactionError.
        """
        if not batch.is_control:
            self._append_data(batch)
            return None
        if batch.marker is None:
            return None
        return self._append_marker(batch, batch.marker)

    def note(self, batch: ProducerBatch) -> None:
        """Know a data batch that needs no check."""
        delta = batch.last_offset - batch.base_offset
        self.updated.add(
            batch.producer_epoch,
            BatchMetadata(batch.last_sequence, batch.last_offset, delta, batch.max_timestamp),
        )

    def _append_data(self, batch: ProducerBatch) -> None:
        self._check_epoch(batch)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(batch)
        self.note(batch)
        is_open = self.updated.transaction_start is not None
        if is_open and not batch.is_transactional:
            raise InvalidTransactionError(
                f"producer {batch.producer_id} sent a batch outside of its open transaction to {self._where}",
                remedy="commit or abort the transaction first",
            )
        if batch.is_transactional and not is_open:
            self.updated.transaction_start = batch.base_offset
            self.started.append(batch.base_offset)

    def _append_marker(self, batch: ProducerBatch, marker: EndTransactionMarker) -> CompletedTxn | None:
        self._check_epoch(batch)
        if (
            self._origin is not AppendOrigin.REPLICATION
            and marker.coordinator_epoch < self.updated.coordinator_epoch
        ):
            raise InvalidTransactionError(
                f"a marker for producer {batch.producer_id} in {self._where} is from coordinator epoch "
                f"{marker.coordinator_epoch}, and epoch {self.updated.coordinator_epoch} was seen",
                remedy="stop this coordinator: another has taken its place",
            )
        start = self.updated.transaction_start
        self.updated.begin_epoch(batch.producer_epoch)
        self.updated.coordinator_epoch = marker.coordinator_epoch
        self.updated.last_timestamp = marker.timestamp
        self.updated.transaction_start = None
        if start is None:
            return None
        return CompletedTxn(batch.producer_id, start, batch.base_offset, marker.is_abort)

    def _check_epoch(self, batch: ProducerBatch) -> None:
        if batch.producer_epoch >= self.updated.producer_epoch or self._origin is AppendOrigin.REPLICATION:
            return
        raise InvalidProducerEpochError(
            f"producer {batch.producer_id} has epoch {batch.producer_epoch} in {self._where}, and epoch "
            f"{self.updated.producer_epoch} was seen before",
            remedy="another instance has taken its place: get a new producer id or epoch",
        )

    def _check_sequence(self, batch: ProducerBatch) -> None:
        if batch.producer_epoch != self.updated.producer_epoch:
            is_new = self.updated.producer_epoch == NO_EPOCH
            if batch.base_sequence and not is_new:
                raise self._out_of_order(batch, 0)
            return
        if self._known.producer_epoch == NO_EPOCH:
            return  # nobody knows the producer here: its state may have expired with its records
        last = self.updated.last_sequence
        if not self.updated.batches and batch.producer_epoch == self._known.producer_epoch:
            last = self._known.last_sequence
        expected = (last + 1) % _SEQUENCES
        if batch.base_sequence != expected:
            raise self._out_of_order(batch, expected)

    def _out_of_order(self, batch: ProducerBatch, expected: int) -> OutOfOrderSequenceError:
        return OutOfOrderSequenceError(
            f"producer {batch.producer_id} sent sequence {batch.base_sequence} to {self._where}, "
            f"expected {expected}"
        )
