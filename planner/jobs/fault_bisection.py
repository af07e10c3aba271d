"""Fault bisection: retry the files of failed jobs in ever smaller groups, until the faulty file is alone.

A job that failed permanently makes each of its files a quarantine candidate (`catalog.jobs.quarantine`).
Candidates are in no other job, so that sound files continue to be compacted. Here they are retried in groups
of at most the size that their last failure allows. A group that succeeds is cleared, because its files are
replaced; a group that fails is halved. For n files with one fault, about 2 log2(n) jobs clear all others.
The catalog quarantines a file that fails here alone; an operator releases it.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from planner.dirtiness import stable_extents
from planner.plan import JobKind
from planner.selection import JobDraft

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from catalog.jobs.quarantine import QuarantineCandidate
    from catalog.model import Extent
    from planner.settings import PlannerSettings
    from planner.snapshot import FileView, Snapshot


def draft_fault_bisection_jobs(snapshot: Snapshot, settings: PlannerSettings) -> list[JobDraft]:
    """Return the jobs that retry candidates; no extent is in two of them."""
    if not snapshot.quarantine_candidates:
        return []
    views = {view.partition_id: view for view in snapshot.partitions}
    by_file = _extents_of_candidates(snapshot)
    drafts: list[JobDraft] = []
    for group in _groups(snapshot, settings, by_file):
        draft = JobDraft(JobKind.FAULT_BISECTION, snapshot.files, settings, snapshot.now_ms)
        draft.take_runs(views, (extent for file in group for extent in by_file[file.file_id]))
        drafts.append(draft)
    return drafts


def can_be_retried(candidate: QuarantineCandidate, now_ms: int) -> bool:
    """Return True if a candidate may be in a job again."""
    return candidate.quarantined_ms is None and candidate.not_before_ms <= now_ms


def _extents_of_candidates(snapshot: Snapshot) -> dict[UUID, list[Extent]]:
    """Return the free and stable extents of the candidates that may be retried now, by file."""
    found: dict[UUID, list[Extent]] = {}
    for view in snapshot.partitions:
        for extent in stable_extents(view):
            candidate = snapshot.quarantine_candidates.get(extent.file_id)
            if candidate is None or extent.claimed_by is not None or extent.file_id not in snapshot.files:
                continue
            if can_be_retried(candidate, snapshot.now_ms):
                found.setdefault(extent.file_id, []).append(extent)
    return found


def _groups(
    snapshot: Snapshot, settings: PlannerSettings, by_file: dict[UUID, list[Extent]]
) -> Iterator[list[FileView]]:
    """Yield groups of files of one failed job, in commit order, as large as all of them allow."""
    candidates = snapshot.quarantine_candidates
    by_job: defaultdict[UUID, list[FileView]] = defaultdict(list)
    for file in snapshot.files.values():
        if file.file_id in by_file:
            by_job[candidates[file.file_id].job_id].append(file)
    for job_id in sorted(by_job):
        group: list[FileView] = []
        for file in by_job[job_id]:
            larger = [*group, file]
            allowed = min(candidates[each.file_id].max_files for each in larger)
            size = sum(each.size for each in larger)
            if group and (len(larger) > allowed or size > settings.max_job_input_bytes):
                yield group
                larger = [file]
            group = larger
        yield group
