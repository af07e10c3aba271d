"""Retention: which of a log's oldest segments may be deleted.

A segment may be deleted if it and all older ones breach the same limit. Two rules hold for every limit: a
segment that reaches the high watermark stays, and so does an empty last segment.

Source: UnifiedLog.deletableSegments of org.apache.kafka.storage.internals.log.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from local_tier.config import LogConfig
    from local_tier.segment.log_segment import LogSegment

    SegmentPredicate = Callable[[LogSegment, LogSegment | None], bool]

_log = structlog.get_logger(__name__)


def deletable_segments(
    segments: Sequence[LogSegment], *, high_watermark: int, log_end_offset: int, is_expired: SegmentPredicate
) -> list[LogSegment]:
    """Return the oldest segments that breach a limit, up to the first one that does not.

    `is_expired` gets each segment with the one that follows it.
    """
    found: list[LogSegment] = []
    followers = [*segments[1:], None]
    for segment, following in zip(segments, followers, strict=True):
        end_offset = following.base_offset if following is not None else log_end_offset
        if end_offset > high_watermark or not is_expired(segment, following):
            break
        if following is None and not segment.size:
            break
        found.append(segment)
    return found


def log_start_offset_breached(log_start_offset: int) -> SegmentPredicate:
    """Match segments whose records are all below the log start offset."""

    def is_expired(_: LogSegment, following: LogSegment | None) -> bool:
        return following is not None and following.base_offset <= log_start_offset

    return is_expired


def retention_size_breached(config: LogConfig, size: int) -> SegmentPredicate | None:
    """Match segments without which a log of `size` bytes still has `retention.bytes`.

    Returns None without a limit.
    """
    if config.retention_bytes < 0 or size < config.retention_bytes:
        return None
    surplus = size - config.retention_bytes

    def is_expired(segment: LogSegment, _: LogSegment | None) -> bool:
        nonlocal surplus
        if surplus < segment.size:
            return False
        surplus -= segment.size
        return True

    return is_expired


def retention_ms_breached(config: LogConfig, now_ms: int) -> SegmentPredicate | None:
    """Match segments whose newest record is older than `retention.ms`.

    Returns None without a limit.
    """
    if config.retention_ms < 0:
        return None

    def is_expired(segment: LogSegment, _: LogSegment | None) -> bool:
        newest = segment.largest_timestamp
        if newest > now_ms:
            _log.warning("timestamp_in_the_future", segment=str(segment.path), timestamp=newest)
        return now_ms - newest > config.retention_ms

    return is_expired
