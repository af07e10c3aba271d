"""Invariants of the catalog as named predicates over plain values.

Each predicate returns its violations. Tests check the predicates after every step; `fsck` checks them on a
live catalog. The arguments of a predicate must come from one snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from catalog.model import FileKind

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence
    from uuid import UUID

    from catalog.jobs.planning_queries import PartitionSize
    from catalog.lifecycle.repair import FileCounts
    from catalog.model import Extent, PartitionState
    from catalog.transactions.lookups import Contradiction


@dataclass(frozen=True, slots=True)
class Violation:
    """Violation of an invariant: its name, the object that violates it, and what was found."""

    invariant: str
    where: str
    found: str


def _where(state: PartitionState | Extent) -> str:
    return f"topic {state.topic_id}, partition {state.partition}"


def bounds_ordered(state: PartitionState) -> list[Violation]:
    """Check 0 ≤ log start ≤ last stable offset ≤ high watermark ≤ log end, and first dirty ≤ log end."""
    bounds = (0, state.log_start_offset, state.last_stable_offset, state.high_watermark, state.log_end_offset)
    ordered = all(lower <= upper for lower, upper in pairwise(bounds))
    if ordered and 0 <= state.first_dirty_offset <= state.log_end_offset:
        return []
    found = f"bounds {bounds[1:]}, first dirty offset {state.first_dirty_offset}"
    return [Violation("bounds_ordered", _where(state), found)]


def bounds_never_go_back(before: PartitionState, after: PartitionState) -> list[Violation]:
    """Check that no bound of a partition has decreased."""
    names = (
        "log_start_offset",
        "last_stable_offset",
        "high_watermark",
        "log_end_offset",
        "first_dirty_offset",
        "leader_epoch",
    )
    return [
        Violation(
            "bounds_never_go_back",
            _where(after),
            f"{name} went from {getattr(before, name)} to {getattr(after, name)}",
        )
        for name in names
        if getattr(after, name) < getattr(before, name)
    ]


def extents_cover_log(state: PartitionState, extents: Sequence[Extent]) -> list[Violation]:
    """Check that the live extents, in offset order, cover [log start, log end) without gap or overlap.

    Extents below the log start, which retention will remove, may have gaps: a publication adds none there.
    """
    found: list[str] = []
    wanted = [extent for extent in extents if extent.last_offset >= state.log_start_offset]
    if not wanted:
        if state.log_start_offset != state.log_end_offset:
            found.append(f"nothing covers [{state.log_start_offset}, {state.log_end_offset})")
    else:
        if wanted[0].base_offset > state.log_start_offset:
            found.append(f"they begin at {wanted[0].base_offset}, after {state.log_start_offset}")
        if wanted[-1].last_offset + 1 != state.log_end_offset:
            found.append(f"they end at {wanted[-1].last_offset}, the log at {state.log_end_offset}")
    for before, after in pairwise(extents):
        is_read = before.last_offset >= state.log_start_offset
        if after.base_offset <= before.last_offset or (
            is_read and before.last_offset + 1 != after.base_offset
        ):
            found.append(f"one ends at {before.last_offset}, the next begins at {after.base_offset}")
    return [Violation("extents_cover_log", _where(state), each) for each in found]


def record_counts_agree(extent: Extent, holes: int | None = None) -> list[Violation]:
    """Check that an extent has one record per offset except its holes.

    If `holes` is None, check only that it has at most one record per offset.
    """
    offsets = extent.last_offset - extent.base_offset + 1
    if holes is None:
        agrees = 0 <= extent.record_count <= offsets and offsets > 0
    else:
        agrees = extent.record_count == offsets - holes
    if agrees:
        return []
    found = f"{extent.record_count} records in [{extent.base_offset}, {extent.last_offset}]"
    if holes is not None:
        found += f" with {holes} holes"
    return [Violation("record_counts_agree", _where(extent), found)]


def sizes_add_up(size: PartitionSize, extents: Iterable[Extent]) -> list[Violation]:
    """Check that a partition's totals are those of its live extents."""
    live = dirty = ingestion = compacted = 0
    for extent in extents:
        live += extent.length
        dirty += extent.length if extent.last_offset >= size.state.first_dirty_offset else 0
        ingestion += extent.file_kind is FileKind.INGESTION
        compacted += extent.file_kind is FileKind.COMPACTED
    stored = (size.live_bytes, size.dirty_bytes, size.ingestion_extents, size.compacted_extents)
    actual = (live, dirty, ingestion, compacted)
    if stored == actual:
        return []
    found = f"live bytes, dirty bytes, ingestion and compacted extents are {actual}, stored as {stored}"
    return [Violation("sizes_add_up", _where(size.state), found)]


def transactions_agree(contradictions: Iterable[Contradiction]) -> list[Violation]:
    """Check that last stable offsets and aborted transactions agree with the other rows."""
    return [
        Violation(
            "transactions_agree",
            f"topic {each.partition.topic_id}, partition {each.partition.partition}",
            f"expected {each.expected}, found {each.found}",
        )
        for each in contradictions
    ]


def file_counts_agree(counts: FileCounts) -> list[Violation]:
    """Check that a file's counts are those of its extents, and that only open jobs claim these."""
    found = []
    if counts.stored != counts.actual:
        actual, stored = tuple(counts.actual), tuple(counts.stored)
        found.append(f"live and claimed extents, live bytes, is dead: {actual}, stored as {stored}")
    if counts.stale_claims:
        found.append(f"{counts.stale_claims} extents are claimed by jobs that are not open")
    return [Violation("file_counts_agree", f"file {counts.object_name}", each) for each in found]


def garbage_is_unneeded(
    dead_files: Collection[UUID], extents: Iterable[Extent], files_of_open_jobs: Collection[UUID]
) -> list[Violation]:
    """Check that no file that may be deleted has a live extent or is read by an open job."""
    dead = set(dead_files)
    needed = {extent.file_id: f"{_where(extent)}, offset {extent.base_offset}" for extent in extents}
    needed |= dict.fromkeys(files_of_open_jobs, "an open job")
    return [
        Violation(
            "garbage_is_unneeded", f"file {file_id}", f"may be deleted, but is needed by {needed[file_id]}"
        )
        for file_id in sorted(dead & needed.keys())
    ]


def claims_are_of_open_jobs(
    extents: Iterable[Extent], open_jobs: Mapping[UUID, Collection[tuple[UUID, int, int]]]
) -> list[Violation]:
    """Check that each claimed extent is an input of the open job that claims it.

    `open_jobs` has (topic id, partition, base offset) of each job's inputs.
    """
    return [
        Violation(
            "claims_are_of_open_jobs",
            f"{_where(extent)}, offset {extent.base_offset}",
            f"claimed by job {extent.claimed_by}, which is not open or does not read it",
        )
        for extent in extents
        if extent.claimed_by is not None
        and (extent.topic_id, extent.partition, extent.base_offset)
        not in open_jobs.get(extent.claimed_by, ())
    ]
