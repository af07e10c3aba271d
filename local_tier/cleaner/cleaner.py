"""Cleaning one log: find the survivors, write them to new segments, and replace the old segments.

Source: Cleaner and Throttler of org.apache.kafka.storage.internals.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from local_tier.cleaner.cleaned_transactions import CleanedTransactions
from local_tier.cleaner.dirty_section import DirtySection
from local_tier.cleaner.record_filter import CleanParameters, RecordFilter
from local_tier.errors import CleaningAbortedError, SegmentOffsetOverflowError
from local_tier.segment.batch_scan import scan_file
from object_format.buffers import readable
from object_format.record_batch.headers import scan_batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from core.clock import Clock
    from core.ids import Ids
    from local_tier.cleaner.log_to_clean import LogToClean
    from local_tier.files.file_system import FileSystem
    from local_tier.log.unified_log import UnifiedLog
    from local_tier.segment.log_segment import LogSegment
    from local_tier.topic_partition import TopicPartition
    from object_format.dedupe import KeyTable

MAX_SEGMENT_BYTES: Final = 2**31 - 1
"""Positions in an index have 31 bits."""

MAX_OFFSET_SPAN: Final = 2**31 - 1


@dataclass(slots=True, kw_only=True)
class CleanerStats:
    """Statistics of one cleaning. Bytes and records are those of pass 2; `index_seconds` is pass 1."""

    bytes_read: int = 0
    bytes_written: int = 0
    records_read: int = 0
    records_written: int = 0
    records_invalid: int = 0
    index_seconds: float = 0.0
    seconds: float = 0.0


class Cleaner:
    """A cleaner of logs, with a key table, for one thread.

    `check_done` is called before each read and raises an error to stop the cleaning.
    """

    def __init__(
        self,
        *,
        file_system: FileSystem,
        table: KeyTable,
        window_bytes: int,
        throttler: Throttler,
        clock: Clock,
        ids: Ids,
        check_done: Callable[[TopicPartition], None],
    ) -> None:
        self._file_system = file_system
        self._table = table
        self._window_bytes = window_bytes
        self._throttler = throttler
        self._clock = clock
        self._ids = ids
        self._check_done = check_done

    def clean(self, cleanable: LogToClean) -> tuple[int, CleanerStats]:
        """Clean a log. Return the first offset that was not cleaned, and statistics.

        Raises CleaningAbortedError (after new files were deleted), OSError and CorruptLogError.
        """
        log, stats, began = cleanable.log, CleanerStats(), self._clock.monotonic()
        if log.recovery_point < cleanable.first_uncleanable_offset:
            log.flush()  # the newest record of a key must be durable before older ones are deleted
        now_ms = self._clock.now_ms()

        def check_and_throttle(count: int) -> None:
            self._check_done(log.topic_partition)
            self._throttler.maybe_throttle(count)

        keys = DirtySection(
            log,
            cleanable.first_dirty_offset,
            cleanable.first_uncleanable_offset,
            window_bytes=self._window_bytes,
            check_and_throttle=check_and_throttle,
        ).find_survivors(self._table, self._ids.random_bytes(16), now_ms)
        stats.records_invalid = keys.survivors.records_invalid
        stats.index_seconds = self._clock.monotonic() - began
        parameters = CleanParameters(
            keys=keys,
            first_dirty_offset=cleanable.first_dirty_offset,
            upper_bound_offset=cleanable.first_uncleanable_offset,
            now_ms=now_ms,
            delete_retention_ms=log.config.delete_retention_ms,
            last_records=log.last_records_of_producers(),
        )
        record_filter = RecordFilter(parameters, CleanedTransactions())
        for group in group_segments(
            log.segments_between(0, keys.end_offset),
            max_bytes=log.config.segment_bytes,
            max_index_bytes=log.config.segment_index_bytes,
            first_uncleanable_offset=cleanable.first_uncleanable_offset,
        ):
            _GroupCleaner(
                self._file_system, log, record_filter, stats, self._window_bytes, check_and_throttle
            ).clean(group)
        stats.seconds = self._clock.monotonic() - began
        return keys.end_offset, stats


class _GroupCleaner:
    """Writes the retained batches of a group of segments to new segments, and replaces the group."""

    def __init__(
        self,
        file_system: FileSystem,
        log: UnifiedLog,
        record_filter: RecordFilter,
        stats: CleanerStats,
        window_bytes: int,
        check_and_throttle: Callable[[int], None],
    ) -> None:
        self._file_system = file_system
        self._log = log
        self._filter = record_filter
        self._stats = stats
        self._window_bytes = window_bytes
        self._check_and_throttle = check_and_throttle
        self._cleaned: list[LogSegment] = []

    def clean(self, group: Sequence[LogSegment]) -> None:
        try:
            self._cleaned.append(self._log.new_cleaned_segment(group[0].base_offset))
            for index, segment in enumerate(group):
                end = group[index + 1].base_offset if index + 1 < len(group) else segment.next_offset()
                self._filter.transactions.add(self._log.collect_aborted(segment.base_offset, end))
                self._clean_segment(segment)
            status = self._file_system.status(group[-1].path)
            for cleaned in self._cleaned:
                cleaned.become_inactive()
                cleaned.sync()
                if status is not None:  # retention by file time must not start again
                    cleaned.set_modified(status.modified_ms)
            self._log.replace_segments(self._cleaned, list(group))
        except BaseException:
            for cleaned in self._cleaned:
                if cleaned.suffix:
                    with suppress(OSError):
                        cleaned.delete()
            raise

    def _clean_segment(self, segment: LogSegment) -> None:
        for batches in scan_file(segment.log, 0, self._window_bytes, self._check_and_throttle):
            retained = self._filter.filter(batches.data, batches.rows)
            self._stats.bytes_read += int(batches.rows["size"].sum())
            self._stats.records_read += int(batches.rows["record_count"].sum())
            if retained:
                try:
                    self._append(retained)
                except SegmentOffsetOverflowError as error:
                    self._log.split_overflowed_segment(segment)
                    raise CleaningAbortedError(f"{segment.path} had to be split") from error
            self._index_aborted_transactions()

    def _append(self, retained: bytes) -> None:
        rows = scan_batches(readable(retained))
        last_offset = int(rows["base_offset"][-1]) + int(rows["last_offset_delta"][-1])
        cleaned = self._cleaned[-1]
        if cleaned.size and cleaned.size + len(retained) > MAX_SEGMENT_BYTES:
            # Recompression may make a group larger than it was.
            cleaned = self._log.new_cleaned_segment(int(rows["base_offset"][0]))
            self._cleaned.append(cleaned)
        cleaned.append(last_offset, retained, rows)
        self._check_and_throttle(len(retained))
        self._stats.bytes_written += len(retained)
        self._stats.records_written += int(rows["record_count"].sum())

    def _index_aborted_transactions(self) -> None:
        for aborted in self._filter.aborted:
            self._cleaned[-1].transaction_index.append(aborted)
        self._filter.aborted.clear()


def group_segments(
    segments: Sequence[LogSegment], *, max_bytes: int, max_index_bytes: int, first_uncleanable_offset: int
) -> list[list[LogSegment]]:
    """Group adjacent segments that become one segment each.

    Without groups, repeated cleaning would leave many small segments. The batches of a group have at most
    `max_bytes`, each of its indexes at most `max_index_bytes`, and its offsets span less than 2^31. A segment
    that exceeds these limits forms a group alone.
    """
    groups: list[list[LogSegment]] = []
    sizes = (0, 0, 0)
    limits = (max_bytes, max_index_bytes, max_index_bytes)
    for index, segment in enumerate(segments):
        segment_sizes = (segment.size, segment.offset_index.size_in_bytes, segment.time_index.size_in_bytes)
        # The base offset of the next segment bounds the last offset without a read.
        next_base_offset = (
            segments[index + 1].base_offset if index + 1 < len(segments) else first_uncleanable_offset
        )
        total = (sizes[0] + segment_sizes[0], sizes[1] + segment_sizes[1], sizes[2] + segment_sizes[2])
        fits = all(a <= b for a, b in zip(total, limits, strict=True)) and (
            not segment.size or next_base_offset - 1 - groups[-1][0].base_offset <= MAX_OFFSET_SPAN
            if groups
            else False
        )
        if groups and fits:
            groups[-1].append(segment)
            sizes = total
        else:
            groups.append([segment])
            sizes = segment_sizes
    return groups


NO_LIMIT: Final = float("inf")
INTERVAL_SECONDS: Final = 0.3


class Throttler:
    """Limits the bytes per second of several threads, measured over intervals of 300 ms.

    At the end of each interval, a thread that is ahead of the rate sleeps.
    """

    def __init__(self, clock: Clock, bytes_per_second: float = NO_LIMIT) -> None:
        self._clock = clock
        self._rate = bytes_per_second
        self._lock = threading.Lock()
        self._began = clock.monotonic()
        self._observed_bytes = 0

    def maybe_throttle(self, count: int) -> None:
        """Count `count` bytes, and sleep if the rate is exceeded."""
        if self._rate == NO_LIMIT:
            return
        with self._lock:
            self._observed_bytes += count
            elapsed = self._clock.monotonic() - self._began
            if elapsed < INTERVAL_SECONDS and self._observed_bytes < self._rate * INTERVAL_SECONDS:
                return
            ahead = self._observed_bytes / self._rate - elapsed
            if ahead > 0:
                self._clock.sleep(ahead)
            self._began, self._observed_bytes = self._clock.monotonic(), 0
