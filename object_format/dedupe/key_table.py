"""The key table: fixed memory for the fingerprints of seen keys."""

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
"""Slots after the last home slot, for fingerprints that are displaced to the end.

At 95 % load, the probability that a run of occupied slots exceeds this length is below one in a billion.
"""
_MIN_SLOTS: Final = 64
_MIN_BYTES: Final = SLOT_BYTES * 16

Words = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.uint8]


def key_capacity(table_bytes: int) -> int:
    """Return the number of keys that fit into a table of this size, without creating one."""
    return _home_slots(table_bytes) * _MAX_LOAD_PERCENT // 100


def _home_slots(table_bytes: int) -> int:
    """Return the number of slots where a search can start; the remaining ones are for displaced entries."""
    if table_bytes < _MIN_BYTES:
        raise InvalidInputError(
            f"a key table of {table_bytes} bytes is too small", remedy=f"use at least {_MIN_BYTES} bytes"
        )
    slots = table_bytes // SLOT_BYTES
    return slots - min(_MAX_OVERHANG, slots // 8)


class KeyTable:
    """Fingerprints of keys in `table_bytes` of memory, allocated once.

    A table serves one partition after the other: `clear` empties it, at a cost that depends on the used part.
    It is not thread-safe.
    """

    def __init__(self, table_bytes: int) -> None:
        self.capacity: int = key_capacity(table_bytes)
        """Maximum number of keys."""
        self._all_home_slots = _home_slots(table_bytes)
        # Not np.zeros: numpy requests huge pages for np.empty only. They make probes a tenth faster.
        self._slots = np.empty(table_bytes // SLOT_BYTES * WORDS, np.uint32)
        self._used: Words = self._slots
        self.counts: npt.NDArray[np.int64] = np.zeros(COUNTS, np.int64)
        self.clear()

    @property
    def table_bytes(self) -> int:
        """Memory of the table, which does not depend on the number of keys in it."""
        return self._slots.nbytes

    @property
    def count(self) -> int:
        """Number of keys in the table."""
        return int(self.counts[COUNT_KEYS])

    def clear(self, expected_keys: int | None = None) -> None:
        """Remove all keys.

        `expected_keys`, an upper bound, limits the used memory to what that many keys need for fast searches.
        Small partitions then stay within the processor's caches and are cheap to clear.
        """
        self._used.view(np.uint8).fill(0)  # numpy uses memset for bytes
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
        """Return an outcome (`kernels.dedupe.key_table`) for each record, and add the keys to the table.

        With `no_older_records`, the keys need not be added for their expired tombstones to be dropped.
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
