"""The fixed memory that remembers which keys were seen."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.typing as npt

from core.errors import InvalidInputError
from object_format.kernels.dedupe.fingerprints import WORDS
from object_format.kernels.dedupe.key_table import (
    COUNT_KEYS,
    COUNTS,
    DROP_EXPIRED_IF_ADDED,
    DROP_EXPIRED_TOMBSTONES,
    KEEP_TOMBSTONES,
    find_survivors,
)

SLOT_BYTES: Final = 4 * WORDS
_MAX_LOAD_PERCENT: Final = 95
_MAX_OVERHANG: Final = 16_384
"""Slots behind the last home slot, into which its neighbours may be pushed: at 95 % load, the chance that a
run reaches that far is below one in a billion."""
_MIN_SLOTS: Final = 64
_MIN_BYTES: Final = SLOT_BYTES * 16

Words = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.uint8]


def key_capacity(table_bytes: int) -> int:
    """How many keys a table of so many bytes takes, without making one."""
    return _home_slots(table_bytes) * _MAX_LOAD_PERCENT // 100


def _home_slots(table_bytes: int) -> int:
    """The slots of a table at which a search may begin; the rest is for their neighbours."""
    if table_bytes < _MIN_BYTES:
        raise InvalidInputError(
            f"a key table of {table_bytes} bytes is too small", remedy=f"give it {_MIN_BYTES} or more"
        )
    slots = table_bytes // SLOT_BYTES
    return slots - min(_MAX_OVERHANG, slots // 8)


class KeyTable:
    """Fingerprints of keys in `table_bytes` of memory, allocated once.

    One table serves one partition after the other: `clear` makes it empty, at a cost that goes with what was
    used. Not for use by several threads at once.
    """

    def __init__(self, table_bytes: int) -> None:
        self.capacity: int = key_capacity(table_bytes)
        """How many keys it takes."""
        self._all_home_slots = _home_slots(table_bytes)
        # Not np.zeros: only for empty arrays does numpy ask for huge pages, which spare the probes a tenth.
        self._slots = np.empty(table_bytes // SLOT_BYTES * WORDS, np.uint32)
        self._slots.fill(0)
        self.counts: npt.NDArray[np.int64] = np.zeros(COUNTS, np.int64)
        self._used: Words = self._slots[:0]
        self._home_slots = 0
        self.clear()

    @property
    def table_bytes(self) -> int:
        """All the memory that grows with the number of keys, which is the same before the first of them."""
        return self._slots.nbytes

    @property
    def count(self) -> int:
        """How many keys are in it."""
        return int(self.counts[COUNT_KEYS])

    def clear(self, expected_keys: int | None = None) -> None:
        """Forget all keys.

        With `expected_keys`, an upper bound, only as much memory is used as that many need to stay quick to
        find: small partitions then stay within the processor's caches, and cost little to clear.
        """
        self._used.view(np.uint8).fill(0)  # of bytes, numpy makes a memset
        self.counts.fill(0)
        wanted = self._all_home_slots if expected_keys is None else max(2 * expected_keys, _MIN_SLOTS)
        self._home_slots = min(wanted, self._all_home_slots)
        overhang = self._slots.size // WORDS - self._all_home_slots
        self._used = self._slots[: (self._home_slots + overhang) * WORDS]

    def find_survivors(
        self,
        words: Words,
        flags: Flags,
        count: int,
        *,
        newest_last: bool,
        drop_tombstones: bool,
        may_add: bool = True,
        no_older_records: bool = False,
    ) -> Flags:
        """A outcome (`kernels.key_table`) for each of `count` records; their keys go into the table.

        `no_older_records` keys have no older record: they need not be remembered for their tombstones to go.
        """
        tombstones = DROP_EXPIRED_TOMBSTONES if no_older_records else DROP_EXPIRED_IF_ADDED
        outcomes = np.empty(count, np.uint8)
        find_survivors(
            self._used,
            self._home_slots,
            self.capacity if may_add else 0,
            words,
            flags,
            count,
            newest_last,
            tombstones if drop_tombstones else KEEP_TOMBSTONES,
            outcomes,
            self.counts,
        )
        return outcomes
