"""Verification of transactional batches before the leader appends them to a local log (KIP-890).

The first batch of a transaction in a partition is verified in the catalog, which adds the partition to the
transaction. The batches that follow need no call. A verification is a token: the marker of the producer voids
it, so that a batch which was verified before the end of its transaction is never appended after the marker.
The caller checks the token under the lock of the partition, and verifies again if it is void.

Source: the verification guard of UnifiedLog in Kafka.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

from agent.local_topics.transactions.log_transactions import open_transaction
from catalog.transactions.local_partitions import FirstBatch, Verification
from catalog.transactions.rules import ProducerIdentity
from core.errors import RetryableError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from agent.local_topics.disks.disk_pools import DiskPools
    from agent.runtime.work_pool import WorkPool
    from catalog.model import OpenTransaction, PartitionId, ProducerStamp
    from local_tier.log.unified_log import UnifiedLog

_TRIES: Final = 5
_MAX_FAILED: Final = 10_000
_LEAST_SEQUENCE: Final = 0
"""For a first batch that was deleted: any batch of the transaction that remains has a later sequence."""
Key = tuple["PartitionId", int]
"""Partition and producer id."""


class VerificationTable(Protocol):
    """The local partitions of transactions in the catalog. The call blocks."""

    def verify(self, transactional_id: str, producer: ProducerIdentity, batch: FirstBatch, /) -> Verification:
        """Verify that the producer's ongoing transaction has the partition, and add it."""
        ...


@dataclass(eq=False, slots=True)
class Verified:
    """The verification of a producer's transaction in a partition. `is_open`: the log has its first batch."""

    producer_epoch: int = -1
    transactional_id: str | None = None
    is_open: bool = False


