"""Dirtiness of compacted partitions by Kafka's rules, with extents in place of segments.

From Kafka's `LogCleanerManager.cleanableOffsets`, `maxCompactionDelay` and `LogToClean`:

- The dirty part starts at the first dirty offset, or at the log start if that is higher.
- It is cleanable up to the last stable offset, and up to the first dirty extent whose largest timestamp is
  later than now - min.compaction.lag.ms (only if that setting is positive).
- Cleanable ratio = cleanable bytes / (clean bytes + cleanable bytes); it must be *greater* than
  min.cleanable.dirty.ratio.
- A dirty extent with a positive timestamp before now - max.compaction.lag.ms forces a cleaning if anything is
  cleanable.

Beyond Kafka's rules, a partition is due at once if a job left keys twice for lack of memory. Kafka's cleaner
stops at the first offset that does not fit its map, and continues from there.

Kafka never cleans its active segment. Siltstone has none: every extent is sealed when it is committed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from catalog.model import Exactness
from object_format.limits import MAX_SPAN

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from catalog.model import Extent
    from planner.snapshot import PartitionView


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirtiness:
    """Measure of a partition: bytes, Kafka's cleanable ratio, and whether cleaning is due.

    `ratio` is 0 for a partition without bytes. `overdue_ms` is the time since max.compaction.lag.ms passed.
    """

    clean_bytes: int
    cleanable_bytes: int
    ratio: float
    overdue_ms: int
    due: bool


def first_dirty_offset(view: PartitionView) -> int:
    """Return the start of the dirty part; an offset outside the log means the log start, as in Kafka.

    If an exact job is still needed, nothing is clean.
    """
    if view.exactness is Exactness.DEDUP_INCOMPLETE:
        return view.state.log_start_offset
    return _recorded_first_dirty_offset(view)


def _recorded_first_dirty_offset(view: PartitionView) -> int:
    state = view.state
    if state.first_dirty_offset > state.log_end_offset:
        return state.log_start_offset
    return max(state.log_start_offset, state.first_dirty_offset)


def stable_extents(view: PartitionView) -> tuple[Extent, ...]:
    """Return the extents below the last stable offset, which a job may copy, claimed or not."""
    if view.extents and view.extents[-1].last_offset < view.state.last_stable_offset:
        return view.extents
    for index, extent in enumerate(view.extents):
        if extent.last_offset >= view.state.last_stable_offset:
            return view.extents[:index]
    return view.extents


def takeable_extents(view: PartitionView, now_ms: int) -> tuple[Extent, ...]:
    """Return the stable extents from which a job may drop records at `now_ms`, claimed or not.

    For a compacted topic they end at the first record within min.compaction.lag.ms.
    """
    extents = stable_extents(view)
    lag = view.rules.cleanable_after_ms
    if lag is None:
        return extents
    dirty_from = first_dirty_offset(view)
    for index, extent in enumerate(extents):
        if extent.last_offset >= dirty_from and extent.max_timestamp > now_ms - lag:
            return extents[:index]
    return extents


def may_deduplicate(view: PartitionView, extents: Sequence[Extent], now_ms: int) -> bool:
    """Return True if a job over `extents` may drop records: the topic is compacted, no extent too young."""
    if not view.rules.compacted:
        return False
    old = takeable_extents(view, now_ms)
    return bool(old) and extents[-1].last_offset <= old[-1].last_offset


def measure(view: PartitionView, extents: Iterable[Extent], now_ms: int, *, force: bool = False) -> Dirtiness:
    """Measure the partition as if it ended with `extents`, which start at its log start."""
    extents = tuple(extents)
    # The exact job must cover everything that the inexact one took.
    incomplete = (
        view.exactness is Exactness.DEDUP_INCOMPLETE
        and bool(extents)
        and extents[-1].last_offset + 1 >= view.state.first_dirty_offset
    )
    dirty_from = view.state.log_start_offset if incomplete else _recorded_first_dirty_offset(view)
    clean_until = now_ms - max(view.rules.max_compaction_lag_ms, 0)
    oldest = clean_until
    clean_bytes = cleanable_bytes = 0
    for extent in extents:
        if extent.last_offset < dirty_from:
            clean_bytes += extent.length
            continue
        cleanable_bytes += extent.length
        if extent.min_timestamp > 0:
            oldest = min(oldest, extent.min_timestamp)
    overdue_ms = clean_until - oldest
    ratio = cleanable_bytes / (clean_bytes + cleanable_bytes) if cleanable_bytes else 0.0
    wanted = incomplete or ratio > view.rules.min_cleanable_dirty_ratio or overdue_ms > 0 or force
    return Dirtiness(
        clean_bytes=clean_bytes,
        cleanable_bytes=cleanable_bytes,
        ratio=ratio,
        overdue_ms=overdue_ms,
        due=view.rules.compacted and cleanable_bytes > 0 and wanted,
    )


def contiguous_run(extents: Sequence[Extent]) -> tuple[Extent, ...]:
    """Return the extents up to the first gap in their offsets, within the span of one section.

    Control batches that a job may remove are no gap.
    """
    for index in range(1, len(extents)):
        gap = extents[index].base_offset != extents[index - 1].job_end_offset
        if gap or spans_too_many(extents[0].base_offset, extents[index].job_end_offset - 1):
            return tuple(extents[:index])
    return tuple(extents)


def spans_too_many(base_offset: int, last_offset: int) -> bool:
    """Return True if one section may not span these offsets."""
    return last_offset - base_offset >= MAX_SPAN
