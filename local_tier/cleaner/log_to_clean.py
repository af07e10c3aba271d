"""The part of a log that may be cleaned now, and the share of dirty bytes.

Nothing here changes a log.

Source: LogCleanerManager.cleanableOffsets and LogToClean of org.apache.kafka.storage.internals.log; KIP-58
and KIP-354 for the compaction lags.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import structlog

if TYPE_CHECKING:
    from local_tier.log.unified_log import UnifiedLog

_log = structlog.get_logger(__name__)


class OffsetsToClean(NamedTuple):
    """The dirty range that may be cleaned. `repair_checkpoint` is True if the checkpoint was invalid."""

    first_dirty_offset: int
    first_uncleanable_offset: int
    repair_checkpoint: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class LogToClean:
    """A log with the sizes of its clean and its cleanable part. The cleanable part ends with a segment."""

    log: UnifiedLog
    first_dirty_offset: int
    first_uncleanable_offset: int
    clean_bytes: int
    cleanable_bytes: int
    must_clean: bool

    @property
    def total_bytes(self) -> int:
        """The bytes that a cleaning would read."""
        return self.clean_bytes + self.cleanable_bytes

    @property
    def cleanable_ratio(self) -> float:
        """The share of cleanable bytes, from 0 to 1."""
        return self.cleanable_bytes / self.total_bytes if self.total_bytes else 0.0

    @property
    def is_due(self) -> bool:
        """True if the log is dirty enough, or has been dirty for too long."""
        ratio = self.log.config.min_cleanable_dirty_ratio
        return (self.must_clean and self.cleanable_bytes > 0) or self.cleanable_ratio > ratio


def cleanable_offsets(log: UnifiedLog, checkpointed: int | None, now_ms: int) -> OffsetsToClean:
    """Return the range that may be cleaned, given the last checkpoint of the first dirty offset.

    A checkpoint outside the log is replaced by the log start offset. Below the log start, records have been
    deleted since. Above the log end, the log was truncated, and all of it counts as dirty. The range ends at
    the lowest of the last stable offset, the active segment's base offset, and the first segment with a
    record that is younger than `min.compaction.lag.ms`.
    """
    start = log.log_start_offset
    first_dirty = start if checkpointed is None else checkpointed
    repair = not start <= first_dirty <= log.log_end_offset
    if repair:
        if first_dirty > start or not log.config.delete:  # deletion by retention is normal
            _log.warning(
                "first_dirty_offset_reset", log=str(log.topic_partition), checkpointed=first_dirty, to=start
            )
        first_dirty = start
    bounds = [log.last_stable_offset, log.active_segment.base_offset]
    lag = log.config.min_compaction_lag_ms
    if lag > 0:
        too_young = (s for s in log.inactive_segments_from(first_dirty) if s.largest_timestamp > now_ms - lag)
        bounds += [segment.base_offset for segment in [next(too_young, None)] if segment is not None]
    return OffsetsToClean(first_dirty, max(first_dirty, min(bounds)), repair)


def cleanable_bytes(log: UnifiedLog, first_dirty: int, uncleanable: int) -> tuple[int, int]:
    """Return the base offset where the cleanable range ends, and the bytes of the range."""
    segments = log.inactive_segments_from(uncleanable)
    end = segments[0].base_offset if segments else log.active_segment.base_offset
    between = log.segments_between(min(first_dirty, end), end)
    return end, sum(segment.size for segment in between)


def compaction_delay_ms(log: UnifiedLog, first_dirty: int, now_ms: int) -> int:
    """Return by how much the oldest dirty segment exceeds `max.compaction.lag.ms`, or 0."""
    dirty = log.inactive_segments_from(first_dirty)
    oldest = min((s.first_batch_timestamp for s in dirty if s.first_batch_timestamp > 0), default=None)
    if oldest is None:
        return 0
    return max(0, now_ms - max(log.config.max_compaction_lag_ms, 0) - oldest)


def log_to_clean(log: UnifiedLog, offsets: OffsetsToClean, now_ms: int) -> tuple[LogToClean, int]:
    """Return the log with its sizes, and its compaction delay in milliseconds."""
    delay = compaction_delay_ms(log, offsets.first_dirty_offset, now_ms)
    end, dirty_bytes = cleanable_bytes(log, offsets.first_dirty_offset, offsets.first_uncleanable_offset)
    dirty = log.segments_between(min(offsets.first_dirty_offset, end), end)
    clean = log.segments_between(0, dirty[0].base_offset if dirty else offsets.first_dirty_offset)
    return (
        LogToClean(
            log=log,
            first_dirty_offset=offsets.first_dirty_offset,
            first_uncleanable_offset=end,
            clean_bytes=sum(segment.size for segment in clean),
            cleanable_bytes=dirty_bytes,
            must_clean=delay > 0,
        ),
        delay,
    )