class TransactionVerifier:
    """The transactions that are verified, or open in the logs, of one agent. Belongs to the event loop.

    `end_earlier` ends what the log has of earlier transactions of a producer: it writes the pending markers,
    and aborts the given transaction if the catalog does not know it.
    """

    def __init__(self, table: VerificationTable, *, pool: WorkPool, disks: DiskPools) -> None:
        self._table = table
        self._pool = pool
        self._disks = disks
        self._entries: dict[Key, Verified] = {}
        self._failed: dict[Key, tuple[int, int]] = {}
        self.end_earlier: Callable[[PartitionId, OpenTransaction | None], Awaitable[None]] | None = None

    @property
    def keys(self) -> list[Key]:
        """The partitions and producers whose transactions may be open."""
        return list(self._entries)

    def open_transactions(self) -> dict[Key, Verified]:
        """Return the transactions that are open in the logs, or were when their last batch was appended."""
        return {key: each for key, each in self._entries.items() if each.is_open}

    def needs_verification(self, partition: PartitionId, stamp: ProducerStamp) -> bool:
        """Return True unless the log has a batch of this transaction, which was verified."""
        known = self._entries.get((partition, stamp.producer_id))
        return known is None or not (
            known.is_open
            and known.producer_epoch == stamp.producer_epoch
            and known.transactional_id == stamp.transactional_id
        )

    async def verify(self, partition: PartitionId, log: UnifiedLog, stamp: ProducerStamp) -> Verified:
        """Verify a transaction, and return the token.

        Raises TransactionRefusedError, and RetryableError if an earlier transaction of the producer cannot be
        completed.
        """
        key = partition, stamp.producer_id
        for _ in range(_TRIES):
            was_open = key in self._entries and self._entries[key].is_open
            # Before the log is asked: a marker that is written meanwhile voids it.
            token = self._entries[key] = Verified(stamp.producer_epoch, stamp.transactional_id)
            try:
                found = await self._disks.of(log).run(
                    partial(open_transaction, log, partition, stamp.producer_id)
                )
                was_open = found is not None
                is_earlier = found is not None and found.producer_epoch < stamp.producer_epoch
                if not is_earlier and await self._is_verified(partition, stamp, found):
                    token.is_open = found is not None
                    return token
            except BaseException:
                self._restore(key, token, is_open=was_open)
                raise
            self._entries[key] = Verified(is_open=True)  # look for markers meanwhile
            if self.end_earlier is not None:
                await self.end_earlier(partition, found if is_earlier else None)
        raise RetryableError(
            f"the last transaction of producer {stamp.producer_id} is not complete in the log yet",
            remedy="retry",
        )

    async def _is_verified(
        self, partition: PartitionId, stamp: ProducerStamp, found: OpenTransaction | None
    ) -> bool:
        """Return False if a marker of the producer is pending."""
        sequence = stamp.base_sequence if found is None else max(found.first_sequence, _LEAST_SEQUENCE)
        producer = ProducerIdentity(stamp.producer_id, stamp.producer_epoch)
        verify = partial(
            self._table.verify,
            stamp.transactional_id or "",
            producer,
            FirstBatch(partition, sequence, stamp.adds_partition),
        )
        return await self._pool.run(verify) is Verification.VERIFIED

    def note_failure(self, key: Key, stamp: ProducerStamp) -> None:
        """Note that a batch was not appended, and that its producer will repeat it.

        Of more than 10,000 such producers and partitions, the oldest are forgotten.
        """
        failed = self._failed.pop(key, None)
        epoch, sequence = stamp.producer_epoch, stamp.base_sequence
        if failed is not None and failed[0] == epoch:
            sequence = min(sequence, failed[1])
        self._failed[key] = epoch, sequence
        if len(self._failed) > _MAX_FAILED:
            del self._failed[next(iter(self._failed))]

    def repeated(self, key: Key) -> None:
        """Note that the log has a batch of the producer, so it refuses gaps itself."""
        self._failed.pop(key, None)

    def follows_failed(self, key: Key, stamp: ProducerStamp) -> bool:
        """Return True if an earlier batch of the producer has failed and was not repeated yet.

        The log refuses such a gap itself, except if it has no state of the producer: then any sequence may be
        the first. The batch stays refused until then; `FailedProducers` says how long its producer retries
        it. Source: the lowest sequence of VerificationStateEntry in Kafka.
        """
        epoch, sequence = self._failed.get(key, (-1, 0))
        return epoch == stamp.producer_epoch and stamp.base_sequence > sequence

    def is_valid(self, key: Key, token: Verified) -> bool:
        """Return True if no marker of the producer was written since the verification began."""
        return self._entries.get(key) is token

    def appended(self, key: Key, token: Verified, *, is_open: bool) -> None:
        """Note that the log got a verified batch or refused it; `is_open`: a transaction is open now."""
        token.is_open = is_open
        if is_open:
            self.watch(key)  # a check that read the log before may have dropped it

    def drop(self, key: Key, token: Verified) -> None:
        """Forget a verification whose batch was not appended, or whose transaction is not open any more."""
        if self._entries.get(key) is token:
            del self._entries[key]

    def watch(self, key: Key) -> None:
        """Note a transaction that is open in the log, and not verified by this process."""
        self._entries.setdefault(key, Verified(is_open=True))

    def _restore(self, key: Key, token: Verified, *, is_open: bool) -> None:
        """Forget a verification that has failed; an open transaction stays watched."""
        self.drop(key, token)
        if is_open:
            self.watch(key)

    def void(self, key: Key, *, is_open: bool) -> None:
        """Void the verification, because the log may have got a marker; `is_open`: watch the transaction."""
        self._failed.pop(key, None)
        if is_open:
            self._entries[key] = Verified(is_open=True)
        else:
            self._entries.pop(key, None)

    def verify_again(self, partition: PartitionId | None = None) -> None:
        """Let the transactions of a partition, or all, be verified again: the catalog may have lost them."""
        for key in self._entries:
            if partition in {None, key[0]}:
                self._entries[key] = Verified(is_open=True)
