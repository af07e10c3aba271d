"""The segments of a log, sorted by base offset.

Each change replaces an immutable list, so readers search without a lock.

Source: LogSegments of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

import bisect
import threading
from typing import TYPE_CHECKING

from local_tier.errors import CorruptLogError

if TYPE_CHECKING:
    from pathlib import Path

    from local_tier.segment.log_segment import LogSegment


class LogSegments:
    """A sorted map from base offset to segment. Any thread may read and change it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sorted: tuple[tuple[int, ...], tuple[LogSegment, ...]] = ((), ())

    def __len__(self) -> int:
        return len(self._sorted[0])

    def __contains__(self, base_offset: object) -> bool:
        return base_offset in self._sorted[0]

    @property
    def all(self) -> tuple[LogSegment, ...]:
        """The segments in offset order."""
        return self._sorted[1]

    @property
    def base_offsets(self) -> tuple[int, ...]:
        """The base offsets in order."""
        return self._sorted[0]

    @property
    def active(self) -> LogSegment:
        """The last segment, which takes appends. Raises CorruptLogError if there is none."""
        segments = self._sorted[1]
        if not segments:
            raise CorruptLogError("a log has no segment")
        return segments[-1]

    @property
    def size_in_bytes(self) -> int:
        """The size of all batches."""
        return sum(segment.size for segment in self._sorted[1])

    def get(self, base_offset: int) -> LogSegment | None:
        """Return the segment with that base offset, or None."""
        found = self.floor(base_offset)
        return found if found is not None and found.base_offset == base_offset else None

    def floor(self, offset: int) -> LogSegment | None:
        """Return the last segment with a base offset of at most `offset`, or None."""
        bases, segments = self._sorted
        index = bisect.bisect_right(bases, offset)
        return segments[index - 1] if index else None

    def higher(self, offset: int) -> LogSegment | None:
        """Return the first segment with a base offset above `offset`, or None."""
        bases, segments = self._sorted
        index = bisect.bisect_right(bases, offset)
        return segments[index] if index < len(segments) else None

    def values(self, first_offset: int, end_offset: int) -> tuple[LogSegment, ...]:
        """Return the segments that may have offsets of [first_offset, end_offset), in order."""
        bases, segments = self._sorted
        start = max(0, bisect.bisect_right(bases, first_offset) - 1)
        return segments[start : bisect.bisect_left(bases, end_offset)]

    def inactive_from(self, offset: int) -> tuple[LogSegment, ...]:
        """Return the segments from the one of `offset` on, without the active segment."""
        segments = self._sorted[1]
        return tuple(s for s in self.values(offset, 2**63 - 1) if s is not segments[-1])

    def add(self, segment: LogSegment) -> LogSegment | None:
        """Add a segment. Return the segment that it replaces, or None."""
        with self._lock:
            known = dict(zip(*self._sorted, strict=True))
            replaced = known.get(segment.base_offset)
            known[segment.base_offset] = segment
            self._set(known)
        return replaced

    def remove(self, base_offset: int) -> None:
        """Remove a segment. Its files are not changed."""
        with self._lock:
            known = dict(zip(*self._sorted, strict=True))
            known.pop(base_offset, None)
            self._set(known)

    def clear(self) -> None:
        """Remove all segments."""
        with self._lock:
            self._sorted = ((), ())

    def update_directory(self, directory: Path) -> None:
        """Set the directory after the log's directory was renamed."""
        for segment in self.all:
            segment.update_directory(directory)

    def close(self) -> None:
        """Close all segments."""
        for segment in self.all:
            segment.close()

    def close_handles(self) -> None:
        """Close all files without changing them."""
        for segment in self.all:
            segment.close_handles()

    def _set(self, known: dict[int, LogSegment]) -> None:
        bases = tuple(sorted(known))
        self._sorted = (bases, tuple(known[base] for base in bases))
