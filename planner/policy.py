"""The first policy: which extents are rewritten together, as a pure function of a snapshot.

Kinds of jobs. *Ingestion jobs* empty ingestion files into compacted ones; *cleaning jobs* deduplicate
compacted partitions that have become dirty again; *bisection jobs* find the file for which a job has failed
(modules `ingestion`, `cleaning` and `bisection` say how each chooses).

What holds for every plan, and is tested on random logs:

- an extent is in at most one job, and in none when an open job has claimed it;
- a job's extents of a partition are one range of offsets without a gap;
- nothing at or past the last stable offset is taken, and nothing inside its min.compaction.lag.ms is
  deduplicated;
- a job keeps to the bounds on bytes and files, unless a single partition is larger than they allow;
- planning and compacting in turn comes to an end: each round empties ingestion files or makes a partition
  clean, and neither is undone by compaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from planner.bisection import draft_bisection_jobs
from planner.cleaning import draft_cleaning_jobs
from planner.ingestion import draft_ingestion_jobs
from planner.plan import Plan
from planner.reasons import decision_in_job, decision_without_job, job_reason

if TYPE_CHECKING:
    from catalog.model import Extent, PartitionId
    from planner.plan import PartitionDecision
    from planner.selection import JobDraft
    from planner.settings import PlannerSettings
    from planner.snapshot import Snapshot


def make_plan(snapshot: Snapshot, settings: PlannerSettings) -> Plan:
    """What to do about `snapshot`; the same answer each time it is asked."""
    drafts = draft_bisection_jobs(snapshot, settings) + draft_ingestion_jobs(snapshot, settings)
    taken = _taken(drafts)

    def is_taken(extent: Extent) -> bool:
        return id(extent) in taken

    drafts += draft_cleaning_jobs(snapshot, settings, is_taken)
    jobs = tuple(draft.finish(job_reason(draft, snapshot.now_ms)) for draft in drafts)
    return Plan(now_ms=snapshot.now_ms, jobs=jobs, decisions=_decisions(snapshot, settings, drafts))


def _taken(drafts: list[JobDraft]) -> set[int]:
    """By identity: drafts hold the snapshot's own extents."""
    return {id(extent) for draft in drafts for _, extents in draft.partitions() for extent in extents}


def _decisions(
    snapshot: Snapshot, settings: PlannerSettings, drafts: list[JobDraft]
) -> tuple[PartitionDecision, ...]:
    """For every partition of the snapshot, in its order: one decision per job, or one without."""
    planned: dict[PartitionId, list[PartitionDecision]] = {}
    for index, draft in enumerate(drafts):
        for view, extents in draft.partitions():
            decision = decision_in_job(view, extents, index, snapshot.now_ms, settings)
            planned.setdefault(view.partition_id, []).append(decision)
    decisions: list[PartitionDecision] = []
    for view in snapshot.partitions:
        decisions += planned.get(view.partition_id) or [decision_without_job(view, snapshot.now_ms, settings)]
    return tuple(decisions)
