"""Rules of a transactional id: its current producer, and the operations of that producer.

The functions are pure. They return the next state, or raise TransactionRefusedError. The caller has locked
the id's row, and writes the result in the same database transaction.

Source: TransactionCoordinator and TransactionMetadata in kafka.coordinator.transaction. Two differences:

- The end of a transaction is one database transaction. So no intermediate state makes clients repeat
  requests (CONCURRENT_TRANSACTIONS).
- A producer that initializes itself again in an ongoing transaction, and names its current epoch (KIP-360),
  continues with the next epoch, as in Kafka 4.3. Kafka 4.0 aborts the transaction and fences the producer.

An epoch is never larger than `MAX_EPOCH`. A producer gets at most `MAX_EPOCH - 1`, so that it can be fenced.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final, NamedTuple

from catalog.errors import TransactionRefusal, TransactionRefusedError

MAX_EPOCH: Final = 2**15 - 1
NO_EPOCH: Final = -1
NO_PRODUCER_ID: Final = -1


class TransactionState(StrEnum):
    """State of a transactional id; `EMPTY` before the first transaction of a producer."""

    EMPTY = "empty"
    ONGOING = "ongoing"
    COMMITTED = "committed"
    ABORTED = "aborted"


class ProducerIdentity(NamedTuple):
    """Producer id and epoch that a request names."""

    producer_id: int
    producer_epoch: int


NOBODY: Final = ProducerIdentity(NO_PRODUCER_ID, NO_EPOCH)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionalProducer:
    """State of a transactional id.

    `last` is the identity before the last change of the epoch, if a retry of the request that changed it may
    follow. `bumps_epoch` is True if the last transaction ended with a new epoch (KIP-890).
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState = TransactionState.EMPTY
    last: ProducerIdentity = NOBODY
    bumps_epoch: bool = False
    started_ms: int | None = None

    @property
    def identity(self) -> ProducerIdentity:
        """The current producer id and epoch."""
        return ProducerIdentity(self.producer_id, self.producer_epoch)

    @property
    def is_exhausted(self) -> bool:
        """True if the producer id has no further epoch for a producer."""
        return _is_exhausted(self.producer_epoch)


class Ending(NamedTuple):
    """End of a transaction: its outcome, the epoch of its control batches, and the next state."""

    commits: bool
    control_epoch: int
    next: TransactionalProducer


def initialize(
    known: TransactionalProducer, expected: ProducerIdentity | None, timeout_ms: int, new_producer_id: int
) -> TransactionalProducer:
    """Return the state of a new producer of an id without an ongoing transaction.

    `expected` is the identity of a producer that continues after an error. It is the last identity in the
    first request after a loss of commits. `new_producer_id` is used if `needs_producer_id` says so.
    """
    is_last = expected is not None and expected == known.last
    if is_last and known.producer_epoch < MAX_EPOCH:  # a retry after a lost response
        return replace(known, timeout_ms=timeout_ms, state=TransactionState.EMPTY, bumps_epoch=False)
    if expected is not None and expected != known.identity and not is_last:
        raise _fenced(known, expected)
    last = expected if expected is not None else NOBODY
    return TransactionalProducer(
        producer_id=new_producer_id if known.is_exhausted else known.producer_id,
        producer_epoch=0 if known.is_exhausted else known.producer_epoch + 1,
        timeout_ms=timeout_ms,
        last=last,
    )


def fence(known: TransactionalProducer) -> Ending:
    """Return the abort of an ongoing transaction by the catalog, whose producer can do nothing any more.

    The last producer before a loss of commits may still initialize itself.
    """
    epoch = min(known.producer_epoch + 1, MAX_EPOCH)
    fenced = TransactionalProducer(
        producer_id=known.producer_id,
        producer_epoch=epoch,
        timeout_ms=known.timeout_ms,
        state=TransactionState.ABORTED,
        last=known.last,
    )
    return Ending(commits=False, control_epoch=epoch, next=fenced)


