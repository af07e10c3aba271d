"""The state of one idempotent producer in a log, and the rules for its appends (KIP-98, KIP-360).

Source: ProducerStateEntry and ProducerAppendInfo of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Final, NamedTuple

from local_tier.errors import InvalidProducerEpochError, InvalidTransactionError, OutOfOrderSequenceError
from object_format.kernels.batches.layout import SEQUENCES

if TYPE_CHECKING:
    from local_tier.producers.batches import ProducerBatch
    from object_format.record_batch.control_batch import EndTransactionMarker

NUM_BATCHES_TO_RETAIN: Final = 5
NO_EPOCH: Final = -1


class AppendOrigin(Enum):
    """The origin of an append: a producer, the transaction coordinator, or the leader's log."""

    CLIENT = "client"
    COORDINATOR = "coordinator"
    REPLICATION = "replication"


class BatchMetadata(NamedTuple):
    """A batch that was appended. `offset_delta` is its last offset minus its first."""

    last_sequence: int
    last_offset: int
    offset_delta: int
    timestamp: int

    @property
    def first_sequence(self) -> int:
        """The first sequence number. Sequence numbers wrap around at 2^31."""
        return (self.last_sequence - self.offset_delta) % SEQUENCES

    @property
    def first_offset(self) -> int:
        """The offset of the first record."""
        return self.last_offset - self.offset_delta


class LastRecord(NamedTuple):
    """The offset of a producer's last data record, if known, and the producer's epoch."""

    last_data_offset: int | None
    producer_epoch: int


@dataclass(slots=True)
class ProducerStateEntry:
    """A producer's epoch, its last batches (oldest first), and the first offset of its open transaction."""

    producer_id: int
    producer_epoch: int = NO_EPOCH
    coordinator_epoch: int = -1
    last_timestamp: int = -1
    current_txn_first_offset: int | None = None
    batches: deque[BatchMetadata] = field(default_factory=lambda: deque(maxlen=NUM_BATCHES_TO_RETAIN))

    @property
    def last_sequence(self) -> int:
        """The last sequence number, or -1 if no batch is known."""
        return self.batches[-1].last_sequence if self.batches else -1

    @property
    def last_offset(self) -> int:
        """The offset of the last data record, or -1 if no batch is known."""
        return self.batches[-1].last_offset if self.batches else -1

    @property
    def last_offset_delta(self) -> int:
        """The offset delta of the last data batch."""
        return self.batches[-1].offset_delta if self.batches else 0

    def find_duplicate(self, batch: ProducerBatch) -> BatchMetadata | None:
        """Return the known batch with the same epoch and the same first and last sequence number, or None."""
        if batch.producer_epoch != self.producer_epoch:
            return None
        for known in self.batches:
            if (known.first_sequence, known.last_sequence) == (batch.base_sequence, batch.last_sequence):
                return known
        return None

    def maybe_update_epoch(self, epoch: int) -> None:
        """Set the epoch. If it is new, the batches of the old epoch are dropped."""
        if epoch != self.producer_epoch:
            self.batches.clear()
            self.producer_epoch = epoch

    def add_batch_metadata(self, epoch: int, batch: BatchMetadata) -> None:
        """Add a batch and drop the oldest one beyond `NUM_BATCHES_TO_RETAIN`."""
        self.maybe_update_epoch(epoch)
        self.batches.append(batch)
        self.last_timestamp = batch.timestamp

    def update(self, newer: ProducerStateEntry) -> None:
        """Apply the result of an append: `newer` has the batches that follow those known."""
        self.maybe_update_epoch(newer.producer_epoch)
        self.batches.extend(newer.batches)
        self.coordinator_epoch = newer.coordinator_epoch
        self.current_txn_first_offset = newer.current_txn_first_offset
        self.last_timestamp = newer.last_timestamp


class CompletedTxn(NamedTuple):
    """A completed transaction, from its first record to its marker."""

    producer_id: int
    first_offset: int
    last_offset: int
    is_aborted: bool


