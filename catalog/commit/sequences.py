"""Checks the sequence numbers of idempotent producers, as Kafka does (KIP-98, KIP-360).

Source: ProducerAppendInfo and ProducerStateEntry in org.apache.kafka.storage.internals.log. Per producer and
partition the last five batches of the present epoch are known. A batch that equals one of them, by first and
last sequence number, is a duplicate. Numbers go from 2^31 - 1 back to 0.

A producer that nobody knows here begins with 0, unless it can have been known and forgotten: then with any
number. Kafka takes any number from either, for its leader hardly ever refuses a batch and takes the next of
the same client. Here the file of one may fail while the next one's does not, and a later record would stand
where the first is to go.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final, NamedTuple

from catalog.model import RunRefusal, RunResult

if TYPE_CHECKING:
    from catalog.model import ProducerStamp

BATCHES_KEPT: Final = 5
BATCH: Final = struct.Struct(">iiq")  # first sequence, last sequence, base offset
SEQUENCES: Final = 2**31


class ProducerState(NamedTuple):
    """What a partition knows of a producer: its epoch, and up to five batches of it, oldest first.

    `batches` is as in the catalog's row, 16 bytes each (`BATCH`): a commit may read and write thousands of
    states while it holds its locks, and mostly looks at the end of each alone.
    """

    producer_epoch: int
    batches: bytes


def last_sequence(base_sequence: int, offset_count: int) -> int:
    """The number of the last of `offset_count` records of which the first has `base_sequence`."""
    return (base_sequence + offset_count - 1) % SEQUENCES


def check_sequence(
    state: ProducerState | None, stamp: ProducerStamp, offset_count: int, producers_from: int
) -> RunResult | None:
    """None when the batch may be appended; otherwise what to answer: a duplicate's offset, or a refusal.

    No producer with id `producers_from` or above was forgotten by the partition.
    """
    if state is None:
        begins = stamp.base_sequence == 0 or stamp.producer_id < producers_from
        return None if begins else _out_of_order(stamp, "0 of a new producer")
    epoch, batches = state
    if stamp.producer_epoch != epoch:
        return _check_new_epoch(epoch, stamp)
    expected = (int.from_bytes(batches[-12:-8], "big") + 1) % SEQUENCES
    if stamp.base_sequence == expected:
        return None
    last = last_sequence(stamp.base_sequence, offset_count)
    for known_first, known_last, base_offset in BATCH.iter_unpack(batches):
        if known_first == stamp.base_sequence and known_last == last:
            return RunResult(base_offset=base_offset, duplicate=True)
    return _out_of_order(stamp, str(expected))


def _check_new_epoch(known_epoch: int, stamp: ProducerStamp) -> RunResult | None:
    if stamp.producer_epoch < known_epoch:
        return RunResult(
            refusal=RunRefusal.INVALID_PRODUCER_EPOCH,
            detail=f"producer {stamp.producer_id} has epoch {stamp.producer_epoch}, "
            f"and epoch {known_epoch} was seen before",
        )
    return None if stamp.base_sequence == 0 else _out_of_order(stamp, "0 in a new epoch")


def append_batch(
    state: ProducerState | None, stamp: ProducerStamp, offset_count: int, base_offset: int
) -> ProducerState:
    """The producer's state after its batch was appended at `base_offset`."""
    last = last_sequence(stamp.base_sequence, offset_count)
    batch = BATCH.pack(stamp.base_sequence, last, base_offset)
    if state is None or state.producer_epoch != stamp.producer_epoch:
        return ProducerState(stamp.producer_epoch, batch)
    return ProducerState(stamp.producer_epoch, state.batches[-BATCH.size * (BATCHES_KEPT - 1) :] + batch)


def _out_of_order(stamp: ProducerStamp, expected: str) -> RunResult:
    return RunResult(
        refusal=RunRefusal.OUT_OF_ORDER_SEQUENCE,
        detail=f"producer {stamp.producer_id} sent sequence {stamp.base_sequence}, expected {expected}",
    )
