"""Comparison of batches in files with the states of their producers and transactions.

The caller reads the batches before it asks, so the catalog knows at least what the files have. A state that
has changed since is no contradiction: offsets only grow, and a batch that a job has removed is not judged.

What follows from the bytes:

- A batch at or after the last stable offset belongs to an open transaction, or its transaction has ended
  after an earlier one that is still open.
- An aborted range covers each batch whose next control batch aborts, and no batch whose next one commits.
  Jobs remove control batches, so this holds where no job has removed any.
- A compacted file has no batch in an aborted range of its producer.
- The state of a producer has its newest batches of the current epoch, with their sequence numbers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from catalog.commit.sequences import BATCH, ProducerState, is_ahead, last_sequence
from catalog.database import arrays
from catalog.database.sql_files import load_queries
from catalog.model import ProducerStamp

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from catalog.database.connection import Row
    from catalog.database.pool import Database
    from catalog.model import PartitionId

_SQL = load_queries("logged_batches")


class LoggedBatch(NamedTuple):
    """Batch of a producer at its offset in the log, as its file has it."""

    partition: PartitionId
    base_offset: int
    offset_count: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    is_transactional: bool
    is_compacted: bool


class WrongBatch(NamedTuple):
    """Batch that contradicts the catalog: the expected and the found state."""

    batch: LoggedBatch
    expected: str
    found: str


class LoggedBatches:
    """Batches in files of a catalog; part of `Catalog`, thread-safe."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def contradictions(self, batches: Sequence[LoggedBatch]) -> list[WrongBatch]:
        """Return the batches that contradict the catalog; takes one query."""
        params = {
            "topic_ids": arrays.uuids(each.partition.topic_id for each in batches),
            "partitions": arrays.integers([each.partition.partition for each in batches]),
            "offsets": arrays.bigints([each.base_offset for each in batches]),
            "producer_ids": arrays.bigints([each.producer_id for each in batches]),
            "transactional": arrays.bigints([int(each.is_transactional) for each in batches]),
        }
        found = []
        for row in self._database.read("logged_batches.facts_of", _SQL["facts_of"], params):
            batch = batches[row.number - 1]
            if batch.base_offset >= row.log_start_offset:
                found += [WrongBatch(batch, *fault) for fault in _faults(batch, row)]
        return found


def _faults(batch: LoggedBatch, row: Row) -> Iterator[tuple[str, str]]:
    if batch.is_transactional:
        yield from _faults_of_transaction(batch, row)
    if row.producer_epoch is not None and not batch.is_compacted:
        yield from _faults_of_producer(batch, ProducerState(row.producer_epoch, bytes(row.batches)))


def _faults_of_transaction(batch: LoggedBatch, row: Row) -> Iterator[tuple[str, str]]:
    is_open = row.open_offset is not None and row.open_offset <= batch.base_offset
    if row.aborted_end is not None:
        if batch.is_compacted:
            yield "no record of an aborted transaction", f"one that was aborted at offset {row.aborted_end}"
        elif row.has_all_controls and row.ends_in_commit:
            yield "a batch that is committed", f"an aborted transaction up to offset {row.aborted_end}"
    elif is_open:
        if batch.base_offset < row.last_stable_offset:
            yield "a last stable offset before the open transaction", f"{row.last_stable_offset}"
    elif batch.base_offset >= row.last_stable_offset or row.has_all_controls:
        if row.ends_in_commit is None:
            yield "a transaction that is open or has ended", "no open transaction, and no control batch"
        elif not row.ends_in_commit:
            yield "an aborted transaction", "a control batch that aborts it, and no range of offsets"


def _faults_of_producer(batch: LoggedBatch, state: ProducerState) -> Iterator[tuple[str, str]]:
    stamp = ProducerStamp(
        producer_id=batch.producer_id,
        producer_epoch=batch.producer_epoch,
        base_sequence=batch.base_sequence,
        is_transactional=batch.is_transactional,
    )
    kept = {base: (first, last) for first, last, base in BATCH.iter_unpack(state.batches)}
    own = batch.base_sequence, last_sequence(batch.base_sequence, batch.offset_count)
    if batch.base_offset in kept:
        if (state.producer_epoch, kept[batch.base_offset]) != (batch.producer_epoch, own):
            yield (
                f"a producer with epoch {batch.producer_epoch} and sequence numbers {own}",
                f"epoch {state.producer_epoch} and {kept[batch.base_offset]}",
            )
    elif batch.base_offset > max(kept, default=-1) and is_ahead(state, stamp):
        yield (
            f"a producer that has written sequence numbers {own} in epoch {batch.producer_epoch}",
            f"epoch {state.producer_epoch} and the batches {sorted(kept.values())}",
        )
