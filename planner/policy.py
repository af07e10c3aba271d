"""The policy: which extents are rewritten together, as a pure function of a snapshot.

Kinds of jobs, one module of `planner.jobs` each: *ingestion jobs* move records from ingestion files into
compacted ones (`ingestion`); *cleaning jobs* deduplicate compacted partitions that became dirty again
(`cleaning`); *merging jobs* turn small files into large ones (`merging`); *clustering jobs* turn short
extents into long ones (`clustering`); *fault bisection jobs* find the file that makes a job fail
(`fault_bisection`). Jobs are ordered by their score (`score`), and the budget limits how many are planned.
In a paced plan, small amounts of new data wait for more (`pace`).

Invariants of every plan, tested on random logs:

- An extent is in at most one job, and in none if an open job has claimed it.
- A job's extents of a partition are one range of offsets without a gap.
- No job takes an offset at or past the last stable offset, or deduplicates within min.compaction.lag.ms.
- A job keeps to the bounds on bytes and files, unless a single partition exceeds them.
- Planning and compacting alternately comes to an end. Each job empties ingestion files, makes a partition
  clean, or leaves fewer extents, fewer small files or fewer mostly dead files, and no job undoes the work of
  another forever.
"""

from __future__ import annotations

from functools import cache, partial
from typing import TYPE_CHECKING, Final

from planner.explanation import (
    decision_deferred,
    decision_in_job,
    decision_to_wait,
    decision_without_job,
    job_reason,
)
from planner.jobs.cleaning import draft_cleaning_jobs
from planner.jobs.clustering import draft_clustering_jobs
from planner.jobs.fault_bisection import draft_fault_bisection_jobs
from planner.jobs.ingestion import draft_ingestion_jobs
from planner.jobs.merging import draft_merging_jobs
from planner.next_change import next_change_ms
from planner.plan import Plan
from planner.score import RequestPrices, affordable, score_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from catalog.model import Extent, PartitionId
    from planner.plan import PartitionDecision
    from planner.selection import JobDraft
    from planner.settings import PlannerSettings
    from planner.snapshot import Snapshot

PRICES: Final = RequestPrices()


def make_plan(snapshot: Snapshot, settings: PlannerSettings) -> Plan:
    """Return the plan for `snapshot`; deterministic."""
    drafts = draft_fault_bisection_jobs(snapshot, settings) + draft_ingestion_jobs(snapshot, settings)
    drafts += draft_cleaning_jobs(snapshot, settings, _is_taken(drafts))
    waiting = [draft for draft in drafts if settings.paced and draft.wait is not None]
    drafts = [draft for draft in drafts if draft not in waiting]
    drafts += draft_clustering_jobs(snapshot, settings, _is_taken(drafts))
    drafts += draft_merging_jobs(snapshot, settings, _is_taken(drafts))
    scored = [(score_of(draft, PRICES, snapshot.now_ms), draft) for draft in drafts]
    scored.sort(key=lambda each: each[0].rank)  # stable
    allowed = affordable([score for score, _ in scored], snapshot.spent, settings)
    jobs = tuple(draft.finish(job_reason(draft, snapshot.now_ms), score) for score, draft in scored[:allowed])
    return Plan(
        now_ms=snapshot.now_ms,
        jobs=jobs,
        decide=partial(_decisions, snapshot, settings, [draft for _, draft in scored], allowed, waiting),
        deferred=len(scored) - allowed,
        ingestion_end=snapshot.ingestion_end,
        is_complete=snapshot.is_complete,
        changes_at=partial(
            next_change_ms, snapshot, [draft.wait for draft in waiting if draft.wait is not None]
        ),
    )


def _is_taken(drafts: Iterable[JobDraft]) -> Callable[[Extent], bool]:
    """Return whether one of the drafts has an extent, as a function; its first call collects all extents."""
    drafts = tuple(drafts)

    @cache
    def taken() -> set[tuple[int, int, int]]:
        return {
            (extent.topic_id.int, extent.partition, extent.base_offset)
            for draft in drafts
            for _, extents in draft.partitions()
            for extent in extents
        }

    return lambda extent: (extent.topic_id.int, extent.partition, extent.base_offset) in taken()


def _decisions(
    snapshot: Snapshot,
    settings: PlannerSettings,
    drafts: list[JobDraft],
    allowed: int,
    waiting: list[JobDraft],
) -> tuple[PartitionDecision, ...]:
    """Return the decisions for every partition in a job or the snapshot, in section order."""
    planned: dict[PartitionId, list[PartitionDecision]] = {}
    for index, draft in enumerate(drafts):
        for view, extents in draft.partitions():
            if index < allowed:
                decision = decision_in_job(view, extents, (index, draft), snapshot.now_ms, settings)
            else:
                decision = decision_deferred(view, extents, snapshot.now_ms, settings)
            planned.setdefault(view.partition_id, []).append(decision)
    for draft in waiting:
        for view, extents in draft.partitions():
            decision = decision_to_wait(view, extents, draft.wait, snapshot.now_ms, settings)
            planned.setdefault(view.partition_id, []).append(decision)
    for view in snapshot.partitions:
        if view.partition_id not in planned:
            planned[view.partition_id] = [decision_without_job(view, snapshot.now_ms, settings)]
    order = sorted(planned, key=lambda key: (key.topic_id.int, key.partition))
    return tuple(decision for key in order for decision in planned[key])
