"""The segments of a log on disk, the log end offset, and the recovery point.

Changes require the log's lock; `read` and `flush` do not.

Source: LocalLog of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import structlog

from core.errors import OffsetOutOfRangeError
from local_tier.errors import CorruptLogError, LogClosedError
from local_tier.files import file_names
from local_tier.log.segment_replacement import delete_segments

if TYPE_CHECKING:
    from pathlib import Path

    from typing_extensions import Buffer

    from local_tier.log.log_context import LogContext
    from local_tier.segment.log_segment import LogSegment
    from local_tier.segment.log_segments import LogSegments
    from local_tier.segment.transaction_index import AbortedTxn
    from object_format.record_batch.headers import BatchRows

_log = structlog.get_logger(__name__)

_ATTEMPTS: Final = 5
"""Attempts of a read: a segment that is replaced may be closed during a read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRead:
    """Whole batches from the one that contains or follows the requested offset.

    `next_offset` is the offset after the last batch, or the requested offset if there is no batch. `aborted`
    lists the aborted transactions that overlap, if they were requested.
    """

    data: memoryview
    next_offset: int
    aborted: tuple[AbortedTxn, ...] = ()


class LocalLog:
    """The segments of a log in offset order. The last one takes appends."""

    def __init__(
        self, context: LogContext, segments: LogSegments, *, recovery_point: int, log_end_offset: int
    ) -> None:
        self.context = context
        self.segments = segments
        self.recovery_point = recovery_point
        self.log_end_offset = log_end_offset
        self.last_flush_ms = context.clock.now_ms()
        self._has_unsynced_names = True  # names that a power loss may remove until the directory is synced

    @property
    def unflushed_records(self) -> int:
        """The number of offsets that a crash of the machine may lose."""
        return self.log_end_offset - self.recovery_point

    def append(self, last_offset: int, data: Buffer, rows: BatchRows) -> None:
        """Append batches with final offsets to the active segment."""
        self.segments.active.append(last_offset, data, rows)
        self.log_end_offset = last_offset + 1

    def read(
        self, offset: int, max_bytes: int, *, end_offset: int, at_least_one: bool, with_aborted: bool = False
    ) -> LogRead:
        """Read batches from `offset` on, below `end_offset`.

        Raises OffsetOutOfRangeError above the log end offset.
        """
        for attempt in range(_ATTEMPTS):
            try:
                return self._read(offset, max_bytes, end_offset, at_least_one, with_aborted)
            except LogClosedError:
                self.context.check_open()
                if attempt + 1 == _ATTEMPTS:
                    raise
        raise AssertionError

    def _read(
        self, offset: int, max_bytes: int, end_offset: int, at_least_one: bool, with_aborted: bool
    ) -> LogRead:
        log_end_offset = self.log_end_offset
        segment = self.segments.floor(offset)
        if segment is None or offset > log_end_offset:
            bases = self.segments.base_offsets
            raise OffsetOutOfRangeError(
                self.context.log_name,
                offset,
                log_start_offset=bases[0] if bases else log_end_offset,
                high_watermark=log_end_offset,
            )
        if offset >= end_offset:
            return LogRead(data=memoryview(b""), next_offset=offset)
        while segment is not None:
            found = segment.read(offset, max_bytes, end_offset=end_offset, at_least_one=at_least_one)
            if found is not None:
                aborted = self.collect_aborted(offset, found.next_offset) if with_aborted else []
                return LogRead(data=found.data, next_offset=found.next_offset, aborted=tuple(aborted))
            segment = self.segments.higher(segment.base_offset)
        return LogRead(data=memoryview(b""), next_offset=min(end_offset, log_end_offset))

    def collect_aborted(self, first_offset: int, end_offset: int) -> list[AbortedTxn]:
        """Return the aborted transactions that overlap [first_offset, end_offset)."""
        collected: list[AbortedTxn] = []
        if first_offset >= end_offset:
            return collected
        for segment in self.segments.values(first_offset, 2**63 - 1):
            found, may_have_more = segment.transaction_index.collect(first_offset, end_offset)
            collected += found
            if not may_have_more:
                break
        return collected

    def roll(self, expected_next_offset: int = 0) -> LogSegment:
        """Begin a new segment at the log end offset, or at `expected_next_offset` if that is higher."""
        context, segments = self.context, self.segments
        base_offset = max(expected_next_offset, self.log_end_offset)
        active = segments.active
        if base_offset == active.base_offset and not active.size:
            # the indexes are so small that an empty one counts as full (KAFKA-6388)
            return self._replace_active_segment(base_offset)
        if base_offset <= active.base_offset:
            raise CorruptLogError(
                f"{context.log_name} cannot roll at offset {base_offset}: its active segment starts at "
                f"{active.base_offset}"
            )
        context.delete_segment_files(base_offset, "")
        active.become_inactive()
        segment = context.open_segment(base_offset)
        segment.mark_appended(active.base_offset if active.next_offset() == base_offset else None)
        self._has_unsynced_names = True
        segments.add(segment)
        _log.debug("segment_rolled", log=context.log_name, base_offset=base_offset)
        return segment

    def flush(self, end_offset: int) -> None:
        """Make everything below `end_offset` durable. The caller then calls `mark_flushed`."""
        since = self.recovery_point
        if since > end_offset:
            return
        flushed = self.segments.values(since, end_offset)
        for segment in flushed:
            try:
                segment.sync()
            except (FileNotFoundError, LogClosedError):
                if segment in self.segments.all:
                    raise
        if self._has_unsynced_names:
            # before the sync: a segment that is created meanwhile is for the next flush
            self._has_unsynced_names = False
            self.context.file_system.sync_dir(self.context.directory)

    def mark_flushed(self, offset: int) -> None:
        """Record that everything below `offset` is durable."""
        if offset > self.recovery_point:
            self.recovery_point = offset
            self.last_flush_ms = self.context.clock.now_ms()

    def truncate_to(self, offset: int) -> list[LogSegment]:
        """Durably drop the batches that contain or follow `offset`. Return the segments that were dropped.

        The newest segments are dropped first, so that a crash leaves no gap. The drop is durable so that a
        crash cannot bring the old batches back after new ones were appended.
        """
        removed_segments = [
            segment for segment in reversed(self.segments.all) if segment.base_offset > offset
        ]
        self.remove(removed_segments)
        if self.segments.active.truncate_to(offset):
            self.segments.active.log.sync()
        self._set_log_end_offset(offset)
        return removed_segments

    def truncate_fully_and_start_at(self, offset: int) -> list[LogSegment]:
        """Drop everything and continue at `offset`. Return the segments that were dropped."""
        removed_segments = list(self.segments.all)
        self.remove(removed_segments[:-1])
        self._replace_active_segment(offset)
        self.context.file_system.sync_dir(self.context.directory)
        self._set_log_end_offset(offset)
        return removed_segments

    def remove(self, segments_to_delete: list[LogSegment], *, immediately: bool = False) -> None:
        """Take segments out of the log and delete them."""
        for segment in segments_to_delete:
            self.segments.remove(segment.base_offset)
        delete_segments(self.context, segments_to_delete, immediately=immediately)
        if segments_to_delete and not immediately:
            self.context.file_system.sync_dir(self.context.directory)  # a power loss must not bring them back

    def update_directory(self, directory: Path) -> None:
        """Set the directory after it was renamed."""
        self.context.directory = directory
        self.segments.update_directory(directory)

    def _replace_active_segment(self, base_offset: int) -> LogSegment:
        """Replace the active segment by an empty one. The list of segments is never empty meanwhile.

        On disk the old one is gone before the new one is there, so that a crash leaves no gap between them.
        """
        old = self.segments.active
        old.change_suffix(file_names.DELETED)
        self.context.file_system.sync_dir(self.context.directory)
        self.context.delete_segment_files(base_offset, "")
        new_segment = self.context.open_segment(base_offset)
        new_segment.mark_appended(None)
        self._has_unsynced_names = True
        self.segments.add(new_segment)
        if old.base_offset != base_offset:
            self.segments.remove(old.base_offset)
        delete_segments(self.context, [old])
        return new_segment

    def _set_log_end_offset(self, offset: int) -> None:
        self.log_end_offset = offset
        self.recovery_point = min(self.recovery_point, offset)
