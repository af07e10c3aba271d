"""Converts batches to columns of fingerprints, offsets and flags, the input of pass 1."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from core.errors import InvalidInputError
from object_format.kernels.dedupe.fingerprints import WORDS, fingerprint_rows
from object_format.record_batch.decompression import Scratch, open_batches
from object_format.record_batch.headers import record_error, scan_ordered_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from object_format.buffers import Bytes
    from object_format.dedupe.key_table import Flags, Words
    from object_format.record_batch.headers import BatchRows, OrderedBatches

_SEED: Final = struct.Struct("<QQ")
_CURSOR_FIELDS: Final = 4  # those of `fingerprint_rows`


def seed_words(seed: bytes) -> tuple[np.uint64, np.uint64]:
    """Return a seed of 16 bytes as kernels take it. Raises InvalidInputError for another length."""
    if len(seed) != _SEED.size:
        raise InvalidInputError(f"a fingerprint seed has {_SEED.size} bytes, not {len(seed)}")
    k0, k1 = _SEED.unpack(seed)
    return np.uint64(k0), np.uint64(k1)


class Columns:
    """Columns of records: the three words of a fingerprint, the absolute offset, and the flags."""

    def __init__(self, capacity: int) -> None:
        self.start = self.count = 0
        self._reserve(capacity)

    def _reserve(self, capacity: int) -> None:
        self.words: Words = np.empty(capacity * WORDS, np.uint32)
        self.offsets: npt.NDArray[np.int64] = np.empty(capacity, np.int64)
        self.flags: Flags = np.empty(capacity, np.uint8)

    @property
    def nbytes(self) -> int:
        """Allocated memory of the columns."""
        return self.words.nbytes + self.offsets.nbytes + self.flags.nbytes

    def begin_at_end(self, records: int) -> None:
        """Clear the columns, with capacity for `records` that are added before existing ones."""
        if self.offsets.size < records:
            self._reserve(records)
        self.start = self.count = self.offsets.size

    def grow(self, bound: int) -> bool:
        """Double the capacity up to `bound` records; return False if it is reached already."""
        if self.offsets.size >= bound:
            return False
        words, offsets, flags = self.words, self.offsets, self.flags
        self._reserve(min(2 * self.offsets.size, bound))
        self.words[: words.size] = words
        self.offsets[: offsets.size] = offsets
        self.flags[: flags.size] = flags
        return True


class Fingerprinter:
    """Computes fingerprints of one partition's keys under a seed of 16 bytes.

    Tombstones whose delete horizon has passed at `now_ms` are flagged. `scratch` is memory for decompression
    that the caller shares with other users.
    """

    def __init__(self, seed: bytes, *, now_ms: int, scratch: Scratch | None = None) -> None:
        self._keys = seed_words(seed)
        self._now_ms = now_ms
        self._next_offset = 0
        self.scratch = scratch or Scratch()
        self.max_opened_bytes = 0
        """Size of the largest array that records were decompressed to in `fill` and `fill_before`."""

    def restart(self) -> None:
        """Allow the next batches to have any offsets."""
        self._next_offset = 0

    def scan(self, array: Bytes, offset_shift: int) -> OrderedBatches:
        """Return the next complete batches.

        Raises MalformedBatchError, also if the batches do not follow the previous ones.
        """
        batches = scan_ordered_batches(array, offset_shift, self._next_offset)
        self._next_offset = batches.next_offset
        return batches

    def fill(
        self, columns: Columns, array: Bytes, batches: OrderedBatches, *, offset_shift: int
    ) -> Iterator[None]:
        """Append the records of batches to `columns`; yield whenever the columns are full.

        The caller frees or adds capacity before it continues. Raises MalformedBatchError.
        """
        runs = (
            open_batches(array, batches.rows, self.scratch) if batches.compressed else [(array, batches.rows)]
        )
        for opened, run in runs:
            self._note_opened(opened, array)
            cursor = np.zeros(_CURSOR_FIELDS, np.int64)
            while self.fill_from(columns, opened, run, cursor, offset_shift=offset_shift):
                yield

    def fill_before(
        self,
        columns: Columns,
        opened: Iterable[tuple[Bytes, BatchRows]],
        *,
        stored: Bytes,
        record_count: int,
        offset_shift: int,
    ) -> None:
        """Insert the records of opened batches before those in `columns`, which need sufficient capacity.

        The columns must have been started with `begin_at_end`. `stored` is the data of the batches as stored.
        """
        columns.start -= record_count
        end, columns.count = columns.count, columns.start
        for records, run in opened:
            self._note_opened(records, stored)
            more = self.fill_from(
                columns, records, run, np.zeros(_CURSOR_FIELDS, np.int64), offset_shift=offset_shift
            )
            assert not more
        columns.count = end

    def _note_opened(self, records: Bytes, stored: Bytes) -> None:
        if records is not stored:
            self.max_opened_bytes = max(self.max_opened_bytes, records.size)

    def fill_from(
        self,
        columns: Columns,
        data: Bytes,
        rows: BatchRows,
        cursor: npt.NDArray[np.int64],
        *,
        offset_shift: int,
    ) -> bool:
        """Append records of opened batches from `cursor` on; return True if columns are full."""
        fault, position, columns.count = fingerprint_rows(
            data,
            rows,
            cursor,
            offset_shift,
            *self._keys,
            self._now_ms,
            columns.words,
            columns.offsets,
            columns.flags,
            columns.count,
        )
        if fault:
            raise record_error(fault, rows[cursor[0]], position)
        return int(cursor[0]) < rows.size
