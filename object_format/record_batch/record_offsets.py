"""Collects the offsets of existing records.

A batch that compaction has filtered has fewer records than offsets, so its records must be decoded. All other
batches contribute a range of offsets without being decompressed. Kernels process many batches per call and
write to arrays of fixed size, which are converted to bitmaps in bulk: memory does not depend on the number of
records.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from object_format.buffers import readable
from object_format.errors import MalformedBatchError
from object_format.kernels.batches.offsets import full_ranges, record_offsets, spread_ranges
from object_format.offset_set import OffsetSet
from object_format.record_batch.decompression import Scratch, decompress_batches, runs_by_compression
from object_format.record_batch.headers import record_error, scan_batches

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from object_format.buffers import Bytes
    from object_format.record_batch.headers import BatchRows

_PENDING_OFFSETS: Final = 1 << 17
"""Capacity of each of the two buffers: 1 MiB."""

_RANGES: Final = 4096
"""Ranges without gaps that one kernel call returns."""

_LONG_RANGE: Final = 1024
"""Ranges of at least this length are added to the bitmap directly."""


class _Pending:
    """Buffer of ascending offsets that are added to a bitmap in bulk."""

    def __init__(self) -> None:
        self.offsets = np.empty(_PENDING_OFFSETS, np.int64)
        self.count = 0

    def flush(self, found: OffsetSet) -> None:
        """Move all offsets to `found`."""
        found.add(self.offsets[: self.count])
        self.count = 0


class RecordOffsets:
    """Collects the offsets of the records of batches, which must be added in offset order.

    `scratch` is memory for decompression that the caller shares with other users.
    """

    def __init__(self, scratch: Scratch | None = None) -> None:
        self._scratch = scratch or Scratch()
        self._found = OffsetSet()
        self._in_ranges, self._in_gapped = _Pending(), _Pending()
        self._ranges = np.empty((_RANGES, 2), np.int64)
        self._next_offset = 0
        self.max_opened_bytes = 0
        """Size of the largest array that batches were decompressed to."""

    def add(self, batches: Buffer, *, offset_shift: int) -> None:
        """Add complete batches. Batches without gaps are not decompressed, and no checksum is verified.

        Raises MalformedBatchError.
        """
        array = readable(batches)
        at, any_gapped = 0, False
        while at < array.size:
            fault, at, self._next_offset, full, gapped = full_ranges(
                array, at, offset_shift, self._next_offset, self._ranges
            )
            if fault:
                raise MalformedBatchError.at(fault, at)
            self._add_ranges(self._ranges[:full])
            any_gapped |= gapped
        if any_gapped:
            rows = scan_batches(array)
            gaps = (rows["record_count"] > 0) & (rows["record_count"] <= rows["last_offset_delta"])
            self._add_gapped(array, rows, np.flatnonzero(gaps), offset_shift)

    def take(self) -> OffsetSet:
        """Return all offsets and start again; the next batches may have any offsets."""
        for pending in (self._in_ranges, self._in_gapped):
            pending.flush(self._found)
        found, self._found = self._found, OffsetSet()
        self._next_offset = 0
        found.pack()
        return found

    def _add_ranges(self, ranges: npt.NDArray[np.int64]) -> None:
        are_long = ranges[:, 1] - ranges[:, 0] >= _LONG_RANGE - 1
        for first, last in ranges[are_long].tolist():
            self._found.add_range(first, last + 1)
        short = ranges[~are_long]
        cursor = np.zeros(2, np.int64)
        pending = self._in_ranges
        while True:
            pending.count = spread_ranges(short, cursor, pending.offsets, pending.count)
            if cursor[0] == len(short):
                return
            pending.flush(self._found)

    def _add_gapped(
        self, array: Bytes, rows: BatchRows, gapped: npt.NDArray[np.int64], offset_shift: int
    ) -> None:
        for first, end, compressed in runs_by_compression(rows, gapped):
            run = gapped[first:end]
            if not compressed:
                self._add_opened(array, rows, run, offset_shift)
                continue
            for start, stop, slot in decompress_batches(array, rows, run, self._scratch):
                self.max_opened_bytes = max(self.max_opened_bytes, slot[0].size)
                self._add_opened(slot.pop(), rows, run[start:stop], offset_shift)

    def _add_opened(
        self, records: Bytes, rows: BatchRows, indexes: npt.NDArray[np.int64], offset_shift: int
    ) -> None:
        cursor = np.zeros(4, np.int64)
        pending = self._in_gapped
        while True:
            fault, position, pending.count = record_offsets(
                records, rows, indexes, cursor, offset_shift, pending.offsets, pending.count
            )
            if fault:
                raise record_error(fault, rows[indexes[cursor[0]]], position)
            if cursor[0] == indexes.size:
                return
            pending.flush(self._found)
