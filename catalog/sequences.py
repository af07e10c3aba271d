"""Checks the sequence numbers of idempotent producers, as Kafka does (KIP-98, KIP-360).

Source: ProducerAppendInfo and ProducerStateEntry in org.apache.kafka.storage.internals.log. Per producer and
partition the last five batches of the present epoch are known. A batch that equals one of them, by first and
last sequence number, is a duplicate. A producer that nobody knows here may begin with any number: its earlier
state may have expired with its records. Numbers go from 2^31 - 1 back to 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from catalog.model import RunRefusal, RunResult

if TYPE_CHECKING:
    from catalog.model import ProducerStamp

BATCHES_KEPT: Final = 5
_SEQUENCES: Final = 2**31


class KnownBatch(NamedTuple):
    """One appended batch of a producer: where its numbers begin and end, and its first offset."""

    base_sequence: int
    last_sequence: int
    base_offset: int


class ProducerState(NamedTuple):
    """What a partition knows of a producer: its epoch, and up to five batches of it, oldest first.

    Named tuples, since a commit may read thousands of them while it holds its locks.
    """

    producer_epoch: int
    batches: tuple[KnownBatch, ...]


def last_sequence(base_sequence: int, offset_count: int) -> int:
    """The number of the last of `offset_count` records of which the first has `base_sequence`."""
    return (base_sequence + offset_count - 1) % _SEQUENCES


def check_sequence(state: ProducerState | None, stamp: ProducerStamp, offset_count: int) -> RunResult | None:
    """None when the batch may be appended; otherwise what to answer: a duplicate's offset, or a refusal."""
    if state is None:
        return None
    if stamp.producer_epoch < state.producer_epoch:
        return RunResult(
            refusal=RunRefusal.INVALID_PRODUCER_EPOCH,
            detail=f"producer {stamp.producer_id} has epoch {stamp.producer_epoch}, "
            f"and epoch {state.producer_epoch} was seen before",
        )
    if stamp.producer_epoch > state.producer_epoch:
        return None if stamp.base_sequence == 0 else _out_of_order(stamp, "0 in a new epoch")
    last = last_sequence(stamp.base_sequence, offset_count)
    for known in state.batches:
        if known.base_sequence == stamp.base_sequence and known.last_sequence == last:
            return RunResult(base_offset=known.base_offset, duplicate=True)
    expected = (state.batches[-1].last_sequence + 1) % _SEQUENCES
    return None if stamp.base_sequence == expected else _out_of_order(stamp, str(expected))


def append_batch(
    state: ProducerState | None, stamp: ProducerStamp, offset_count: int, base_offset: int
) -> ProducerState:
    """The producer's state after its batch was appended at `base_offset`."""
    batch = KnownBatch(stamp.base_sequence, last_sequence(stamp.base_sequence, offset_count), base_offset)
    if state is None or state.producer_epoch != stamp.producer_epoch:
        return ProducerState(stamp.producer_epoch, (batch,))
    return ProducerState(stamp.producer_epoch, (*state.batches, batch)[-BATCHES_KEPT:])


def _out_of_order(stamp: ProducerStamp, expected: str) -> RunResult:
    return RunResult(
        refusal=RunRefusal.OUT_OF_ORDER_SEQUENCE,
        detail=f"producer {stamp.producer_id} sent sequence {stamp.base_sequence}, expected {expected}",
    )
