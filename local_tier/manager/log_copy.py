"""Copying a log to another log directory, chunk by chunk, while clients write to it.

The caller reads on a thread of the source's disk and writes on a thread of the target's. It prevents cleaning
and the deletion of old segments of the source, and at the end also appends.

Source: ReplicaAlterLogDirsThread and Partition.doAppendRecordsToFollowerOrFutureReplica of Kafka.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from core.errors import OffsetOutOfRangeError
from local_tier.log.unified_log import Isolation

if TYPE_CHECKING:
    from local_tier.log.local_log import LogRead
    from local_tier.log.unified_log import UnifiedLog

CHUNK_BYTES: Final = 1 << 20
_BASE_OFFSET_BYTES: Final = 8  # the first field of a batch


class LogCopy:
    """One copy: `future` gets the batches of `source`, from its log start to its log end."""

    def __init__(self, source: UnifiedLog, future: UnifiedLog) -> None:
        self.source = source
        self.future = future

    def is_at(self, end_offset: int) -> bool:
        """Return True if the copy has everything below an offset that the source had."""
        return self.future.log_end_offset >= max(end_offset, self.source.log_start_offset)

    def read(self) -> LogRead:
        """Read the next batches of the source, about 1 MiB, at least one. There are none at its end."""
        while True:
            offset = max(self.future.log_end_offset, self.source.log_start_offset)
            try:
                return self.source.read(offset, CHUNK_BYTES, Isolation.LOG_END)
            except OffsetOutOfRangeError:
                if offset >= self.source.log_start_offset:
                    raise  # otherwise records were deleted meanwhile

    def write(self, found: LogRead) -> int:
        """Append what was read; return the number of bytes."""
        start = self.source.log_start_offset
        if found.data:
            self._begin_at(int.from_bytes(found.data[:_BASE_OFFSET_BYTES], "big"), start)
            self.future.append_as_follower(found.data)
        else:
            self._skip_to(found.next_offset, start)
        self.follow_start()
        return len(found.data)

    def follow_start(self) -> None:
        """Hide the records that were deleted in the source."""
        future, start = self.future, self.source.log_start_offset
        future.update_high_watermark(future.log_end_offset)
        if start > future.log_start_offset:
            future.maybe_increment_log_start_offset(min(start, future.high_watermark))

    def _begin_at(self, first_offset: int, start: int) -> None:
        """Begin an empty copy where the source begins, and again if all that it had was deleted meanwhile.

        The first batch may contain the log start offset, or follow it after offsets without records.
        """
        end, begin = self.future.log_end_offset, min(first_offset, start)
        if (self.future.size == 0 or end < start) and end < first_offset and end != begin:
            self.future.truncate_fully_and_start_at(begin, start)

    def _skip_to(self, offset: int, start: int) -> None:
        """Continue after the last offsets of the source, which have no records."""
        if self.future.size == 0 or self.future.log_end_offset < start:
            self.future.truncate_fully_and_start_at(offset, start)
        else:
            self.future.skip_to(offset)
