"""Checks of the sequence numbers of idempotent producers, as in Kafka (KIP-98, KIP-360).

Source: ProducerAppendInfo and ProducerStateEntry in org.apache.kafka.storage.internals.log. A partition
stores the last five batches of each producer's current epoch. A batch with the first and last sequence number
of one of them is a duplicate. Sequence numbers wrap from 2^31 - 1 to 0.

A producer without state in the partition must begin with 0, unless its state may have expired; then it may
begin with any number. Kafka accepts any number in both cases, because its leader rarely rejects a batch and
then accepts the client's next one. Siltstone writes files in parallel: the first file of a producer may fail
and the next one succeed. Accepting any number would append the later records before the earlier ones. So a
producer must also begin with 0 while it has a batch of a failed file to send again.
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
    """State of a producer in one partition: its epoch and up to five batches, oldest first.

    `batches` has 16 bytes per batch (`BATCH`), as in the catalog's row. A commit may read and write thousands
    of states under its locks, and mostly needs the last batch only.
    """

    producer_epoch: int
    batches: bytes


def last_sequence(base_sequence: int, offset_count: int) -> int:
    """Return the sequence number of the last of `offset_count` records."""
    return (base_sequence + offset_count - 1) % SEQUENCES


def check_sequence(
    state: ProducerState | None, stamp: ProducerStamp, offset_count: int, first_new_producer_id: int
) -> RunResult | None:
    """Return None if the batch may be appended, otherwise a duplicate's offset or a refusal.

    `state` is None if the partition has no state of the producer. No state of a producer with an id of at
    least `first_new_producer_id` has expired in this partition.
    """
    if state is None:
        may_begin = stamp.base_sequence == 0 or stamp.producer_id < first_new_producer_id
        return None if may_begin else _out_of_order(stamp, "0 of a new producer")
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
    return _out_of_order(stamp, str(expected), is_behind=not is_ahead(state, stamp))


def _check_new_epoch(known_epoch: int, stamp: ProducerStamp) -> RunResult | None:
    if stamp.producer_epoch < known_epoch:
        return RunResult(
            refusal=RunRefusal.INVALID_PRODUCER_EPOCH,
            detail=f"producer {stamp.producer_id} has epoch {stamp.producer_epoch}, "
            f"and epoch {known_epoch} was seen before",
        )
    return None if stamp.base_sequence == 0 else _out_of_order(stamp, "0 in a new epoch")


def is_ahead(state: ProducerState | None, stamp: ProducerStamp) -> bool:
    """Return True if a batch comes after all batches that the partition has of its producer."""
    if state is None or stamp.producer_epoch != state.producer_epoch:
        return state is None or stamp.producer_epoch > state.producer_epoch
    return _distance(int.from_bytes(state.batches[-12:-8], "big") + 1, stamp.base_sequence) < SEQUENCES // 2


def is_in_log(verdict: RunResult, state: ProducerState | None, stamp: ProducerStamp) -> bool:
    """Return True if a batch that may not be appended is in the log, as far as the state tells.

    A partition appends a producer's batches without gaps, unless it had to append one after a gap. The state
    shows only the gaps between the last five batches; `catalog.commit.sequence_gaps` has the others.
    """
    if verdict.duplicate or state is None or stamp.producer_epoch != state.producer_epoch:
        return verdict.duplicate
    if is_ahead(state, stamp):
        return False
    kept = [(first, last) for first, last, _ in BATCH.iter_unpack(state.batches)]
    is_older = _distance(kept[0][0], stamp.base_sequence) >= SEQUENCES // 2
    return is_older or any(
        _distance(first, stamp.base_sequence) <= _distance(first, last) for first, last in kept
    )


def _distance(first: int, last: int) -> int:
    return (last - first) % SEQUENCES


def append_batch(
    state: ProducerState | None, stamp: ProducerStamp, offset_count: int, base_offset: int
) -> ProducerState:
    """Return the producer's state after its batch was appended at `base_offset`."""
    last = last_sequence(stamp.base_sequence, offset_count)
    batch = BATCH.pack(stamp.base_sequence, last, base_offset)
    if state is None or state.producer_epoch != stamp.producer_epoch:
        return ProducerState(stamp.producer_epoch, batch)
    return ProducerState(stamp.producer_epoch, state.batches[-BATCH.size * (BATCHES_KEPT - 1) :] + batch)


def insert_batch(
    state: ProducerState | None, stamp: ProducerStamp, offset_count: int, base_offset: int
) -> ProducerState:
    """Return the producer's state after its batch was readopted, whatever the producer has sent since.

    A batch of the state's epoch gets its place among the last five, so that a copy of it is a duplicate. The
    state does not change with a batch that is older than these, or of an earlier epoch.
    """
    if state is None or is_ahead(state, stamp):
        return append_batch(state, stamp, offset_count, base_offset)
    if stamp.producer_epoch != state.producer_epoch:
        return state
    last = last_sequence(stamp.base_sequence, offset_count)
    own = BATCH.pack(stamp.base_sequence, last, base_offset)
    older = sum(
        _distance(first, stamp.base_sequence) < SEQUENCES // 2
        for first, _, _ in BATCH.iter_unpack(state.batches)
    )
    batches = state.batches[: older * BATCH.size] + own + state.batches[older * BATCH.size :]
    return ProducerState(state.producer_epoch, batches[-BATCH.size * BATCHES_KEPT :])


def _out_of_order(stamp: ProducerStamp, expected: str, *, is_behind: bool = False) -> RunResult:
    return RunResult(
        is_behind=is_behind,
        refusal=RunRefusal.OUT_OF_ORDER_SEQUENCE,
        detail=f"producer {stamp.producer_id} sent sequence {stamp.base_sequence}, expected {expected}",
    )
