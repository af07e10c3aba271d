"""Decides what most commits are made of by columns: sections of one run that is taken as it comes.

It is when no producer stamped it, when its number follows the last one that is known of its producer, or when
nobody knows its producer and it may begin so. What `assign_section` would say of it then follows from a few
sums, and a thousand sections cost what fifty cost one by one, while their partitions are locked. All others
are left to it: duplicates, refusals, new epochs, and sections of several runs.
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from catalog.commit.sequences import BATCH, BATCHES_KEPT, SEQUENCES
from catalog.database.arrays import columns

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from catalog.database.connection import Row
    from catalog.model import SectionCommit

    Numbers = NDArray[np.int64]

_BATCH: Final = np.dtype([("first", ">i4"), ("last", ">i4"), ("offset", ">i8")])
_KEPT_BYTES: Final = BATCH.size * (BATCHES_KEPT - 1)


class LockedPartitions:
    """What a commit read of its partitions under their locks, by the index of their section in the file."""

    def __init__(self, rows: Sequence[Row], sections: int) -> None:
        """`rows` are those of `lock_partitions`; a partition that is gone has none."""
        self.is_there = np.zeros(sections, dtype=np.bool_)
        self._numbers = np.full((5, sections), -1, dtype=np.int64)
        found = np.fromiter(chain.from_iterable(rows), dtype=np.int64).reshape(len(rows), 6)
        indexes = found[:, 0] - 1
        self.is_there[indexes] = True
        self._numbers[:, indexes] = found[:, 1:].T
        self.log_start_offsets, self.log_end_offsets, self.leader_epochs = self._numbers[:3]
        self.max_timestamps, self.producers_from = self._numbers[3:]


class MovedProducers(NamedTuple):
    """Producers that go on: rows of `write_producers`, of the sections at `indexes`."""

    indexes: Numbers
    producer_ids: Numbers
    producer_epochs: Numbers
    batches: list[bytes]


class BulkAssignment(NamedTuple):
    """What the sections at `indexes` get: an extent each, whose offsets end their partition's log."""

    indexes: Numbers
    base_offsets: Numbers
    offset_counts: Numbers
    record_counts: Numbers
    min_timestamps: Numbers
    max_timestamps: Numbers
    producers: MovedProducers


class SingleRuns:
    """The sections of a file that have one run each, as columns; made while the server takes its locks."""

    def __init__(self, sections: Sequence[SectionCommit]) -> None:
        self._sections = len(sections)
        found = [
            (index, run.offset_count, run.record_count, run.min_timestamp, run.max_timestamp)
            for index, section in enumerate(sections)
            if len(section.runs) == 1
            for run in section.runs
        ]
        self._columns = columns(found, 5)
        stamped = [
            (index, stamp.producer_id, stamp.producer_epoch, stamp.base_sequence)
            for index, section in enumerate(sections)
            if len(section.runs) == 1 and (stamp := section.runs[0].producer) is not None
        ]
        self._stamps = columns(stamped, 4)

    def assign(self, locked: LockedPartitions, named: Sequence[int], rows: Sequence[Row]) -> BulkAssignment:
        """Decide those that can be; `rows` are of `read_producers`, `named` has the sections they number."""
        stamped, producer_ids, epochs, firsts = self._stamps
        known = _Known(self._sections, named, rows)
        begins = (firsts == 0) | (producer_ids < locked.producers_from[stamped])
        goes_on = (known.is_new[stamped] & begins) | (
            (known.epochs[stamped] == epochs) & ((known.last_sequences[stamped] + 1) % SEQUENCES == firsts)
        )
        taken = locked.is_there.copy()
        taken[stamped] &= goes_on
        indexes = self._columns[0]
        indexes, counts, records, smallest, largest = self._columns[:, taken[indexes]]
        bases = locked.log_end_offsets[indexes]
        stays = taken[stamped]
        stamped, producer_ids, epochs, firsts = self._stamps[:, stays]
        by_section = np.zeros(self._sections, dtype=np.int64)
        by_section[indexes] = counts
        batches = np.empty(len(stamped), dtype=_BATCH)
        batches["first"] = firsts
        batches["last"] = (firsts + by_section[stamped] - 1) % SEQUENCES
        batches["offset"] = locked.log_end_offsets[stamped]
        moved = MovedProducers(stamped, producer_ids, epochs, known.appended(stamped, batches.tobytes()))
        return BulkAssignment(indexes, bases, counts, records, smallest, largest, moved)


class _Known:
    """What is known of the producers of single runs, by section; it is nonsense for others."""

    def __init__(self, sections: int, named: Sequence[int], rows: Sequence[Row]) -> None:
        self.is_new = np.ones(sections, dtype=np.bool_)
        self.epochs = np.full(sections, -1, dtype=np.int64)
        self.last_sequences = np.full(sections, -1, dtype=np.int64)
        self._batches: dict[int, bytes] = {}
        if not rows:
            return
        numbers, epochs, batches = zip(*rows, strict=True)
        indexes = [named[number - 1] for number in numbers]
        last = np.frombuffer(b"".join([each[-BATCH.size :] for each in batches]), dtype=_BATCH)
        self.is_new[indexes] = False
        self.epochs[indexes] = epochs
        self.last_sequences[indexes] = last["last"]
        self._batches = dict(zip(indexes, batches, strict=True))

    def appended(self, indexes: Numbers, batches: bytes) -> list[bytes]:
        """The states of the producers at `indexes` once the batch of each, 16 bytes, has come to them."""
        kept = self._batches
        return [
            kept.get(index, b"")[-_KEPT_BYTES:] + batches[place * BATCH.size : (place + 1) * BATCH.size]
            for place, index in enumerate(indexes.tolist())
        ]