class ProducerAppendInfo:
    """The batches of one producer in one append. All of them are applied to the producer's state, or none."""

    def __init__(self, known: ProducerStateEntry, origin: AppendOrigin, log_name: str) -> None:
        self._current_entry = known
        self._origin = origin
        self._log_name = log_name
        self.updated = ProducerStateEntry(
            producer_id=known.producer_id,
            producer_epoch=known.producer_epoch,
            coordinator_epoch=known.coordinator_epoch,
            last_timestamp=known.last_timestamp,
            current_txn_first_offset=known.current_txn_first_offset,
        )
        self.started_txn_offsets: list[int] = []

    def append(self, batch: ProducerBatch) -> CompletedTxn | None:
        """Check and add a batch. Return the transaction that it completes, if that has records.

        Raises InvalidProducerEpochError, OutOfOrderSequenceError or InvalidTransactionError.
        """
        if not batch.is_control:
            self._append_data(batch)
            return None
        if batch.marker is None:
            return None
        return self._append_marker(batch, batch.marker)

    def add_batch(self, batch: ProducerBatch) -> None:
        """Add a data batch without a check."""
        delta = batch.last_offset - batch.base_offset
        self.updated.add_batch_metadata(
            batch.producer_epoch,
            BatchMetadata(batch.last_sequence, batch.last_offset, delta, batch.max_timestamp),
        )

    def _append_data(self, batch: ProducerBatch) -> None:
        self._check_epoch(batch)
        if self._origin is AppendOrigin.CLIENT:
            self._check_sequence(batch)
        self.add_batch(batch)
        is_open = self.updated.current_txn_first_offset is not None
        if is_open and not batch.is_transactional:
            raise InvalidTransactionError(
                f"producer {batch.producer_id} sent a non-transactional batch to {self._log_name} "
                "while its transaction is open",
                remedy="commit or abort the transaction first",
            )
        if batch.is_transactional and not is_open:
            self.updated.current_txn_first_offset = batch.base_offset
            self.started_txn_offsets.append(batch.base_offset)

    def _append_marker(self, batch: ProducerBatch, marker: EndTransactionMarker) -> CompletedTxn | None:
        self._check_epoch(batch)
        if (
            self._origin is not AppendOrigin.REPLICATION
            and marker.coordinator_epoch < self.updated.coordinator_epoch
        ):
            raise InvalidTransactionError(
                f"the marker for producer {batch.producer_id} in {self._log_name} has coordinator epoch "
                f"{marker.coordinator_epoch}, but the latest epoch is {self.updated.coordinator_epoch}",
                remedy="stop this coordinator: a newer one has replaced it",
            )
        start = self.updated.current_txn_first_offset
        self.updated.maybe_update_epoch(batch.producer_epoch)
        self.updated.coordinator_epoch = marker.coordinator_epoch
        self.updated.last_timestamp = marker.timestamp
        self.updated.current_txn_first_offset = None
        if start is None:
            return None
        return CompletedTxn(batch.producer_id, start, batch.base_offset, marker.is_abort)

    def _check_epoch(self, batch: ProducerBatch) -> None:
        if batch.producer_epoch >= self.updated.producer_epoch or self._origin is AppendOrigin.REPLICATION:
            return
        raise InvalidProducerEpochError(
            f"producer {batch.producer_id} has epoch {batch.producer_epoch} in {self._log_name}, but the "
            f"latest epoch is {self.updated.producer_epoch}",
            remedy="a newer instance has fenced this producer: get a new producer id or epoch",
        )

    def _check_sequence(self, batch: ProducerBatch) -> None:
        if batch.producer_epoch != self.updated.producer_epoch:
            is_new = self.updated.producer_epoch == NO_EPOCH
            if batch.base_sequence and not is_new:
                raise self._out_of_order(batch, 0)
            return
        if self._current_entry.producer_epoch == NO_EPOCH:
            return  # an unknown producer: its state may have expired with its records
        last = self.updated.last_sequence
        if not self.updated.batches and batch.producer_epoch == self._current_entry.producer_epoch:
            last = self._current_entry.last_sequence
        expected = (last + 1) % SEQUENCES
        if batch.base_sequence != expected:
            raise self._out_of_order(batch, expected)

    def _out_of_order(self, batch: ProducerBatch, expected: int) -> OutOfOrderSequenceError:
        return OutOfOrderSequenceError(
            f"producer {batch.producer_id} sent sequence {batch.base_sequence} to {self._log_name}, "
            f"expected {expected}",
            is_behind=(batch.base_sequence - expected) % SEQUENCES >= SEQUENCES // 2,
        )


class OpenTxn(NamedTuple):
    """A transaction without a marker: its first offset, and the epochs of its producer and coordinator."""

    producer_id: int
    first_offset: int
    producer_epoch: int
    coordinator_epoch: int
