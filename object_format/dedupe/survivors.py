"""Result of pass 1, and its collection from the outcomes of single records."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from object_format.kernels.dedupe.key_table import (
    COUNT_INVALID,
    COUNT_KEYS,
    COUNT_OUTSIDE,
    COUNT_TOMBSTONES_DROPPED,
    collect,
    count_survivors,
)
from object_format.offset_set import OffsetSet, SetWindow

if TYPE_CHECKING:
    from object_format.dedupe.key_table import Flags, KeyTable, Words


_PENDING_OFFSETS: Final = 1 << 17
"""1 MiB of offsets."""


@dataclass(kw_only=True)
class Survivors:
    """Result of pass 1 for one partition. Offsets are absolute.

    `tombstones` is the subset of `offsets` whose records have no value. `keys` is the number of keys in the
    table, and `keys_outside_table` the number of records that survive because their keys did not fit.
    `records_invalid` counts records without a key. `max_buffer_bytes` is the largest amount of memory for
    retained or opened records. The windows give pass 2 access to both sets, which must not change any
    more.
    """

    offsets: OffsetSet
    tombstones: OffsetSet
    records_in: int
    keys: int
    keys_outside_table: int
    tombstones_dropped: int
    records_invalid: int
    max_buffer_bytes: int

    @cached_property
    def offset_window(self) -> SetWindow:
        """Window of `offsets`."""
        return SetWindow(self.offsets)

    @cached_property
    def tombstone_window(self) -> SetWindow:
        """Window of `tombstones`."""
        return SetWindow(self.tombstones)

    @property
    def exact(self) -> bool:
        """True if no key survives twice."""
        return self.keys_outside_table == 0

    @property
    def records_out(self) -> int:
        """Number of survivors."""
        return len(self.offsets)

    def between(self, first: int, last: int) -> Survivors:
        """Return the survivors with offsets in [first, last]; the counts are not changed."""
        return replace(
            self,
            offsets=self.offsets.restricted(first, last),
            tombstones=self.tombstones.restricted(first, last),
        )


class SurvivingOffsets(NamedTuple):
    """Offsets of the survivors of one call, ascending, and the tombstones among them."""

    offsets: npt.NDArray[np.int64]
    tombstones: npt.NDArray[np.int64]


class _Pending:
    """Offsets that are collected and added to a set in bulk."""

    def __init__(self) -> None:
        self._set = OffsetSet()
        self._parts: list[npt.NDArray[np.int64]] = []
        self._count = 0

    def add(self, offsets: npt.NDArray[np.int64]) -> None:
        """Add ascending offsets that were not added before."""
        if not offsets.size:
            return
        if self._parts and (offsets[-1] >= self._parts[-1][0] or self._count >= _PENDING_OFFSETS):
            self._flush()
        self._parts.append(offsets)
        self._count += offsets.size

    def take(self) -> OffsetSet:
        """Return all offsets, and start again."""
        self._flush()
        offsets, self._set = self._set, OffsetSet()
        offsets.pack()
        return offsets

    def _flush(self) -> None:
        if self._parts:
            self._set.add(np.concatenate(self._parts[::-1]))
        self._parts.clear()
        self._count = 0


class SurvivorCollector:
    """Collects the survivors that a key table determines.

    The table is cleared first; `expected_keys` is that of `KeyTable.clear`.
    """

    def __init__(self, table: KeyTable, *, expected_keys: int | None = None) -> None:
        table.clear(expected_keys)
        self._table = table
        self._records_in = 0
        self._offsets, self._tombstones = _Pending(), _Pending()

    def decide(
        self,
        words: Words,
        offsets: npt.NDArray[np.int64],
        flags: Flags,
        count: int,
        *,
        newest_last: bool,
        drop_tombstones: bool,
        may_add: bool = True,
        no_older_records: bool = False,
    ) -> SurvivingOffsets:
        """Decide on `count` records like `KeyTable.find_survivors`. Each record may be passed only once."""
        outcomes = self._table.find_survivors(
            words,
            flags,
            count,
            newest_last=newest_last,
            drop_tombstones=drop_tombstones,
            may_add=may_add,
            no_older_records=no_older_records,
        )
        self._records_in += count
        kept, tombstones = (np.empty(each + 1, np.int64) for each in count_survivors(outcomes, count))
        collect(offsets, outcomes, count, kept, tombstones)
        surviving = SurvivingOffsets(kept[:-1], tombstones[:-1])
        self._offsets.add(surviving.offsets)
        self._tombstones.add(surviving.tombstones)
        return surviving

    def count_superseded(self, count: int) -> None:
        """Account for records that are dropped because a newer record of the same key is decided later."""
        self._records_in += count

    @property
    def exact(self) -> bool:
        """True if all keys fitted into the table so far."""
        return not self._table.counts[COUNT_OUTSIDE]

    def finish(self, *, max_buffer_bytes: int) -> Survivors:
        """Return the survivors since the previous call."""
        records_in, self._records_in = self._records_in, 0
        counts = self._table.counts
        return Survivors(
            offsets=self._offsets.take(),
            tombstones=self._tombstones.take(),
            records_in=records_in,
            keys=int(counts[COUNT_KEYS]),
            keys_outside_table=int(counts[COUNT_OUTSIDE]),
            tombstones_dropped=int(counts[COUNT_TOMBSTONES_DROPPED]),
            records_invalid=int(counts[COUNT_INVALID]),
            max_buffer_bytes=max_buffer_bytes,
        )
