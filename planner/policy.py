"""The policy: which extents are rewritten together, as a pure function of a snapshot.

Kinds of jobs. *Ingestion jobs* empty ingestion files into compacted ones; *cleaning jobs* deduplicate
compacted partitions that have become dirty again; *merging jobs* make large files of small ones; *sorting
jobs* make long extents of short ones; *bisection jobs* find the file for which a job has failed (modules
`ingestion`, `cleaning`, `merging`, `sorting` and `bisection` say how each chooses). Jobs are ordered by what
they are worth (`worth`), and as many are planned as the budget allows.

What holds for every plan, and is tested on random logs:

- an extent is in at most one job, and in none when an open job has claimed it;
- a job's extents of a partition are one range of offsets without a gap;
- nothing at or past the last stable offset is taken, and nothing inside its min.compaction.lag.ms is
  deduplicated;
- a job keeps to the bounds on bytes and files, unless a single partition is larger than they allow;
- planning and compacting in turn comes to an end: each job empties ingestion files, makes a partition clean,
  leaves fewer extents, fewer small files or none that is mostly dead, and none of it is undone by the others
  without end.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from planner.cleaning import draft_cleaning_jobs
from planner.clustering import draft_sorting_jobs
from planner.explanation import decision_deferred, decision_in_job, decision_without_job, job_reason
from planner.fault_bisection import draft_bisection_jobs
from planner.ingestion import draft_ingestion_jobs
from planner.merging import draft_merging_jobs
from planner.plan import Plan
from planner.score import RequestPrices, affordable, score_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from catalog.model import Extent, PartitionId
    from planner.plan import PartitionDecision
    from planner.selection import JobDraft
    from planner.settings import PlannerSettings
    from planner.snapshot import Snapshot

PRICES: Final = RequestPrices()


def make_plan(snapshot: Snapshot, settings: PlannerSettings) -> Plan:
    """What to do about `snapshot`; the same answer each time it is asked."""
    drafts = draft_bisection_jobs(snapshot, settings) + draft_ingestion_jobs(snapshot, settings)
    drafts += draft_cleaning_jobs(snapshot, settings, _is_taken(drafts))
    drafts += draft_sorting_jobs(snapshot, settings, _is_taken(drafts))
    drafts += draft_merging_jobs(snapshot, settings, _is_taken(drafts))
    judged = [(score_of(draft, PRICES, snapshot.now_ms, force=settings.force), draft) for draft in drafts]
    judged.sort(key=lambda each: each[0].rank)  # stable
    allowed = affordable([worth for worth, _ in judged], snapshot.spent, settings)
    jobs = tuple(draft.finish(job_reason(draft, snapshot.now_ms), worth) for worth, draft in judged[:allowed])
    return Plan(
        now_ms=snapshot.now_ms,
        jobs=jobs,
        decide=partial(_decisions, snapshot, settings, [draft for _, draft in judged], allowed),
        deferred=len(judged) - allowed,
    )


def _is_taken(drafts: list[JobDraft]) -> Callable[[Extent], bool]:
    taken = {
        (extent.topic_id.int, extent.partition, extent.base_offset)
        for draft in drafts
        for _, extents in draft.partitions()
        for extent in extents
    }
    return lambda extent: (extent.topic_id.int, extent.partition, extent.base_offset) in taken


def _decisions(
    snapshot: Snapshot, settings: PlannerSettings, drafts: list[JobDraft], allowed: int
) -> tuple[PartitionDecision, ...]:
    """For every partition that is in a job or the snapshot, in section order: one per job, or one without."""
    planned: dict[PartitionId, list[PartitionDecision]] = {}
    for index, draft in enumerate(drafts):
        for view, extents in draft.partitions():
            if index < allowed:
                decision = decision_in_job(view, extents, (index, draft), snapshot.now_ms, settings)
            else:
                decision = decision_deferred(view, extents, snapshot.now_ms, settings)
            planned.setdefault(view.partition_id, []).append(decision)
    for view in snapshot.partitions:
        if view.partition_id not in planned:
            planned[view.partition_id] = [decision_without_job(view, snapshot.now_ms, settings)]
    order = sorted(planned, key=lambda key: (key.topic_id.int, key.partition))
    return tuple(decision for key in order for decision in planned[key])
