"""Cleaning jobs: compacted partitions that are due, from their log start on, compacted files only.

What is still in ingestion files, or in another job, ends the part that can be cleaned; that part alone
decides whether the cleaning is due. So a partition with a steady stream of news is cleaned behind its tail
and never starves, and one that has just been cleaned has nothing cleanable left and rests.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from catalog.model import FileKind
from planner.dirtiness import contiguous_run, measure, takeable_extents
from planner.plan import JobKind
from planner.selection import JobDraft

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from uuid import UUID

    from catalog.model import Extent
    from planner.settings import PlannerSettings
    from planner.snapshot import PartitionView, Snapshot


@dataclass(frozen=True, slots=True)
class _Candidate:
    view: PartitionView
    extents: tuple[Extent, ...]


def draft_cleaning_jobs(
    snapshot: Snapshot, settings: PlannerSettings, is_taken: Callable[[Extent], bool]
) -> list[JobDraft]:
    """The cleaning jobs of a snapshot; `is_taken` tells which extents other jobs of the plan have."""
    candidates: list[_Candidate] = []
    for view in snapshot.partitions:
        prefix = cleanable_prefix(view, snapshot.now_ms, is_taken)
        if prefix and measure(view, prefix, snapshot.now_ms, force=settings.force).due:
            candidates.append(_Candidate(view, prefix))
    drafts: list[JobDraft] = []
    for candidate in _neighbours_together(candidates):
        if not drafts or not drafts[-1].fits(candidate.view, candidate.extents):
            drafts.append(JobDraft(JobKind.CLEANING, snapshot.files, settings, snapshot.now_ms))
        drafts[-1].take(candidate.view, candidate.extents)
    return drafts


def cleanable_prefix(
    view: PartitionView, now_ms: int, is_taken: Callable[[Extent], bool]
) -> tuple[Extent, ...]:
    """The extents from the log start on that lie in compacted files and that nobody else has."""
    if not view.rules.compacted:
        return ()
    extents = takeable_extents(view, now_ms)
    for index, extent in enumerate(extents):
        free = view.is_free(extent) and not is_taken(extent)
        if extent.file_kind is not FileKind.COMPACTED or not free:
            extents = extents[:index]
            break
    run = contiguous_run(extents)
    return run if run and run[0].base_offset <= view.state.log_start_offset else ()


def _neighbours_together(candidates: Iterable[_Candidate]) -> list[_Candidate]:
    """Partitions that share a file, directly or through others, one after the other.

    A disjoint-set forest over the files; each set comes where the first of its partitions stands.
    """
    parent: dict[UUID, UUID] = {}

    def find(file_id: UUID) -> UUID:
        root = file_id
        while parent.setdefault(root, root) != root:
            root = parent[root]
        while parent[file_id] != root:
            parent[file_id], file_id = root, parent[file_id]
        return root

    ordered = list(candidates)
    for candidate in ordered:
        first = find(candidate.extents[0].file_id)
        for extent in candidate.extents[1:]:
            parent[find(extent.file_id)] = first
            first = find(first)
    sets: dict[UUID, list[_Candidate]] = {}
    for candidate in ordered:
        sets.setdefault(find(candidate.extents[0].file_id), []).append(candidate)
    return [candidate for members in sets.values() for candidate in members]
