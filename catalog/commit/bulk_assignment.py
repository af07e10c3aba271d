"""Vectorized assignment of offsets to sections that have one run and need no special treatment.

Most commits consist of such sections. Their run has no producer stamp, or its sequence number follows the
producer's last one, or its producer is new to the partition and may begin with that number. The results are
those of `assign_section`, but a thousand sections take as long as fifty one by one, and their partitions are
locked meanwhile. All other sections are left to `assign_section`: duplicates, refusals, new epochs, and
sections of several runs, and transactions.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from catalog.commit.sequences import BATCH, BATCHES_KEPT, SEQUENCES
from catalog.database.arrays import columns

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from catalog.database.connection import TupleRow
    from catalog.model import SectionCommit

    Integers = NDArray[np.int64]

_BATCH: Final = np.dtype([("first", ">i4"), ("last", ">i4"), ("offset", ">i8")])
_KEPT_BYTES: Final = BATCH.size * (BATCHES_KEPT - 1)


class LockedPartitions:
    """Columns of the locked partitions, by the index of their section in the file.

    `exists` is False for a partition that does not exist; its values in the other columns are -1.
    `leader_epochs` is the epoch of the commit, and `begins_epoch` is True for partitions without earlier
    records in it. `has_transactions` is False for partitions without transactional batches.
    """

    def __init__(self, rows: Sequence[TupleRow], sections: int, epoch: int) -> None:
        """Take the rows of `lock_partitions`, and the epoch of the commit."""
        self.exists = np.zeros(sections, dtype=np.bool_)
        by_section = np.full((6, sections), -1, dtype=np.int64)
        numbers, *found = np.fromiter(chain.from_iterable(rows), dtype=np.int64).reshape(len(rows), 7).T
        indexes = numbers - 1
        self.exists[indexes] = True
        by_section[:, indexes] = found
        (
            self.log_start_offsets,
            self.log_end_offsets,
            self.leader_epochs,
            self.max_timestamps,
            self.first_new_producer_ids,
            has_transactions,
        ) = by_section
        self.has_transactions = has_transactions != 0
        self.begins_epoch = self.exists & (self.leader_epochs < epoch)
        self.leader_epochs = np.where(self.exists, epoch, -1)


class ProducerUpdates(NamedTuple):
    """Columns of `write_producers`: new states of the producers of the sections at `indexes`."""

    indexes: Integers
    producer_ids: Integers
    producer_epochs: Integers
    batches: list[bytes]


class BulkAssignment(NamedTuple):
    """Columns of one extent for each of the sections at `indexes`; the extent ends its partition's log."""

    indexes: Integers
    base_offsets: Integers
    offset_counts: Integers
    record_counts: Integers
    min_timestamps: Integers
    max_timestamps: Integers
    producers: ProducerUpdates


class SingleRuns:
    """Columns of the sections of a file that have one run; if requested, only of runs without a producer.

    Sections whose index is `excluded` are left out. Without `accepts_expired`, a producer that has no state
    must begin with 0, although it may have expired.
    """

    def __init__(
        self,
        sections: Sequence[SectionCommit],
        failed_producers: Collection[tuple[int, int]] = (),
        *,
        with_producers: bool = True,
        accepts_expired: bool = True,
        excluded: Collection[int] = (),
    ) -> None:
        self._sections = len(sections)
        runs = [
            (index, run.offset_count, run.record_count, run.min_timestamp, run.max_timestamp)
            for index, section in enumerate(sections)
            if len(section.runs) == 1 and index not in excluded
            for run in section.runs
            if run.producer is None or (with_producers and not run.producer.is_transactional)
        ]
        self._runs = columns(runs, 5)
        stamps = [
            (index, stamp.producer_id, stamp.producer_epoch, stamp.base_sequence)
            for index, section in enumerate(sections)
            if with_producers
            and len(section.runs) == 1
            and (stamp := section.runs[0].producer) is not None
            and not stamp.is_transactional
        ]
        self._stamps = columns(stamps, 4)
        self._may_have_expired = np.full(len(stamps), accepts_expired)
        if failed_producers and accepts_expired:
            self._may_have_expired[:] = [stamp[1:3] not in failed_producers for stamp in stamps]

    def assign(
        self, locked: LockedPartitions, producer_sections: Sequence[int], rows: Sequence[TupleRow]
    ) -> BulkAssignment:
        """Assign offsets to all sections that qualify.

        `rows` are the rows of `read_producers`; their ordinals (from 1) refer to `producer_sections`.
        """
        indexes, producer_ids, epochs, sequences = self._stamps
        known = _KnownProducers(self._sections, producer_sections, rows)
        may_have_expired = self._may_have_expired & (producer_ids < locked.first_new_producer_ids[indexes])
        may_begin = (sequences == 0) | may_have_expired
        is_next = (known.epochs[indexes] == epochs) & (
            (known.last_sequences[indexes] + 1) % SEQUENCES == sequences
        )
        qualifies = locked.exists.copy()
        qualifies[indexes] &= (known.is_new[indexes] & may_begin) | is_next
        stamps = self._stamps[:, qualifies[indexes]]
        run_indexes = self._runs[0]
        runs = self._runs[:, qualifies[run_indexes]]
        run_indexes, counts, record_counts, min_timestamps, max_timestamps = runs
        base_offsets = locked.log_end_offsets[run_indexes]
        producers = self._updates(locked, known, stamps, run_indexes, counts)
        return BulkAssignment(
            run_indexes, base_offsets, counts, record_counts, min_timestamps, max_timestamps, producers
        )

    def _updates(
        self,
        locked: LockedPartitions,
        known: _KnownProducers,
        stamps: Integers,
        run_indexes: Integers,
        counts: Integers,
    ) -> ProducerUpdates:
        indexes, producer_ids, epochs, sequences = stamps
        counts_by_section = np.zeros(self._sections, dtype=np.int64)
        counts_by_section[run_indexes] = counts
        batches = np.empty(len(indexes), dtype=_BATCH)
        batches["first"] = sequences
        batches["last"] = (sequences + counts_by_section[indexes] - 1) % SEQUENCES
        batches["offset"] = locked.log_end_offsets[indexes]
        return ProducerUpdates(indexes, producer_ids, epochs, known.append(indexes, batches.tobytes()))


class _KnownProducers:
    """Stored states of the producers of single runs, by section; meaningless for other sections."""

    def __init__(self, sections: int, producer_sections: Sequence[int], rows: Sequence[TupleRow]) -> None:
        self.is_new = np.ones(sections, dtype=np.bool_)
        self.epochs = np.full(sections, -1, dtype=np.int64)
        self.last_sequences = np.full(sections, -1, dtype=np.int64)
        self._batches: dict[int, bytes] = {}
        if not rows:
            return
        numbers, epochs, batches = zip(*rows, strict=True)
        indexes = [producer_sections[number - 1] for number in numbers]
        last = np.frombuffer(b"".join([each[-BATCH.size :] for each in batches]), dtype=_BATCH)
        self.is_new[indexes] = False
        self.epochs[indexes] = epochs
        self.last_sequences[indexes] = last["last"]
        self._batches = dict(zip(indexes, batches, strict=True))

    def append(self, indexes: Integers, batches: bytes) -> list[bytes]:
        """Return the batches of the producers at `indexes`, each with its new batch (16 bytes) appended."""
        stored = self._batches
        return [
            stored.get(index, b"")[-_KEPT_BYTES:] + batches[number * BATCH.size : (number + 1) * BATCH.size]
            for number, index in enumerate(indexes.tolist())
        ]
