"""Finding batches in a segment: through its indexes to a place before them, and on by their headers.

A read takes the bytes that it looks through and those that it gives in one go: what the index is short of is
a few kilobytes, and less than a second call costs.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from local_tier.errors import CorruptLogError
from local_tier.segment.time_index import TimestampOffset
from object_format.errors import MalformedBatchError
from object_format.kernels.batches.layout import BATCH_OVERHEAD
from object_format.kernels.batches.log_window import (
    FOUND,
    MALFORMED,
    end_of_whole_batches,
    find_batch,
    find_max_timestamp,
)
from object_format.record_batch.records import decode_batch

if TYPE_CHECKING:
    from local_tier.segment.log_file import LogFile
    from local_tier.segment.offset_index import OffsetIndex
    from local_tier.segment.time_index import TimeIndex
    from object_format.buffers import Bytes

SCAN_BYTES: Final = 16 * 1024
"""What is read at once when only headers are looked for; also what a read takes beyond what is asked for."""

_ANY_TIME: Final = -(2**63)
_ANY_OFFSET: Final = -(2**63)
NO_END: Final = 2**63 - 1


class BatchPlace(NamedTuple):
    """Where a batch lies in its segment's file."""

    position: int
    size: int


class SegmentRead(NamedTuple):
    """Whole batches, and the offset behind the last of them; where the read began, if there are none."""

    data: memoryview
    next_offset: int


def end_of_batches(log: LogFile, position: int, base_offset: int) -> int:
    """The offset behind the last whole batch from `position` on; `base_offset` when there is none."""
    found = base_offset
    while position < log.size:
        window = log.read(position, 64 * SCAN_BYTES)
        if size_at(log, window, position) > window.size:
            window = log.read(position, size_at(log, window, position))
        end, next_offset = end_of_whole_batches(window, 0, NO_END, NO_END)
        if next_offset < 0:
            break
        found = next_offset
        position += end
    return found


def size_at(log: LogFile, window: Bytes, position: int) -> int:
    """The size of the batch that begins the window, as its header says; 0 when there is none.

    `position` is where the window begins, for the message of the CorruptLogError.
    """
    status, _, size = find_batch(window, _ANY_OFFSET, _ANY_TIME)
    if status == MALFORMED:
        raise corrupt_at(log, position)
    return int(size) if status == FOUND else 0


def corrupt_at(log: LogFile, position: int) -> CorruptLogError:
    """The error for bytes that are no batch where one should be."""
    return CorruptLogError(f"there is no record batch at byte {position} of {log.path}")


class SegmentSearch:
    """The reading side of a segment; any thread may call it."""

    base_offset: int
    log: LogFile

    @property
    @abstractmethod
    def offset_index(self) -> OffsetIndex:
        """From offsets to positions."""

    @property
    @abstractmethod
    def time_index(self) -> TimeIndex:
        """From timestamps to offsets."""

    def read(
        self, offset: int, max_bytes: int, *, end_offset: int = NO_END, at_least_one: bool = True
    ) -> SegmentRead | None:
        """Batches from the one that reaches `offset` on, whole, all below `end_offset`, up to `max_bytes`.

        `at_least_one` gives a first batch that is larger than that. None when the segment has nothing at or
        behind `offset`.
        """
        start = self.offset_index.lookup(offset).position
        window, base, place = self._find(offset, _ANY_TIME, start, max_bytes + SCAN_BYTES)
        if place is None:
            return None
        if place.size > max_bytes and not at_least_one:
            return SegmentRead(memoryview(b""), offset)
        begin = place.position - base
        wanted = max(place.size, max_bytes)
        if window.size - begin < min(wanted, self.log.size - place.position):
            window, begin = self.log.read(place.position, wanted), 0
        end, next_offset = end_of_whole_batches(window, begin, end_offset, max_bytes)
        return SegmentRead(window.data[begin:end], offset if next_offset < 0 else next_offset)

    def translate(self, offset: int, from_position: int = 0) -> BatchPlace | None:
        """Where the first batch lies that reaches `offset`."""
        start = max(self.offset_index.lookup(offset).position, from_position)
        return self._find(offset, _ANY_TIME, start, SCAN_BYTES)[2]

    def next_offset(self) -> int:
        """The offset behind the last batch; the base offset when there is none."""
        index = self.offset_index
        return end_of_batches(self.log, index.lookup(index.last_offset).position, self.base_offset)

    def find_offset_by_timestamp(self, timestamp: int, first_offset: int) -> TimestampOffset | None:
        """The first record at or behind `first_offset` whose timestamp is at least `timestamp`."""
        indexed = self.time_index.lookup(timestamp).offset
        position = self.offset_index.lookup(max(indexed, first_offset)).position
        while True:
            _, _, place = self._find(first_offset, timestamp, position, SCAN_BYTES)
            if place is None:
                return None
            found = self._first_record(place, timestamp, first_offset)
            if found is not None:
                return found
            position = place.position + place.size

    def first_batch(self) -> Bytes:
        """The bytes of the first batch, as far as they are there."""
        window = self.log.read(0, SCAN_BYTES)
        size = size_at(self.log, window, 0)
        return window[:size] if size <= window.size else self.log.read(0, size)

    def _first_record(self, place: BatchPlace, timestamp: int, first_offset: int) -> TimestampOffset | None:
        data = self.log.read(place.position, place.size)
        if data.size < place.size:
            return None
        try:
            columns = decode_batch(data.data, verify=False)
        except MalformedBatchError as error:
            raise corrupt_at(self.log, place.position) from error
        found = np.flatnonzero((columns.timestamps >= timestamp) & (columns.offsets >= first_offset))
        if not found.size:
            return None
        return TimestampOffset(int(columns.timestamps[found[0]]), int(columns.offsets[found[0]]))

    def _find(
        self, offset: int, timestamp: int, position: int, count: int
    ) -> tuple[Bytes, int, BatchPlace | None]:
        """The window that holds the header of the first such batch, where it begins, and the batch."""
        while True:
            window = self.log.read(position, count)
            status, at, size = find_batch(window, offset, timestamp)
            if status == MALFORMED:
                raise corrupt_at(self.log, position + at)
            if status == FOUND:
                return window, position, BatchPlace(position + at, size)
            if position + at + BATCH_OVERHEAD > self.log.size:
                return window, position, None
            position += at

    def _scan_newest(self) -> TimestampOffset:
        """The largest timestamp, from the last index entry on."""
        last = self.time_index.last_entry
        timestamp, offset = last
        position = self.offset_index.lookup(last.offset).position
        while position + BATCH_OVERHEAD <= self.log.size:
            status, at, timestamp, offset = find_max_timestamp(
                self.log.read(position, 64 * SCAN_BYTES), timestamp, offset
            )
            if status == MALFORMED:
                raise corrupt_at(self.log, position + at)
            position += at
        return TimestampOffset(timestamp, offset)
