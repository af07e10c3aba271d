"""Pass 1: which records of a partition survive.

Sections are fed newest first. A record survives when its key was not seen yet, so the table holds
fingerprints and nothing else. Inside a section, records come oldest first: unless all its keys are distinct,
they are held back until its end and then judged from the last to the first.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
from pyroaring import BitMap64

from bedrock.errors import FatalError, InvalidInputError
from object_format.bitmaps import BitmapWindow, bitmap_of
from object_format.buffers import Bytes, readable
from object_format.errors import MalformedBatchError
from object_format.kernels.fingerprints import WORDS, fingerprint_rows
from object_format.kernels.key_table import (
    COUNT_INVALID,
    COUNT_KEYS,
    COUNT_OUTSIDE,
    COUNT_TOMBSTONES_DROPPED,
    KEEP,
    KEEP_TOMBSTONE,
    collect,
)
from object_format.kernels.layout import CODEC_MASK
from object_format.payloads import Scratch, open_batches
from object_format.record_batch import BatchRows, scan_rising_batches

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from object_format.dedupe.key_table import Flags, KeyTable, Words

MAX_HELD_RECORDS: Final = 2_000_000
"""How many records of one section are held back at most: 42 MB of fingerprints, offsets and flags. An
ingestion file's section of 8 MiB has fewer than 1.2 million, unless its batches are compressed beyond all
measure."""

_STEP_RECORDS: Final = 32_768
"""How many records are fingerprinted before they are judged, where nothing must be held back."""

_SEED: Final = struct.Struct("<QQ")


@dataclass(slots=True, kw_only=True)
class Survivors:
    """The answer of pass 1 for one partition; offsets are absolute.

    `tombstones` is the part of `offsets` whose records have no value. `keys` are those in the table;
    `keys_outside_table` counts records that were kept because their keys were not. When it is 0, the answer
    is `exact`: no key survives twice. `records_invalid` had no key. `max_buffer_bytes` is the most that was
    held back. The windows are pass 2's view of both bitmaps, which must not change any more.
    """

    offsets: BitMap64
    tombstones: BitMap64
    records_in: int
    keys: int
    keys_outside_table: int
    tombstones_dropped: int
    records_invalid: int
    max_buffer_bytes: int
    offset_window: BitmapWindow = field(init=False, repr=False, compare=False)
    tombstone_window: BitmapWindow = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.offset_window = BitmapWindow(self.offsets)
        self.tombstone_window = BitmapWindow(self.tombstones)

    @property
    def exact(self) -> bool:
        """No key is there twice."""
        return self.keys_outside_table == 0

    @property
    def records_out(self) -> int:
        """How many survive."""
        return len(self.offsets)


class _Held:
    """Records that wait to be judged: arrays that grow up to a bound."""

    def __init__(self) -> None:
        self.count = 0
        self._reserve(_STEP_RECORDS)

    def _reserve(self, room: int) -> None:
        self.words: Words = np.empty(room * WORDS, np.uint32)
        self.offsets: npt.NDArray[np.int64] = np.empty(room, np.int64)
        self.flags: Flags = np.empty(room, np.uint8)

    @property
    def full(self) -> bool:
        return self.count == self.offsets.size

    @property
    def nbytes(self) -> int:
        return self.words.nbytes + self.offsets.nbytes + self.flags.nbytes

    def grow(self, bound: int) -> bool:
        """Make more room; False when that is not allowed."""
        if self.offsets.size >= bound:
            return False
        words, offsets, flags = self.words, self.offsets, self.flags
        self._reserve(min(2 * self.offsets.size, bound))
        self.words[: words.size] = words
        self.offsets[: offsets.size] = offsets
        self.flags[: flags.size] = flags
        return True


class SurvivorFinder:
    """Finds the survivors of one partition; the table is cleared first.

    `seed` (16 bytes) keys the fingerprints. `reaches_log_start` tells that nothing older than what is fed
    exists, so that tombstones whose delete horizon has come by `now_ms` may go. `expected_records` is an
    upper bound of what will be fed; it makes small partitions cheaper.
    """

    def __init__(
        self,
        table: KeyTable,
        seed: bytes,
        *,
        reaches_log_start: bool,
        now_ms: int,
        expected_records: int | None = None,
        max_held_records: int = MAX_HELD_RECORDS,
    ) -> None:
        if len(seed) != _SEED.size:
            raise InvalidInputError(f"a fingerprint seed has {_SEED.size} bytes, not {len(seed)}")
        k0, k1 = _SEED.unpack(seed)
        self._keys = np.uint64(k0), np.uint64(k1)
        self._table = table
        table.clear(expected_records)
        self._reaches_log_start = reaches_log_start
        self._now_ms = now_ms
        self._max_held = max_held_records
        self._held = _Held()
        self._scratch = Scratch()
        self._in_section = False
        self._unique_keys = False
        self._settled = False
        self._overflowed = False
        self._next_offset = 0
        self._records_in = 0
        self._max_buffer_bytes = self._held.nbytes
        self._offsets = BitMap64()
        self._tombstones = BitMap64()

    def begin_section(self, *, unique_keys: bool, settled: bool = False) -> None:
        """What is fed next is older than everything before it; `unique_keys`: no key occurs twice in it.

        `settled` says more: no key of it occurs in a section that is still to come, either, whose order
        then is free. Such keys are looked up and not remembered, so that they take no room in the table.
        """
        if self._in_section:
            raise FatalError("a section begins before the last has ended")
        self._in_section, self._unique_keys, self._settled = True, unique_keys or settled, settled
        self._overflowed, self._next_offset = False, 0

    def feed(self, batches: Buffer, *, offset_shift: int) -> None:
        """The next whole batches of the section, in the order of their offsets, else MalformedBatchError."""
        if not self._in_section:
            raise FatalError("batches are fed outside a section")
        array = readable(batches)
        rows, self._next_offset = scan_rising_batches(array, offset_shift, self._next_offset)
        for opened, run in open_batches(array, rows, self._scratch):
            self._fingerprint(opened, run, offset_shift)

    def end_section(self) -> None:
        """All batches of the section have been fed."""
        if not self._in_section:
            raise FatalError("a section ends that has not begun")
        self._judge(may_add=True)
        self._in_section = False

    def finish(self) -> Survivors:
        """The answer, when every section has been fed, or all since the last answer."""
        if self._in_section:
            raise FatalError("pass 1 finishes inside a section")
        offsets, tombstones, records_in = self._offsets, self._tombstones, self._records_in
        self._offsets, self._tombstones, self._records_in = BitMap64(), BitMap64(), 0
        offsets.run_optimize()
        tombstones.run_optimize()
        counts = self._table.counts
        return Survivors(
            offsets=offsets,
            tombstones=tombstones,
            records_in=records_in,
            keys=int(counts[COUNT_KEYS]),
            keys_outside_table=int(counts[COUNT_OUTSIDE]),
            tombstones_dropped=int(counts[COUNT_TOMBSTONES_DROPPED]),
            records_invalid=int(counts[COUNT_INVALID]),
            max_buffer_bytes=self._max_buffer_bytes,
        )

    def _fingerprint(self, data: Bytes, rows: BatchRows, offset_shift: int) -> None:
        cursor = np.zeros(4, np.int64)
        while True:
            held = self._held
            fault, position, held.count = fingerprint_rows(
                data,
                rows,
                cursor,
                offset_shift,
                *self._keys,
                self._now_ms,
                held.words,
                held.offsets,
                held.flags,
                held.count,
            )
            if fault:
                row = rows[cursor[0]]
                compressed = int(row["attributes"]) & CODEC_MASK
                raise MalformedBatchError.at(fault, int(row["position"]) if compressed else position)
            if cursor[0] == rows.size:
                return
            self._make_room()

    def _make_room(self) -> None:
        """Judge what is held where that is sound, else hold more, else let go of what cannot be proven."""
        if self._unique_keys:
            self._judge(may_add=True)
        elif not self._held.grow(self._max_held):
            self._overflowed = True
            self._judge(may_add=False)
        self._max_buffer_bytes = max(self._max_buffer_bytes, self._held.nbytes)

    def _judge(self, *, may_add: bool) -> None:
        """Let the survivors among the held records into the bitmaps.

        Records of a section that is too long to be held are judged before newer ones of the same section are
        known: they must not enter the table, or they would push those out. None of that section's tombstones
        goes, as records that they shadow may have stayed.
        """
        held = self._held
        self._records_in += held.count
        verdicts = self._table.find_survivors(
            held.words,
            held.flags,
            held.count,
            newest_last=not self._unique_keys,
            drop_tombstones=self._reaches_log_start and not self._overflowed,
            may_add=may_add and not self._settled,
            settled=self._settled,
        )
        kept = np.empty(held.count, np.int64)
        self._offsets |= bitmap_of(kept[: collect(held.offsets, verdicts, held.count, KEEP, kept)])
        tombstones = collect(held.offsets, verdicts, held.count, KEEP_TOMBSTONE, kept)
        if tombstones:
            self._tombstones |= bitmap_of(kept[:tombstones])
        held.count = 0
