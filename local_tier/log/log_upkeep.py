"""What is done to a log besides appending: watermarks, retention, rolling, flushing, exchanges, its end.

Source: UnifiedLog of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from local_tier.files.whole_files import remove_tree
from local_tier.log import retention
from local_tier.log.log_view import LogView
from local_tier.log.segment_files import (
    delete_snapshots,
    new_cleaned_segment,
    replace_segments,
    split_segment,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from local_tier.config import LogConfig
    from local_tier.log.retention import Expired
    from local_tier.segment.segment import LogSegment

_log = structlog.get_logger(__name__)

_NO_TIME = -1


class LogUpkeep(LogView):
    """The part of a log that schedules and the cleaner use."""

    def remove_expired_producers(self) -> None:
        """Forget producers that have been silent for too long."""
        with self._lock:
            self._states.remove_expired(self._home.clock.now_ms())

    def update_high_watermark(self, offset: int) -> int:
        """Set it to `offset`, or as near as the log start and end allow; where it is then."""
        with self._lock:
            self._high_watermark = min(max(offset, self._log_start_offset), self.log_end_offset)
            self._states.on_high_watermark(self._high_watermark)
            self._note_first_unstable()
            return self._high_watermark

    def maybe_increment_high_watermark(self, offset: int) -> bool:
        """Move it forward to `offset`, which is at most the log end; False when it is there already."""
        with self._lock:
            if offset > self.log_end_offset:
                raise self._out_of_range(offset)
            if offset <= self._high_watermark:
                return False
            self.update_high_watermark(offset)
            return True

    def maybe_increment_log_start_offset(self, offset: int) -> bool:
        """Hide what is below `offset`, at most the high watermark; False when it is hidden already."""
        with self._changing("increase of the log start offset"):
            if offset > self._high_watermark:
                raise self._out_of_range(offset)
            if offset <= self._log_start_offset:
                return False
            self._log_start_offset = offset  # and not the recovery point: what is hidden may not be durable
            self._epochs.truncate_from_start(offset)
            self._states.on_log_start_offset(offset)
            self._note_first_unstable()
            return True

    def delete_records(self, before_offset: int) -> int:
        """DeleteRecords: hide records below the offset (-1: the high watermark); the start then."""
        wanted = self._high_watermark if before_offset == -1 else before_offset
        self.maybe_increment_log_start_offset(wanted)
        return self._log_start_offset

    def delete_old_segments(self) -> int:
        """Delete what retention and the log start offset allow to delete; how many segments went."""
        limits = [retention.below_start(self._log_start_offset)]
        count = 0
        with self._changing("retention"):
            count += self._delete_expired(limits[0])
            if self.config.delete:
                for limit in (
                    retention.above_size(self.config, self.size),
                    retention.beyond_age(self.config, self._home.clock.now_ms()),
                ):
                    count += self._delete_expired(limit) if limit is not None else 0
        return count

    def roll(self) -> LogSegment:
        """Begin a new segment, and have the old one made durable."""
        with self._changing("roll"):
            return self._roll(0)

    def flush(self, force_active: bool = False) -> None:
        """Make what was appended durable; `force_active` syncs the active segment even if it is empty."""
        end_offset = self.log_end_offset
        self._flush(end_offset + 1 if force_active else end_offset, end_offset)

    def update_config(self, config: LogConfig) -> None:
        """Take new settings; those of a segment hold from the next roll on."""
        self._home.config = config

    def new_cleaned_segment(self, base_offset: int) -> LogSegment:
        """A segment that a clean writes to; it is not part of the log."""
        with self._home.disk("clean"):
            return new_cleaned_segment(self._home, base_offset)

    def replace_segments(self, new: Sequence[LogSegment], old: Sequence[LogSegment]) -> None:
        """Put cleaned segments, which are synced, in the place of those that they were made from."""
        with self._changing("exchange of segments"):
            gone = replace_segments(self._home, self._local.segments, new, old)
            delete_snapshots(self._home, self._states.snapshots, gone)

    def split_overflowed_segment(self, segment: LogSegment) -> list[LogSegment]:
        """Replace a segment whose offsets span too much."""
        with self._changing("split"):
            return split_segment(self._home, self._local.segments, segment)

    def rename_directory(self, directory: Path) -> None:
        """Give the log's directory another name on the same disk; open files stay open."""
        with self._changing("renaming"):
            self._home.fs.rename(self.directory, directory)
            self._home.fs.sync_dir(directory.parent)
            self._local.moved(directory)
            self._states.snapshots.directory = directory
            self._epochs.renamed(directory)

    def close(self) -> None:
        """Write a producer snapshot, trim indexes, let go of all files. Flush before."""
        with self._changing("close"):
            self._states.take_snapshot()
            self._home.is_closed = True
            self._local.segments.close()

    def close_handles(self) -> None:
        """Let go of all files as they are: the disk has failed."""
        with self._lock:
            self._home.is_closed = True
            self._local.segments.close_handles()

    def delete(self) -> None:
        """Unlink all files, and the directory."""
        with self._changing("deletion"):
            self._home.is_closed = True
            self._local.remove(list(self.segments), at_once=True)
            remove_tree(self._home.fs, self.directory)
            self._home.fs.sync_dir(self.directory.parent)

    def _roll(self, expected_next_offset: int) -> LogSegment:
        segment = self._local.roll(expected_next_offset)
        self._states.map_end_offset = segment.base_offset
        snapshot = self._states.take_snapshot(sync=False)

        def flush() -> None:
            if self._home.is_closed:
                return
            if snapshot is not None:
                self._states.snapshots.sync(snapshot)
            self._flush(segment.base_offset, segment.base_offset)

        self._home.schedule_once("flush-rolled-segment", flush)
        return segment

    def _flush(self, flush_offset: int, recovery_point: int) -> None:
        with self._flush_lock, self._home.disk("flush"):
            if flush_offset > self._local.recovery_point:
                self._flush_now(flush_offset, recovery_point)

    def _flush_now(self, flush_offset: int, recovery_point: int) -> None:
        self._local.flush(flush_offset)
        with self._lock:
            self._local.mark_flushed(min(recovery_point, self.log_end_offset))

    def _delete_expired(self, is_expired: Expired) -> int:
        segments = self._local.segments
        doomed = retention.deletable_segments(
            segments.all,
            high_watermark=self._high_watermark,
            log_end_offset=self.log_end_offset,
            is_expired=is_expired,
        )
        if not doomed:
            return 0
        if len(doomed) == len(segments):
            self._roll(0)
        following = segments.higher(doomed[-1].base_offset)
        assert following is not None
        self.maybe_increment_log_start_offset(following.base_offset)
        _log.info("segments_expired", log=self._home.where, count=len(doomed), start=following.base_offset)
        self._local.remove(doomed)
        delete_snapshots(self._home, self._states.snapshots, doomed)
        return len(doomed)

    def flush_appended(self) -> None:
        """Make all that was appended durable, if `flush.messages` asks for it."""
        self._flush_appended(self.log_end_offset)

    def _flush_appended(self, end_offset: int) -> None:
        """By `flush.messages`. Appends that wait here together are made durable by one sync."""
        if self._local.unflushed_records < self.config.flush_messages:
            return
        with self._flush_lock, self._home.disk("flush"):
            if self._local.recovery_point < end_offset:
                self._flush_now(self.log_end_offset, self.log_end_offset)
