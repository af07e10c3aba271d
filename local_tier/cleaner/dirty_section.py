"""Pass 1 of the cleaner: find the newest record of each key in the dirty section of a log.

Kafka scans the dirty section from its start with a map from keys to their last offsets. If the map is full,
the cleaning ends there. This pass scans from the end with a table of fingerprints only, which needs half the
memory per key. The table must not overflow, so additional scans from the start first count how far the table
suffices, unless the number of offsets already proves that it does. Then the section is read once: the offset
index says where batches begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np

from local_tier.cleaner.cleaned_transactions import AbortedRanges
from local_tier.errors import CorruptLogError
from local_tier.segment.batch_scan import scan_file
from object_format.dedupe import KeyTable, SurvivorFinder, Survivors
from object_format.dedupe.key_table import SLOT_BYTES
from object_format.errors import Fault
from object_format.kernels.batches.layout import CONTROL
from object_format.record_batch.headers import scan_until_malformed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from local_tier.log.unified_log import UnifiedLog
    from local_tier.segment.log_segment import LogSegment
    from object_format.buffers import Bytes
    from object_format.record_batch.headers import BatchRows

_MAX_WINDOWS_OF_A_RANGE: Final = 2
"""Larger ranges are not read at once, unless one batch is so large."""

_MAX_RETAINED_RECORDS: Final = 2**62
"""No limit: a batch range is at most one read or one batch, and is retained as a whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRange:
    """A run of adjacent batches in a segment.

    `records` counts those in data batches that are not aborted. It is 0 if they were not counted.
    """

    segment: LogSegment
    position: int
    size: int
    records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DirtyKeys:
    """The result of pass 1 for the dirty section below `end_offset`.

    `survivors` are the newest records of the dirty section. `finder` finds the survivors of older, clean
    batches.
    """

    end_offset: int
    survivors: Survivors
    finder: SurvivorFinder


class DirtySection:
    """The dirty section of one log, [first_offset, end_offset). It ends with a segment."""

    def __init__(
        self,
        log: UnifiedLog,
        first_offset: int,
        end_offset: int,
        *,
        window_bytes: int,
        check_and_throttle: Callable[[int], None],
    ) -> None:
        self._first_offset = first_offset
        self._end_offset = end_offset
        self._segments = [s for s in log.segments_between(first_offset, end_offset) if s.size]
        self._aborted = AbortedRanges(log.collect_aborted(first_offset, end_offset))
        self._window_bytes = window_bytes
        self._check_and_throttle = check_and_throttle

    def find_survivors(self, table: KeyTable, seed: bytes, now_ms: int) -> DirtyKeys:
        """Find the survivors of as much of the section as fits in `table`, from its start.

        The result covers at least one batch.
        """
        end_offset, most_records = self._end_offset, self._end_offset - self._first_offset
        if most_records <= table.capacity:
            batch_ranges = [each for segment in self._segments for each in self._indexed_ranges(segment)]
        else:
            batch_ranges = [each for segment in self._segments for each in self._scanned_ranges(segment)]
            most_records = sum(batch_range.records for batch_range in batch_ranges)
            if most_records > table.capacity:
                batch_ranges, end_offset, table = self._ranges_that_fit(batch_ranges, table, seed, now_ms)
                most_records = sum(batch_range.records for batch_range in batch_ranges)
        finder = _finder(table, seed, now_ms, most_records)
        for batch_range in reversed(batch_ranges):
            self._feed(finder, batch_range)
        return DirtyKeys(end_offset=end_offset, survivors=finder.finish(), finder=finder)

    def _indexed_ranges(self, segment: LogSegment) -> list[BatchRange]:
        """Return ranges of about a window without a read, unless the index has too few entries."""
        index, size = segment.offset_index, segment.log.size
        start = index.lookup(self._first_offset).position
        edges = [start, *(each for each in index.positions(start, self._window_bytes) if each < size), size]
        ranges = [
            BatchRange(segment=segment, position=position, size=end - position, records=0)
            for position, end in pairwise(edges)
        ]
        if not all(0 < each.size <= _MAX_WINDOWS_OF_A_RANGE * self._window_bytes for each in ranges):
            return list(self._scanned_ranges(segment))
        return ranges

    def _scanned_ranges(self, segment: LogSegment) -> Iterator[BatchRange]:
        """Yield ranges of a window with their numbers of records."""
        start = segment.offset_index.lookup(self._first_offset).position
        for batches in scan_file(segment.log, start, self._window_bytes, self._check_and_throttle):
            rows = batches.rows
            rows = rows[self._is_dirty(rows)]
            if rows.size:
                yield BatchRange(
                    segment=segment,
                    position=batches.position + int(rows["position"][0]),
                    size=int(rows["size"].sum()),
                    records=int(rows["record_count"][self._is_data(rows)].sum()),
                )

    def _ranges_that_fit(
        self, batch_ranges: list[BatchRange], table: KeyTable, seed: bytes, now_ms: int
    ) -> tuple[list[BatchRange], int, KeyTable]:
        """Return the first ranges whose keys fit, their end offset, and the table to use.

        If even the first batch does not fit, the table is a larger one for this batch.
        """
        finder = _finder(table, seed, now_ms, None)
        for index, batch_range in enumerate(batch_ranges):
            if table.count + batch_range.records <= table.capacity:
                self._feed(finder, batch_range)
                continue
            data, rows = self._read(batch_range)
            is_data = self._is_data(rows)
            for row in range(rows.size):
                batch_row = rows[row : row + 1]
                records = int(batch_row["record_count"][0]) if is_data[row] else 0
                if table.count + records > table.capacity:
                    if index or row:
                        part = _first_batches(batch_range, rows, is_data, row)
                        return [*batch_ranges[:index], *part], int(batch_row["base_offset"][0]), table
                    table = KeyTable((records + 1) * 2 * SLOT_BYTES)
                    return _first_batches(batch_range, rows, is_data, 1), _end_of(batch_row), table
                if is_data[row]:
                    _feed_rows(finder, data, batch_row, np.ones(1, np.bool_))
        return batch_ranges, self._end_offset, table

    def _feed(self, finder: SurvivorFinder, batch_range: BatchRange) -> None:
        """Feed the dirty batches of a range."""
        data, rows = self._read(batch_range)
        is_data = self._is_data(rows) & self._is_dirty(rows)
        _feed_rows(finder, data, rows, is_data)

    def _read(self, batch_range: BatchRange) -> tuple[Bytes, BatchRows]:
        data = batch_range.segment.log.read(batch_range.position, batch_range.size)
        self._check_and_throttle(data.size)
        rows, fault, position = scan_until_malformed(data)
        if fault or data.size < batch_range.size:
            raise CorruptLogError(
                f"{batch_range.segment.path} has no whole batch at byte {batch_range.position + position}:"
                f" {Fault(fault or Fault.TRUNCATED).explanation}"
            )
        return data, rows

    def _is_dirty(self, rows: BatchRows) -> npt.NDArray[np.bool_]:
        """Return True for each batch that reaches the dirty section."""
        is_dirty: npt.NDArray[np.bool_] = (
            rows["base_offset"] + rows["last_offset_delta"] >= self._first_offset
        )
        return is_dirty

    def _is_data(self, rows: BatchRows) -> npt.NDArray[np.bool_]:
        """Return True for each data batch that is not aborted."""
        is_data: npt.NDArray[np.bool_] = ((rows["attributes"] & CONTROL) == 0) & ~self._aborted.mask(rows)
        return is_data


