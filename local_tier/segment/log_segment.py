"""One segment of a log: a file of record batches and its indexes.

Changes require the log's lock. `read`, `translate` and `find_offset_by_timestamp` may be called by any
thread. They see the batches that were complete when they began, and do not verify checksums.

A read takes the bytes that it searches and the bytes that it returns in one call. The index is at most a few
kilobytes away from the batch, and reading those costs less than a second call.

Source: LogSegment of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
from typing_extensions import override

from local_tier.errors import SegmentOffsetOverflowError
from local_tier.files import file_names
from local_tier.segment.append_file import AppendFile
from local_tier.segment.batch_scan import (
    ANY_TIME,
    NO_END,
    SCAN_BYTES,
    BatchPosition,
    corrupt_at,
    end_of_batches,
    find_from,
    size_at,
)
from local_tier.segment.offset_index import OffsetIndex
from local_tier.segment.time_index import NO_TIMESTAMP, TimeIndex, TimestampOffset
from local_tier.segment.transaction_index import AbortedTxn, TransactionIndex
from object_format.errors import MalformedBatchError
from object_format.kernels.batches.layout import BATCH_OVERHEAD
from object_format.kernels.batches.log_window import (
    MALFORMED,
    choose_index_entries,
    end_of_whole_batches,
    find_max_timestamp,
)
from object_format.record_batch.headers import scan_until_malformed
from object_format.record_batch.records import decode_batch

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer

    from core.clock import Clock
    from local_tier.config import LogConfig
    from local_tier.files.file_system import FileSystem
    from local_tier.producers.producer_state_entry import CompletedTxn
    from object_format.buffers import Bytes
    from object_format.record_batch.headers import BatchRows

NEVER: Final = 2**63 - 1
_PREDECESSOR: Final = "siltstone.predecessor"
_NO_PREDECESSOR: Final = "-"
_KINDS: Final = (file_names.LOG, file_names.OFFSET_INDEX, file_names.TIME_INDEX, file_names.TXN_INDEX)


class SegmentRead(NamedTuple):
    """Whole batches and the offset after the last of them, or the requested offset if there are none."""

    data: memoryview
    next_offset: int


class RollParams(NamedTuple):
    """The properties of an append that decide whether the segment must roll first."""

    max_segment_ms: int
    max_segment_bytes: int
    max_timestamp: int
    max_offset: int
    size: int
    now_ms: int


class LogSegment:
    """A file of batches and its indexes, which are opened at their first use."""

    def __init__(
        self,
        file_system: FileSystem,
        directory: Path,
        base_offset: int,
        config: LogConfig,
        *,
        clock: Clock,
        roll_jitter_ms: int = 0,
        suffix: str = "",
        preallocate: int = 0,
    ) -> None:
        self.base_offset = base_offset
        self.roll_jitter_ms = roll_jitter_ms
        self._file_system = file_system
        self._directory = directory
        self._suffix = suffix
        self._clock = clock
        self._max_index_bytes = config.segment_index_bytes
        self._index_interval_bytes = config.index_interval_bytes
        self._index_lock = threading.Lock()
        self._offset_index: OffsetIndex | None = None
        self._time_index: TimeIndex | None = None
        is_new = file_system.status(self._path(file_names.LOG)) is None
        self.log = AppendFile(file_system, self._path(file_names.LOG), preallocate=preallocate)
        self.transaction_index = TransactionIndex(file_system, self._path(file_names.TXN_INDEX), base_offset)
        self._created_ms = clock.now_ms()
        self._first_timestamp: int | None = None
        self._max_timestamp_and_offset: TimestampOffset | None = None
        self._bytes_since_entry = 0
        if is_new:
            self._create_indexes()

    @override
    def __repr__(self) -> str:
        return f"LogSegment({self._path(file_names.LOG)}, {self.size} bytes)"

    @property
    def size(self) -> int:
        """The size of the batches in bytes."""
        return self.log.size

    @property
    def path(self) -> Path:
        """The path of the file of batches."""
        return self._path(file_names.LOG)

    @property
    def suffix(self) -> str:
        """The suffix of all files; empty for a live segment."""
        return self._suffix

    @property
    def offset_index(self) -> OffsetIndex:
        """The index from offsets to positions."""
        index = self._offset_index
        if index is None:
            with self._index_lock:
                index = self._offset_index
                if index is None:
                    path = self._path(file_names.OFFSET_INDEX)
                    index = OffsetIndex(self._file_system, path, self.base_offset, self._max_index_bytes)
                    self._offset_index = index
        return index

    @property
    def time_index(self) -> TimeIndex:
        """The index from timestamps to offsets."""
        index = self._time_index
        if index is None:
            with self._index_lock:
                index = self._time_index
                if index is None:
                    path = self._path(file_names.TIME_INDEX)
                    index = TimeIndex(self._file_system, path, self.base_offset, self._max_index_bytes)
                    self._time_index = index
        return index

    @property
    def max_timestamp_and_offset(self) -> TimestampOffset:
        """The largest timestamp, and the last offset of the first batch that has it."""
        if self._max_timestamp_and_offset is None:
            self._max_timestamp_and_offset = self.time_index.last_entry
        return self._max_timestamp_and_offset

    @property
    def largest_timestamp(self) -> int:
        """The timestamp for retention: the largest of the records, or the file's time if they have none."""
        max_timestamp = self.max_timestamp_and_offset.timestamp
        if max_timestamp >= 0:
            return max_timestamp
        status = self._file_system.status(self.path)
        return status.modified_ms if status is not None else self._created_ms

    @property
    def first_batch_timestamp(self) -> int:
        """The largest timestamp of the first batch, or NEVER if it has none."""
        first = self._load_first_timestamp()
        return NEVER if first is None or first < 0 else first

    def mark_appended(self, predecessor: int | None) -> None:
        """Record in the file that it gets only appends of this engine.

        `predecessor` is the base offset of the segment that ends where this one starts, or None.
        """
        value = _NO_PREDECESSOR if predecessor is None else str(predecessor)
        self._file_system.set_attribute(self.path, _PREDECESSOR, value.encode())

    @property
    def is_appended(self) -> bool:
        """True if this engine created the file for appends, and no cleaning has replaced it."""
        return self._file_system.attribute(self.path, _PREDECESSOR) is not None

    def continues(self, segment: LogSegment) -> bool:
        """Return True if this segment was created where `segment` ended at that time."""
        return self._file_system.attribute(self.path, _PREDECESSOR) == str(segment.base_offset).encode()

    def read(
        self, offset: int, max_bytes: int, *, end_offset: int = NO_END, at_least_one: bool = True
    ) -> SegmentRead | None:
        """Read whole batches from the one that contains or follows `offset`, below `end_offset`.

        Returns at most `max_bytes`, but with `at_least_one` also a first batch that is larger. Returns None
        if the segment has no batch at or after `offset`.
        """
        start = self.offset_index.lookup(offset).position
        window, base, batch = find_from(self.log, offset, ANY_TIME, start, max_bytes + SCAN_BYTES)
        if batch is None:
            return None
        if batch.size > max_bytes and not at_least_one:
            return SegmentRead(memoryview(b""), offset)
        begin = batch.position - base
        byte_count = max(batch.size, max_bytes)
        if window.size - begin < min(byte_count, self.log.size - batch.position):
            window, begin = self.log.read(batch.position, byte_count), 0
        end, next_offset = end_of_whole_batches(window, begin, end_offset, max_bytes)
        return SegmentRead(window.data[begin:end], offset if next_offset < 0 else next_offset)

    def translate(self, offset: int) -> BatchPosition | None:
        """Return the position of the first batch that contains or follows `offset`, or None."""
        start = self.offset_index.lookup(offset).position
        return find_from(self.log, offset, ANY_TIME, start, SCAN_BYTES)[2]

    def next_offset(self) -> int:
        """Return the offset after the last batch, or the base offset if there is none."""
        index = self.offset_index
        return end_of_batches(self.log, index.lookup(index.last_offset).position, self.base_offset)

    def find_offset_by_timestamp(self, timestamp: int, first_offset: int) -> TimestampOffset | None:
        """Return the first record at or after `first_offset` with at least that timestamp, or None."""
        indexed = self.time_index.lookup(timestamp).offset
        position = self.offset_index.lookup(max(indexed, first_offset)).position
        while True:
            _, _, batch = find_from(self.log, first_offset, timestamp, position, SCAN_BYTES)
            if batch is None:
                return None
            found = self._first_record(batch, timestamp, first_offset)
            if found is not None:
                return found
            position = batch.position + batch.size

    def first_batch(self) -> Bytes:
        """Return the bytes of the first batch, or fewer if the file ends before."""
        window = self.log.read(0, SCAN_BYTES)
        size = size_at(self.log, window, 0)
        return window[:size] if size <= window.size else self.log.read(0, size)

    def append(self, largest_offset: int, data: Buffer, rows: BatchRows) -> None:
        """Append whole batches.

        `rows` are their headers and `largest_offset` is the offset of their last record. Raises
        SegmentOffsetOverflowError if that offset is too far from the base offset. Nothing is written then.
        """
        if not rows.size:
            return
        self.check_offset(largest_offset)
        position = self.size
        self.log.append(data)
        if not position:
            self._first_timestamp = int(rows["max_timestamp"][0])
        self._index_batches(rows, position)

    def check_offset(self, offset: int) -> None:
        """Raise SegmentOffsetOverflowError if the indexes cannot represent the offset."""
        if not self.offset_index.can_append_offset(offset):
            raise SegmentOffsetOverflowError(
                f"offset {offset} is too far from {self.base_offset}, the base offset of {self.path}",
                remedy="the segment is split when its log is opened again",
            )

    def should_roll(self, params: RollParams) -> bool:
        """Return True if an append must go to a new segment.

        The reasons are size, age, a full index, and offsets that are too far apart.
        """
        size = self.size
        if size > params.max_segment_bytes - params.size:
            return True
        waited = self._time_waited_for_roll(params.now_ms, params.max_timestamp)
        if size > 0 and waited > params.max_segment_ms - self.roll_jitter_ms:
            return True
        index = self.offset_index
        return index.is_full or self.time_index.is_full or not index.can_append_offset(params.max_offset)

    def update_transaction_index(self, completed: CompletedTxn, last_stable_offset: int) -> None:
        """Add an aborted transaction to the transaction index."""
        if completed.is_aborted:
            self.transaction_index.append(
                AbortedTxn(
                    completed.producer_id, completed.first_offset, completed.last_offset, last_stable_offset
                )
            )

    def truncate_to(self, offset: int) -> int:
        """Remove the batches that contain or follow `offset`. Return the number of bytes removed."""
        found = self.translate(offset)
        self.offset_index.truncate_to(offset)
        self.time_index.truncate_to(offset)
        self.transaction_index.truncate_to(offset)
        self.resize_indexes()
        removed = 0 if found is None else self.log.truncate(found.position)
        if not self.size:
            self._created_ms, self._first_timestamp = self._clock.now_ms(), None
        self._bytes_since_entry = 0
        if self.max_timestamp_and_offset.timestamp >= 0:
            self._max_timestamp_and_offset = self._scan_max_timestamp()
        return removed

    def become_inactive(self) -> None:
        """Finish the segment: index its largest timestamp and remove preallocated space."""
        self._append_max_timestamp()
        self.offset_index.trim()
        self.time_index.trim()
        self.log.trim()

    def resize_indexes(self) -> None:
        """Preallocate the indexes again, as an active segment needs it."""
        self.offset_index.resize(self._max_index_bytes)
        self.time_index.resize(self._max_index_bytes)

    def reset_indexes(self) -> None:
        """Empty all indexes before they are rebuilt from the batches."""
        self._create_indexes()
        self.offset_index.reset()
        self.time_index.reset()
        self.transaction_index.reset()
        self._max_timestamp_and_offset = TimestampOffset(NO_TIMESTAMP, self.base_offset)
        self._bytes_since_entry = 0

    def index_recovered(self, rows: BatchRows, position: int) -> None:
        """Add index entries for batches that are already in the file, the first of them at `position`."""
        if rows.size:
            self.check_offset(int(rows["base_offset"][-1]) + int(rows["last_offset_delta"][-1]))
            self._index_batches(rows, position)

    def end_recovery(self) -> None:
        """Finish the segment after its batches were indexed again.

        As in Kafka, the count of bytes since the last index entry starts at 0, as after any opening.
        """
        self._bytes_since_entry = 0
        self.become_inactive()

    def sync(self) -> None:
        """Make the batches durable, then the indexes."""
        self.log.sync()
        self.offset_index.sync()
        self.time_index.sync()
        self.transaction_index.sync()

    def set_modified(self, modified_ms: int) -> None:
        """Set the files' modification time to that of the segments that this segment replaces."""
        for kind in (file_names.LOG, file_names.OFFSET_INDEX, file_names.TIME_INDEX):
            if self._file_system.status(self._path(kind)) is not None:
                self._file_system.set_modified(self._path(kind), modified_ms)

    def change_suffix(self, new: str) -> None:
        """Rename all files to the suffix `new`, the file of batches first: its name defines the segment.

        Readers are not disturbed because they hold the files open.
        """
        with self._index_lock:
            for kind in _KINDS:
                source = self._path(kind)
                if self._file_system.status(source) is not None:
                    target = file_names.segment_file(self._directory, self.base_offset, kind, new)
                    self._file_system.rename(source, target)
            self._suffix = new
            self._update_paths()

    def close_indexes(self) -> None:
        """Close indexes that were opened for a check. They are opened again at their next use."""
        with self._index_lock:
            for index in (self._offset_index, self._time_index):
                if index is not None:
                    index.close_without_trimming()
            self._offset_index = self._time_index = None

    def update_directory(self, directory: Path) -> None:
        """Set the directory after the log's directory was renamed."""
        with self._index_lock:
            self._directory = directory
            self._update_paths()

    def close(self) -> None:
        """Trim the indexes and close all files."""
        if self._max_timestamp_and_offset is not None:
            self._append_max_timestamp()
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.close()
        self.log.trim()
        self.log.close()
        self.transaction_index.close()

    def close_handles(self) -> None:
        """Close all files without changing them: the disk has failed, or the files will be deleted."""
        for index in (self._offset_index, self._time_index):
            if index is not None:
                index.close_without_trimming()
        self.log.close()
        self.transaction_index.close()

    def delete(self) -> None:
        """Close all files and unlink them. Files that are already gone are no error."""
        self.close_handles()
        for kind in _KINDS:
            self._file_system.unlink(self._path(kind), missing_ok=True)

    def _path(self, kind: str) -> Path:
        return file_names.segment_file(self._directory, self.base_offset, kind, self._suffix)

    def _create_indexes(self) -> None:
        """Create missing index files. Only a new segment or one that is indexed again may do so."""
        if self._file_system.status(self._path(file_names.OFFSET_INDEX)) is None:
            self._offset_index = OffsetIndex(
                self._file_system,
                self._path(file_names.OFFSET_INDEX),
                self.base_offset,
                self._max_index_bytes,
                create=True,
            )
        if self._file_system.status(self._path(file_names.TIME_INDEX)) is None:
            self._time_index = TimeIndex(
                self._file_system,
                self._path(file_names.TIME_INDEX),
                self.base_offset,
                self._max_index_bytes,
                create=True,
            )

    def _update_paths(self) -> None:
        self.log.path = self._path(file_names.LOG)
        self.transaction_index.update_path(self._path(file_names.TXN_INDEX))
        if self._offset_index is not None:
            self._offset_index.update_path(self._path(file_names.OFFSET_INDEX))
        if self._time_index is not None:
            self._time_index.update_path(self._path(file_names.TIME_INDEX))

    def _index_batches(self, rows: BatchRows, position: int) -> None:
        state = np.array((self._bytes_since_entry, position, *self.max_timestamp_and_offset), np.int64)
        entries = np.empty((rows.size, 4), np.int64)
        count = choose_index_entries(rows, self._index_interval_bytes, state, entries)
        self._bytes_since_entry, _, timestamp, offset = state.tolist()
        self._max_timestamp_and_offset = TimestampOffset(timestamp, offset)
        if count:
            # entries that do not fit are left out: their batches are found by scanning
            self.offset_index.append_all(entries[:count, :2])
            self.time_index.maybe_append_all(entries[:count, 2:])

    def _append_max_timestamp(self) -> None:
        if self.time_index.entries < self.time_index.max_entries:
            self.time_index.maybe_append(*self.max_timestamp_and_offset, may_use_last_slot=True)

    def _load_first_timestamp(self) -> int | None:
        if self._first_timestamp is None and self.size:
            rows, _, _ = scan_until_malformed(self.first_batch())
            if rows.size:
                self._first_timestamp = int(rows["max_timestamp"][0])
        return self._first_timestamp

    def _time_waited_for_roll(self, now_ms: int, timestamp: int) -> int:
        """Return the age of the segment in milliseconds, by record timestamps if the first batch has one."""
        first = self._load_first_timestamp()
        if first is not None and first >= 0:
            return timestamp - first
        return now_ms - self._created_ms

    def _first_record(
        self, batch: BatchPosition, timestamp: int, first_offset: int
    ) -> TimestampOffset | None:
        data = self.log.read(batch.position, batch.size)
        if data.size < batch.size:
            return None
        try:
            columns = decode_batch(data.data, verify=False)
        except MalformedBatchError as error:
            raise corrupt_at(self.log, batch.position) from error
        found = np.flatnonzero((columns.timestamps >= timestamp) & (columns.offsets >= first_offset))
        if not found.size:
            return None
        return TimestampOffset(int(columns.timestamps[found[0]]), int(columns.offsets[found[0]]))

    def _scan_max_timestamp(self) -> TimestampOffset:
        """Find the largest timestamp from the last index entry on."""
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
