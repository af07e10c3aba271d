"""Offsets by timestamp, over all segments of a log."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from local_tier.segment.segment import LogSegment
    from local_tier.segment.time_index import TimestampOffset


def find_by_timestamp(
    segments: Sequence[LogSegment], timestamp: int, first_offset: int
) -> TimestampOffset | None:
    """The first record at or behind `first_offset` with at least that timestamp."""
    for segment in segments:
        if segment.largest_timestamp >= timestamp:
            found = segment.find_offset_by_timestamp(timestamp, first_offset)
            if found is not None:
                return found
    return None


def find_newest_record(segments: Sequence[LogSegment], first_offset: int) -> TimestampOffset | None:
    """The first record that has the largest timestamp; None when no record has any."""
    newest = max(segments, key=lambda segment: segment.newest.timestamp)
    timestamp = newest.newest.timestamp
    return None if timestamp < 0 else newest.find_offset_by_timestamp(timestamp, first_offset)