def interrupt(known: TransactionalProducer, expected: ProducerIdentity | None) -> Ending:
    """Return the abort of an ongoing transaction by a producer that initializes itself.

    If it names the current identity, it is the same producer, and may continue. So may the last producer
    before a loss of commits: an ongoing transaction has no other `last`.
    """
    if expected is not None and expected not in {known.identity, known.last}:
        raise _fenced(known, expected)
    return fence(known)


def begin(known: TransactionalProducer, producer: ProducerIdentity, now_ms: int) -> TransactionalProducer:
    """Return the state after the producer has added something to its transaction."""
    require_current(known, producer)
    if known.state is TransactionState.ONGOING:
        return known
    return replace(
        known,
        state=TransactionState.ONGOING,
        started_ms=now_ms,
        last=NOBODY,
        bumps_epoch=False,
    )


def needs_producer_id(known: TransactionalProducer) -> bool:
    """Return True if the next change of the epoch needs a new producer id."""
    return known.is_exhausted


def end(
    known: TransactionalProducer,
    producer: ProducerIdentity,
    new_producer_id: int,
    *,
    commits: bool,
    bumps_epoch: bool,
) -> Ending | None:
    """Return the end of a transaction by its producer; None if it has ended so, and this is a retry.

    With `bumps_epoch` (KIP-890), the producer continues with the next epoch, and may abort a transaction to
    which it has added nothing.
    """
    outcome = TransactionState.COMMITTED if commits else TransactionState.ABORTED
    if known.bumps_epoch and producer == known.last:
        if known.state is outcome:
            return None
        raise _invalid_state(known, outcome)
    require_current(known, producer)
    if known.state is not TransactionState.ONGOING:
        if not bumps_epoch and not known.bumps_epoch and known.state is outcome:
            return None
        if not bumps_epoch or commits:
            raise _invalid_state(known, outcome)
    if not bumps_epoch:
        ended = replace(known, state=outcome, started_ms=None)
        return Ending(commits=commits, control_epoch=known.producer_epoch, next=ended)
    is_exhausted = known.is_exhausted
    ended = TransactionalProducer(
        producer_id=new_producer_id if is_exhausted else known.producer_id,
        producer_epoch=0 if is_exhausted else known.producer_epoch + 1,
        timeout_ms=known.timeout_ms,
        state=outcome,
        last=known.identity,
        bumps_epoch=True,
    )
    return Ending(commits=commits, control_epoch=min(known.producer_epoch + 1, MAX_EPOCH), next=ended)


def require_current(known: TransactionalProducer, producer: ProducerIdentity) -> None:
    """Raise TransactionRefusedError unless the producer is the current one."""
    if producer.producer_id != known.producer_id:
        raise unknown_producer(producer.producer_id)
    if producer.producer_epoch != known.producer_epoch:
        raise _fenced(known, producer)


def unknown_producer(producer_id: int) -> TransactionRefusedError:
    """Return the error for a producer id that the transactional id does not have."""
    return TransactionRefusedError(
        TransactionRefusal.INVALID_PRODUCER_ID_MAPPING,
        f"producer {producer_id} is not the producer of this transactional id",
    )


def _is_exhausted(epoch: int) -> bool:
    return epoch >= MAX_EPOCH - 1


def _fenced(known: TransactionalProducer, producer: ProducerIdentity) -> TransactionRefusedError:
    return TransactionRefusedError(
        TransactionRefusal.PRODUCER_FENCED,
        f"producer {producer.producer_id} with epoch {producer.producer_epoch} was replaced by producer "
        f"{known.producer_id} with epoch {known.producer_epoch}",
    )


def _invalid_state(known: TransactionalProducer, outcome: TransactionState) -> TransactionRefusedError:
    return TransactionRefusedError(
        TransactionRefusal.INVALID_TXN_STATE,
        f"the transaction cannot become {outcome.value}: the state of producer {known.producer_id} is "
        f"{known.state.value}",
    )
