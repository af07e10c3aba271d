"""From batches to columns of fingerprints, offsets and flags: where pass 1 begins, however it goes on."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from core.errors import InvalidInputError
from object_format.errors import MalformedBatchError
from object_format.kernels.batches.layout import CODEC_MASK
from object_format.kernels.dedupe.fingerprints import WORDS, fingerprint_rows
from object_format.record_batch.decompression import Scratch, open_batches
from object_format.record_batch.headers import scan_ordered_batches

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from object_format.buffers import Bytes
    from object_format.dedupe.key_table import Flags, Words
    from object_format.record_batch.headers import BatchRows

_SEED: Final = struct.Struct("<QQ")


class Columns:
    """Room for records: three words of a fingerprint, the absolute offset, and the flags of each."""

    def __init__(self, capacity: int) -> None:
        self.start = self.count = 0
        self._reserve(capacity)

    def _reserve(self, capacity: int) -> None:
        self.words: Words = np.empty(capacity * WORDS, np.uint32)
        self.offsets: npt.NDArray[np.int64] = np.empty(capacity, np.int64)
        self.flags: Flags = np.empty(capacity, np.uint8)

    @property
    def nbytes(self) -> int:
        """What the columns take, filled or not."""
        return self.words.nbytes + self.offsets.nbytes + self.flags.nbytes

    def begin_at_end(self, records: int) -> None:
        """Forget what is there; there is capacity for so many then, and what comes next goes before what came."""
        if self.offsets.size < records:
            self._reserve(records)
        self.start = self.count = self.offsets.size

    def grow(self, bound: int) -> bool:
        """Make more capacity, for up to `bound` records; False when there is as much already."""
        if self.offsets.size >= bound:
            return False
        words, offsets, flags = self.words, self.offsets, self.flags
        self._reserve(min(2 * self.offsets.size, bound))
        self.words[: words.size] = words
        self.offsets[: offsets.size] = offsets
        self.flags[: flags.size] = flags
        return True


class Fingerprinter:
    """Fingerprints the keys of one partition's records under a seed of 16 bytes.

    Tombstones whose delete horizon has come by `now_ms` are flagged. `scratch` is the caller's own, where it
    has one.
    """

    def __init__(self, seed: bytes, *, now_ms: int, scratch: Scratch | None = None) -> None:
        if len(seed) != _SEED.size:
            raise InvalidInputError(f"a fingerprint seed has {_SEED.size} bytes, not {len(seed)}")
        k0, k1 = _SEED.unpack(seed)
        self._keys = np.uint64(k0), np.uint64(k1)
        self._now_ms = now_ms
        self._next_offset = 0
        self.scratch = scratch or Scratch()
        self.max_opened_bytes = 0
        """Bytes of the largest array that records were decompressed into for `fill` and `fill_before`."""

    def restart(self) -> None:
        """What comes next may lie anywhere in the log."""
        self._next_offset = 0

    def rows_of(self, array: Bytes, offset_shift: int) -> BatchRows:
        """The next whole batches; MalformedBatchError, also for those that do not follow the ones before."""
        batches = scan_ordered_batches(array, offset_shift, self._next_offset)
        self._next_offset = batches.next_offset
        return batches.rows

    def fill(self, columns: Columns, array: Bytes, rows: BatchRows, *, offset_shift: int) -> Iterator[None]:
        """Append the records of batches to `columns`; yields whenever these are full.

        Whoever takes that step makes capacity before the next. Raises MalformedBatchError.
        """
        for opened, run in open_batches(array, rows, self.scratch):
            if opened is not array:
                self.max_opened_bytes = max(self.max_opened_bytes, opened.size)
            cursor = np.zeros(4, np.int64)
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
        """Put the records of a piece before what is in columns that were begun at their end and have capacity."""
        columns.start -= record_count
        end, columns.count = columns.count, columns.start
        for records, run in opened:
            self.max_opened_bytes = max(self.max_opened_bytes, records.size if records is not stored else 0)
            more = self.fill_from(columns, records, run, np.zeros(4, np.int64), offset_shift=offset_shift)
            assert not more
        columns.count = end

    def fill_from(
        self,
        columns: Columns,
        data: Bytes,
        rows: BatchRows,
        cursor: npt.NDArray[np.int64],
        *,
        offset_shift: int,
    ) -> bool:
        """Append records of opened batches from `cursor` on until columns are full; whether any are left."""
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
            row = rows[cursor[0]]
            compressed = int(row["attributes"]) & CODEC_MASK
            raise MalformedBatchError.at(fault, int(row["position"]) if compressed else position)
        return int(cursor[0]) < rows.size
