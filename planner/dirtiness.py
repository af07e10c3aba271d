"""How dirty a compacted partition is, by Kafka's rules with extents in the place of segments.

From Kafka's `LogCleanerManager.cleanableOffsets`, `maxCompactionDelay` and `LogToClean`:

- the dirty part begins at the first dirty offset, or at the log start where that lies higher;
- it is cleanable up to the last stable offset, and up to the first dirty extent whose largest timestamp is
  later than now - min.compaction.lag.ms (only when that is positive);
- cleanable ratio = cleanable bytes / (clean bytes + cleanable bytes), and must be *greater* than
  min.cleanable.dirty.ratio;
- a dirty extent that has a positive timestamp before now - max.compaction.lag.ms forces the cleaning when
  anything is cleanable at all.

Beyond Kafka's rules, a partition is due at once where a job has left keys twice, for want of memory: Kafka's
cleaner then stops short of what it has not seen, and comes back.

Kafka never cleans its active segment. There is none here: every extent is sealed when it is committed.
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
    """The measure of a partition, or of its first extents: bytes, Kafka's cleanable ratio, and a verdict.

    `ratio` is 0 for a partition without bytes. `overdue_ms` is how long max.compaction.lag.ms has been over.
    """

    clean_bytes: int
    cleanable_bytes: int
    ratio: float
    overdue_ms: int
    due: bool


def first_dirty_offset(view: PartitionView) -> int:
    """Where the dirty part begins; a value outside the log falls back to the log start, as in Kafka.

    Where an exact job is owed, nothing is clean.
    """
    if view.exactness is Exactness.DEDUP_INCOMPLETE:
        return view.state.log_start_offset
    return _kept_first_dirty_offset(view)


def _kept_first_dirty_offset(view: PartitionView) -> int:
    state = view.state
    if state.log_start_offset <= state.first_dirty_offset <= state.log_end_offset:
        return state.first_dirty_offset
    return state.log_start_offset


def stable_extents(view: PartitionView) -> tuple[Extent, ...]:
    """The extents that a job may rewrite as they stand, claimed or not: below the last stable offset."""
    if view.extents and view.extents[-1].last_offset < view.state.last_stable_offset:
        return view.extents
    for index, extent in enumerate(view.extents):
        if extent.last_offset >= view.state.last_stable_offset:
            return view.extents[:index]
    return view.extents


def takeable_extents(view: PartitionView, now_ms: int) -> tuple[Extent, ...]:
    """The extents of which a job may drop records at `now_ms`, claimed or not: a prefix of the stable ones.

    For a compacted topic nothing inside min.compaction.lag.ms, nor anything after it.
    """
    extents = stable_extents(view)
    lag = view.rules.min_compaction_lag_ms if view.rules.compacted else 0
    if lag <= 0:
        return extents
    dirty_from = first_dirty_offset(view)
    for index, extent in enumerate(extents):
        if extent.last_offset >= dirty_from and extent.max_timestamp > now_ms - lag:
            return extents[:index]
    return extents


def may_deduplicate(view: PartitionView, extents: Sequence[Extent], now_ms: int) -> bool:
    """Whether a job over `extents` may drop superseded records: the topic is compacted, and none is young."""
    if not view.rules.compacted:
        return False
    old = takeable_extents(view, now_ms)
    return bool(old) and extents[-1].last_offset <= old[-1].last_offset


def measure(view: PartitionView, extents: Iterable[Extent], now_ms: int, *, force: bool = False) -> Dirtiness:
    """Judge the partition as if it ended with `extents`, which begin at its log start."""
    extents = tuple(extents)
    # What is owed is a job over all that the inexact one took.
    owed = view.exactness is Exactness.DEDUP_INCOMPLETE and _end_of(extents) >= view.state.first_dirty_offset
    dirty_from = first_dirty_offset(view) if owed else _kept_first_dirty_offset(view)
    clean_bytes = cleanable_bytes = 0
    oldest: int | None = None
    for extent in extents:
        if extent.last_offset < dirty_from:
            clean_bytes += extent.length
            continue
        cleanable_bytes += extent.length
        if extent.min_timestamp > 0 and (oldest is None or extent.min_timestamp < oldest):
            oldest = extent.min_timestamp
    clean_until = now_ms - max(view.rules.max_compaction_lag_ms, 0)
    overdue_ms = clean_until - oldest if oldest is not None and oldest < clean_until else 0
    ratio = cleanable_bytes / (clean_bytes + cleanable_bytes) if cleanable_bytes else 0.0
    wanted = owed or ratio > view.rules.min_cleanable_dirty_ratio or overdue_ms > 0 or force
    return Dirtiness(
        clean_bytes=clean_bytes,
        cleanable_bytes=cleanable_bytes,
        ratio=ratio,
        overdue_ms=overdue_ms,
        due=view.rules.compacted and cleanable_bytes > 0 and wanted,
    )


def _end_of(extents: Sequence[Extent]) -> int:
    return extents[-1].last_offset + 1 if extents else 0


def contiguous_run(extents: Sequence[Extent]) -> tuple[Extent, ...]:
    """The extents up to the first gap in their offsets, and no more offsets than one section may span."""
    for index in range(1, len(extents)):
        gap = extents[index].base_offset != extents[index - 1].last_offset + 1
        if gap or spans_too_many(extents[0].base_offset, extents[index].last_offset):
            return tuple(extents[:index])
    return tuple(extents)


def spans_too_many(base_offset: int, last_offset: int) -> bool:
    """Whether these are more offsets than one section may span, as a job writes one of what it takes."""
    return last_offset - base_offset >= MAX_SPAN