def true_runs(mask: npt.NDArray[np.bool_]) -> Iterator[tuple[int, int]]:
    """Yield the runs [start, end) in which `mask` is True."""
    edges = np.flatnonzero(np.diff(mask, prepend=False, append=False)).tolist()
    yield from zip(edges[::2], edges[1::2], strict=True)


def batch_bytes(data: Bytes, rows: BatchRows, start: int, end: int) -> memoryview:
    """Return the bytes of batches [start, end)."""
    last = rows[end - 1]
    return data.data[int(rows["position"][start]) : int(last["position"]) + int(last["size"])]


def find_clean_survivors(
    finder: SurvivorFinder, data: Bytes, rows: BatchRows, mask: npt.NDArray[np.bool_]
) -> Survivors:
    """Return the survivors among older batches, whose keys an earlier cleaning made unique."""
    _feed_rows(finder, data, rows, mask, no_older_records=True)
    return finder.finish()


def _feed_rows(
    finder: SurvivorFinder,
    data: Bytes,
    rows: BatchRows,
    mask: npt.NDArray[np.bool_],
    *,
    no_older_records: bool = False,
) -> None:
    finder.begin_section(unique_keys=False, no_older_records=no_older_records)
    for start, end in true_runs(mask):
        finder.feed(batch_bytes(data, rows, start, end), offset_shift=0)
    finder.end_section()


def _finder(table: KeyTable, seed: bytes, now_ms: int, records: int | None) -> SurvivorFinder:
    return SurvivorFinder(
        table,
        seed,
        reaches_log_start=True,
        now_ms=now_ms,
        expected_records=records,
        max_retained_records=_MAX_RETAINED_RECORDS,
    )


def _first_batches(
    batch_range: BatchRange, rows: BatchRows, is_data: npt.NDArray[np.bool_], count: int
) -> list[BatchRange]:
    if not count:
        return []
    return [
        BatchRange(
            segment=batch_range.segment,
            position=batch_range.position,
            size=int(rows["size"][:count].sum()),
            records=int(rows["record_count"][:count][is_data[:count]].sum()),
        )
    ]


def _end_of(row: BatchRows) -> int:
    return int(row["base_offset"][0]) + int(row["last_offset_delta"][0]) + 1
