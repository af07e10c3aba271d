"""Reasons of a plan, as sentences for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.model import Exactness, FileKind
from core.quantities import count, human_bytes
from object_format.limits import MAX_SPAN
from planner.dirtiness import (
    first_dirty_offset,
    may_deduplicate,
    measure,
    spans_too_many,
    takeable_extents,
)
from planner.plan import JobKind, PartitionDecision, Verdict
from planner.selection import reaches_log_start

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.jobs.quarantine import QuarantineCandidate
    from catalog.model import Extent
    from planner.dirtiness import Dirtiness
    from planner.plan import Wait
    from planner.selection import JobDraft
    from planner.settings import PlannerSettings
    from planner.snapshot import PartitionView


def job_reason(draft: JobDraft, now_ms: int) -> str:
    """Return the purpose of the job in one sentence."""
    members = draft.partitions()
    size = human_bytes(draft.file_bytes)
    if draft.kind is JobKind.FAULT_BISECTION:
        return (
            f"{count(draft.file_count, 'file')} ({size}) of a job that failed, "
            f"to find the one that made it fail"
        )
    if draft.kind is JobKind.MERGING:
        dead = f", {human_bytes(draft.dead_bytes)} of it dead" if draft.dead_bytes else ""
        return (
            f"{count(draft.file_count, 'compacted file')} ({size}{dead}) with "
            f"{count(len(members), 'partition')} to be rewritten as larger files"
        )
    if draft.kind is JobKind.CLUSTERING:
        short = sum(len(extents) for _, extents in members)
        return (
            f"{short} short extents in {count(draft.file_count, 'compacted file')} ({size}) to become one "
            f"in each of {count(len(members), 'neighbouring partition')}"
        )
    if draft.kind is JobKind.CLEANING:
        ratio, label = max((measure(view, extents, now_ms).ratio, view.label) for view, extents in members)
        exactly = "; exactly, because the last job left keys twice" if draft.exact else ""
        return (
            f"{count(len(members), 'compacted partition')} in {count(draft.file_count, 'file')} ({size}) "
            f"became dirty again; dirtiest is {label} at {ratio:.2f}{exactly}"
        )
    compacted = [(view, extents) for view, extents in members if may_deduplicate(view, extents, now_ms)]
    cleaned = sum(1 for view, extents in compacted if reaches_log_start(view, extents))
    joined = {
        extent.file_id
        for _, extents in members
        for extent in extents
        if extent.file_kind is FileKind.COMPACTED
    }
    ingested = draft.file_count - len(joined)
    parts = [f"{count(ingested, 'ingestion file')} to be split by cleanup policy"]
    if joined:
        parts.append(f"{count(len(joined), 'compacted file')} read along with them ({size} in all)")
    else:
        parts[0] += f" ({size})"
    parts.append(
        f"{count(len(members), 'partition')}: {cleaned} cleaned from the log start, "
        f"{len(compacted) - cleaned} deduplicated in part, {len(members) - len(compacted)} copied"
    )
    return "; ".join(parts)


def decision_in_job(
    view: PartitionView,
    extents: tuple[Extent, ...],
    numbered: tuple[int, JobDraft],
    now_ms: int,
    settings: PlannerSettings,
) -> PartitionDecision:
    """Return the decision that a job, given with its number, takes these extents of a partition."""
    job, draft = numbered
    whole = takeable_extents(view, now_ms)
    dirtiness = measure(view, whole, now_ms, force=settings.force)
    span = f"offsets {extents[0].base_offset} to {extents[-1].last_offset}"
    if draft.kind in {JobKind.MERGING, JobKind.CLUSTERING}:
        into = (
            "a larger file" if draft.kind is JobKind.MERGING else "one extent next to those of its neighbours"
        )
        return _decision(view, Verdict.MERGE, f"{span} are copied into {into}", job, dirtiness)
    if not view.rules.compacted:
        reason = f"{span} move into a compacted file; cleanup.policy={view.rules.cleanup_policy}"
        return _decision(view, Verdict.SPLIT, reason, job, dirtiness)
    if not may_deduplicate(view, extents, now_ms):
        why = _why_too_young(view, view.extents[len(whole)])
        reason = f"{span} are copied into a compacted file; {why}"
        return _decision(view, Verdict.SPLIT, reason, job, dirtiness)
    if reaches_log_start(view, extents):
        why = (
            _why_due(view, dirtiness, settings) if dirtiness.due else "the job reaches back to the log start"
        )
        return _decision(view, Verdict.CLEAN, f"{why}: {span} are cleaned together", job, dirtiness)
    if dirtiness.due:
        why = f"{_why_due(view, dirtiness, settings)}, but the older part is in another job or too large"
    else:
        why = _why_not_due(view, dirtiness)
    reason = f"{span} move into a compacted file and are deduplicated among themselves; {why}"
    return _decision(view, Verdict.DEDUPLICATE, reason, job, dirtiness)


def decision_deferred(
    view: PartitionView, extents: tuple[Extent, ...], now_ms: int, settings: PlannerSettings
) -> PartitionDecision:
    """Return the decision that a partition waits for the budget although there is a job for it."""
    dirtiness = measure(view, takeable_extents(view, now_ms), now_ms, force=settings.force)
    reason = (
        f"a job for offsets {extents[0].base_offset} to {extents[-1].last_offset} waits, because the jobs of "
        f"the last hour used up budget_bytes_per_hour or budget_dollars_per_hour"
    )
    return _decision(view, Verdict.WAIT, reason, None, dirtiness)


def decision_to_wait(
    view: PartitionView,
    extents: tuple[Extent, ...],
    wait: Wait | None,
    now_ms: int,
    settings: PlannerSettings,
) -> PartitionDecision:
    """Return the decision that a partition waits for more data although there is a job for it."""
    dirtiness = measure(view, takeable_extents(view, now_ms), now_ms, force=settings.force)
    reason = f"a job for offsets {extents[0].base_offset} to {extents[-1].last_offset} waits for {wait}"
    return _decision(view, Verdict.WAIT, reason, None, dirtiness)


def decision_without_job(view: PartitionView, now_ms: int, settings: PlannerSettings) -> PartitionDecision:
    """Return the decision that a partition is left alone."""
    whole = takeable_extents(view, now_ms)
    dirtiness = measure(view, whole, now_ms, force=settings.force)
    verdict, reason = _why_nothing(view, whole, dirtiness, settings)
    return _decision(view, verdict, reason, None, dirtiness)


def _why_nothing(
    view: PartitionView, whole: tuple[Extent, ...], dirtiness: Dirtiness, settings: PlannerSettings
) -> tuple[Verdict, str]:
    if not view.extents:
        return Verdict.NOTHING, "the partition is empty"
    if view.claimed_count:
        return (
            Verdict.WAIT,
            f"{count(view.claimed_count, 'extent')} in an open job; the rest can wait",
        )
    candidates = [
        view.quarantine_candidates[each.file_id]
        for each in view.extents
        if each.file_id in view.quarantine_candidates
    ]
    if candidates:
        return Verdict.WAIT, _why_quarantined(candidates)
    return _why_rested(view, whole, dirtiness, settings)


def _why_rested(
    view: PartitionView, whole: tuple[Extent, ...], dirtiness: Dirtiness, settings: PlannerSettings
) -> tuple[Verdict, str]:
    if dirtiness.due and whole and spans_too_many(whole[0].base_offset, whole[-1].last_offset):
        return Verdict.NOTHING, f"not cleaned beyond {MAX_SPAN} offsets from its log start"
    if dirtiness.due:
        return Verdict.WAIT, f"{_why_due(view, dirtiness, settings)}, but its first extents are not available"
    if len(whole) < len(view.extents):
        return Verdict.WAIT, _why_too_young(view, view.extents[len(whole)])
    return Verdict.NOTHING, _why_not_due(view, dirtiness)


def _why_quarantined(candidates: Sequence[QuarantineCandidate]) -> str:
    quarantined = sum(1 for each in candidates if each.quarantined_ms is not None)
    last = candidates[0]
    if quarantined:
        return (
            f"{count(quarantined, 'extent')} in quarantined files, which fail every job: {last.reason}; "
            f"`siltstone quarantine --retry` lets jobs take them again"
        )
    return f"{count(len(candidates), 'extent')} in files of a failed job ({last.reason}), to be retried"


def _why_too_young(view: PartitionView, extent: Extent) -> str:
    if extent.last_offset >= view.state.last_stable_offset:
        stable = view.state.last_stable_offset
        return f"records from offset {extent.base_offset} wait for the last stable offset {stable}"
    lag = view.rules.min_compaction_lag_ms
    return f"records from offset {extent.base_offset} are younger than min.compaction.lag.ms={lag}"


def _why_due(view: PartitionView, dirtiness: Dirtiness, settings: PlannerSettings) -> str:
    if view.exactness is Exactness.DEDUP_INCOMPLETE:
        return "the last job left keys twice for lack of memory, so an exact job follows"
    minimum = view.rules.min_cleanable_dirty_ratio
    if dirtiness.ratio > minimum:
        return f"dirty ratio {dirtiness.ratio:.2f} exceeds min.cleanable.dirty.ratio={minimum:g}"
    if dirtiness.overdue_ms > 0:
        return (
            f"max.compaction.lag.ms={view.rules.max_compaction_lag_ms} passed {dirtiness.overdue_ms} ms ago"
        )
    assert settings.force
    return f"forced, at dirty ratio {dirtiness.ratio:.2f}"


def _why_not_due(view: PartitionView, dirtiness: Dirtiness) -> str:
    if not view.rules.compacted:
        return f"everything is in compacted files; cleanup.policy={view.rules.cleanup_policy}"
    if not dirtiness.cleanable_bytes and view.exactness is not Exactness.EXACT:
        return (
            f"deduplicated up to offset {first_dirty_offset(view)}, but not exactly: the last exact job "
            f"could not finish and dropped little; the partition waits until it is dirty again"
        )
    if not dirtiness.cleanable_bytes:
        return f"clean up to offset {first_dirty_offset(view)}"
    return (
        f"dirty ratio {dirtiness.ratio:.2f} does not exceed "
        f"min.cleanable.dirty.ratio={view.rules.min_cleanable_dirty_ratio:g}"
    )


def _decision(
    view: PartitionView, verdict: Verdict, reason: str, job: int | None, dirtiness: Dirtiness
) -> PartitionDecision:
    return PartitionDecision(
        topic_id=view.state.topic_id,
        topic_name=view.rules.name,
        partition=view.state.partition,
        verdict=verdict,
        reason=reason,
        job=job,
        first_dirty_offset=first_dirty_offset(view),
        dirty_ratio=dirtiness.ratio,
        clean_bytes=dirtiness.clean_bytes,
        cleanable_bytes=dirtiness.cleanable_bytes,
    )
