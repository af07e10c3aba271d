"""Jobs over the files of jobs that have failed: half as many at a time, until the one to blame is alone.

A job that failed for good suspects each of its files (`catalog.jobs.quarantine`). Suspected files are in no
other job, so that what is sound goes on being compacted, and are taken here in groups of at most what their
last failure allows. A group that succeeds is cleared, since its files are gone; of one that fails the halves
come next. Of n files with one that is bad, some 2 log2(n) jobs clear all others; what fails alone is
quarantined by the catalog, and not taken again until somebody forgives it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from catalog.model import PartitionId
from planner.dirtiness import contiguous_run, stable_extents
from planner.plan import JobKind
from planner.selection import JobDraft

if TYPE_CHECKING:
    from collections.abc import Iterator
    from uuid import UUID

    from catalog.jobs.quarantine import QuarantineCandidate
    from catalog.model import Extent
    from planner.settings import PlannerSettings
    from planner.snapshot import FileView, Snapshot


def draft_bisection_jobs(snapshot: Snapshot, settings: PlannerSettings) -> list[JobDraft]:
    """The jobs that try suspected files again; no extent is in two of them."""
    if not snapshot.suspects:
        return []
    views = {view.partition_id: view for view in snapshot.partitions}
    held = _extents_of_suspects(snapshot)
    drafts: list[JobDraft] = []
    for group in _groups(snapshot, settings, held):
        draft = JobDraft(JobKind.BISECTION, snapshot.files, settings, snapshot.now_ms)
        by_partition: dict[PartitionId, list[Extent]] = {}
        for file in group:
            for extent in held[file.file_id]:
                by_partition.setdefault(PartitionId(extent.topic_id, extent.partition), []).append(extent)
        for key, extents in sorted(by_partition.items()):
            draft.take(views[key], contiguous_run(sorted(extents, key=lambda each: each.base_offset)))
        drafts.append(draft)
    return drafts


def may_be_tried(suspect: QuarantineCandidate, now_ms: int) -> bool:
    """Whether a suspected file may be in a job again."""
    return suspect.quarantined_ms is None and suspect.not_before_ms <= now_ms


def _extents_of_suspects(snapshot: Snapshot) -> dict[UUID, list[Extent]]:
    """By suspected file that may be tried now, its free and stable extents."""
    found: dict[UUID, list[Extent]] = {}
    for view in snapshot.partitions:
        for extent in stable_extents(view):
            suspect = snapshot.suspects.get(extent.file_id)
            if suspect is None or extent.claimed_by is not None or extent.file_id not in snapshot.files:
                continue
            if may_be_tried(suspect, snapshot.now_ms):
                found.setdefault(extent.file_id, []).append(extent)
    return found


def _groups(
    snapshot: Snapshot, settings: PlannerSettings, held: dict[UUID, list[Extent]]
) -> Iterator[list[FileView]]:
    """Files of one failed job, in commit order, as many as all of them allow."""
    files = [file for file in snapshot.files.values() if file.file_id in held]
    files.sort(key=lambda file: snapshot.suspects[file.file_id].job_id)  # stable: commit order among equals
    group: list[FileView] = []
    for file in files:
        suspect = snapshot.suspects[file.file_id]
        full = group and (
            suspect.job_id != snapshot.suspects[group[0].file_id].job_id
            or len(group) >= min(suspect.max_files, *(_allowed(snapshot, each) for each in group))
            or sum(each.size for each in group) + file.size > settings.max_job_input_bytes
        )
        if full:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _allowed(snapshot: Snapshot, file: FileView) -> int:
    return snapshot.suspects[file.file_id].max_files
