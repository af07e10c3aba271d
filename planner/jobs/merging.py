"""Merging jobs: turn small compacted files into larger ones, and rewrite files that are mostly dead.

A job takes all extents of its files, so that each file dies. Files are grouped if each partition's extents
stay one range of offsets and all topics have the same kind of cleanup policy. The output is cut at section
borders into files of the target size, each with a range of (topic, partition). A merge deduplicates nothing:
it writes exactly the live records. Files with too many extents for a group in one plan are left to
`clustering`.

Small files have levels by live bytes, each level `merge_fan_in` times as large as the one below. A group
justifies a job if it has `merge_fan_in` files of its highest level (then every byte rises by a level), or
enough bytes that no small file need come out. Either way fewer small files remain, so merging ends.
`docs/explanation/planner.md` derives how often a byte is rewritten.

Tiered merging as in log-structured merge trees (O'Neil et al., 1996; Jagadish et al., 1997).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID

from catalog.grouping import by_partition
from catalog.jobs.byte_ranges import byte_range_of
from catalog.model import PartitionId
from planner.dirtiness import spans_too_many
from planner.jobs.clustering import is_clustered_by_range
from planner.plan import JobKind
from planner.selection import JobDraft

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from catalog.model import Extent
    from planner.settings import PlannerSettings
    from planner.snapshot import Mergeable, PartitionView, Snapshot

_MAX_OPEN_GROUPS: Final = 64
_NO_PARTITION: Final = PartitionId(UUID(int=0), -1)


def draft_merging_jobs(
    snapshot: Snapshot, settings: PlannerSettings, is_taken: Callable[[Extent], bool]
) -> list[JobDraft]:
    """Return the merging jobs of a snapshot; `is_taken` says which extents other jobs of the plan have."""
    left = [
        each
        for each in snapshot.mergeable
        if each.extents
        and not any(is_taken(extent) for extent in each.extents)
        and all(_is_stable(snapshot.mergeable_views.get(_key(extent)), extent) for extent in each.extents)
    ]
    groups = _groups(snapshot, settings, left)
    used = {each.file.file_id for group in groups for each in group}
    groups += [[each] for each in left if each.file.file_id not in used and is_mostly_dead(each, settings)]
    return [_draft(snapshot, settings, group) for group in groups]


def is_mostly_dead(file: Mergeable, settings: PlannerSettings) -> bool:
    """Return True if so much of a file is dead that rewriting the rest pays off."""
    born_bytes = file.live_bytes + file.dead_bytes
    return file.dead_bytes >= max(settings.min_dead_bytes, settings.dead_share * born_bytes)


def level_of(live_bytes: int, settings: PlannerSettings) -> int:
    """Return the level of a small file by its live bytes; 0 below `level_floor_bytes`."""
    level, bound = 0, settings.level_floor_bytes
    while live_bytes >= bound:
        level, bound = level + 1, bound * settings.merge_fan_in
    return level


def _is_stable(view: PartitionView | None, extent: Extent) -> bool:
    """Return True if the partition was examined and the extent is below its last stable offset."""
    return view is not None and extent.last_offset < view.state.last_stable_offset


def _key(extent: Extent) -> PartitionId:
    return PartitionId(extent.topic_id, extent.partition)


@dataclass(slots=True)
class _Run:
    """The extents of one partition in a group."""

    base_offset: int
    end_offset: int
    oldest_ms: int
    newest_ms: int

    @classmethod
    def of(cls, extent: Extent) -> _Run:
        return cls(extent.base_offset, extent.job_end_offset, extent.min_timestamp, extent.max_timestamp)

    def joined(self, other: _Run) -> _Run | None:
        """Return both as one; None if there is a gap between them, or no section can hold both."""
        if other.base_offset != self.end_offset and other.end_offset != self.base_offset:
            return None
        first, end = min(self.base_offset, other.base_offset), max(self.end_offset, other.end_offset)
        if spans_too_many(first, end - 1):
            return None
        return _Run(
            first,
            end,
            min(self.oldest_ms, other.oldest_ms),
            max(self.newest_ms, other.newest_ms),
        )


@dataclass(slots=True)
class _Group:
    """Files that may go into one job."""

    settings: PlannerSettings
    views: Mapping[PartitionId, PartitionView]
    now_ms: int
    files: list[Mergeable] = field(default_factory=list)
    runs: dict[PartitionId, _Run] = field(default_factory=dict)
    input_bytes: int = 0
    live_bytes: int = 0
    extents: int = 0
    first: PartitionId = _NO_PARTITION
    last: PartitionId = _NO_PARTITION

    def has_room(self, file: Mergeable, reads: int) -> bool:
        """Return True if the bounds of a job allow one more file and `reads` more bytes."""
        limits = self.settings
        return not self.files or (
            self.input_bytes + reads <= limits.max_job_input_bytes
            and len(self.files) < limits.max_job_files
            and self.extents + len(file.extents) <= limits.max_job_extents
        )

    def take(self, file: Mergeable, reads: int) -> bool:
        """Add a file and return True, unless a partition would have a gap or span too much time.

        Also refuse a file with another range of partitions if it is clustered by range: joining it would save
        no request.
        """
        first, last = _key(file.extents[0]), _key(file.extents[-1])
        elsewhere = bool(self.files) and (last < self.first or self.last < first)
        if elsewhere and is_clustered_by_range(file.file, self.settings):
            return False
        joined: dict[PartitionId, _Run] = {}
        for extent in file.extents:
            key = _key(extent)
            run, own = joined.get(key) or self.runs.get(key), _Run.of(extent)
            both = own if run is None else run.joined(own)
            if both is None or (run is not None and self._spans_too_much(key, both)):
                return False
            joined[key] = both
        self.runs |= joined
        self.first, self.last = (
            (min(self.first, first), max(self.last, last)) if self.files else (first, last)
        )
        self.files.append(file)
        self.input_bytes += reads
        self.live_bytes += file.live_bytes
        self.extents += len(file.extents)
        return True

    def _spans_too_much(self, key: PartitionId, run: _Run) -> bool:
        return self.views[key].rules.spans_too_long(run.oldest_ms, run.newest_ms, self.now_ms)

    def is_worth_a_job(self, level: int) -> bool:
        """Return True if the group has `merge_fan_in` files of this level, or fills a file of full size.

        Either takes two files or more, because each is smaller than a file of full size.
        """
        highest = sum(1 for each in self.files if level_of(each.live_bytes, self.settings) == level)
        return highest >= self.settings.merge_fan_in or self.live_bytes >= self.settings.full_bytes


def _groups(
    snapshot: Snapshot, settings: PlannerSettings, candidates: Iterable[Mergeable]
) -> list[list[Mergeable]]:
    """Return groups of small files, from the lowest level up; no file is in two groups."""
    small = [
        each
        for each in candidates
        if each.live_bytes < settings.full_bytes and len(each.extents) <= settings.max_merged_extents
    ]
    small.sort(key=_log_order)
    found: list[list[Mergeable]] = []
    for level in sorted({level_of(each.live_bytes, settings) for each in small}):
        for compacted in (True, False):
            of_level = [
                each
                for each in small
                if level_of(each.live_bytes, settings) <= level and _is_compacted(snapshot, each) is compacted
            ]
            chosen = [
                group.files for group in _fill(snapshot, settings, of_level) if group.is_worth_a_job(level)
            ]
            used = {each.file.file_id for files in chosen for each in files}
            small = [each for each in small if each.file.file_id not in used]
            found += chosen
    return found


def _fill(snapshot: Snapshot, settings: PlannerSettings, files: Sequence[Mergeable]) -> list[_Group]:
    """Put each file into the first group that takes it; close a group that has no room for the next file."""
    closed: list[_Group] = []
    groups: list[_Group] = []
    for file in files:
        reads = byte_range_of(file.extents).length
        for group in tuple(groups):
            if not group.has_room(file, reads):
                groups.remove(group)
                closed.append(group)
            elif group.take(file, reads):
                break
        else:
            if len(groups) == _MAX_OPEN_GROUPS:
                closed.append(groups.pop(0))
            fresh = _Group(settings, snapshot.mergeable_views, snapshot.now_ms)
            if fresh.take(file, reads):
                groups.append(fresh)
    return closed + groups


def _log_order(file: Mergeable) -> tuple[int, int, int]:
    """Return a sort key by the oldest commit, because offsets of each partition rise with commits."""
    oldest = min(file.extents, key=lambda extent: (extent.committed_ms, extent.base_offset))
    return oldest.committed_ms, oldest.base_offset, file.file.file_id.int


def _is_compacted(snapshot: Snapshot, file: Mergeable) -> bool | None:
    """Return the kind of the file's topics; None if settings have changed and it has both kinds."""
    kinds = {snapshot.mergeable_views[_key(extent)].rules.compacted for extent in file.extents}
    return kinds.pop() if len(kinds) == 1 else None


def _draft(snapshot: Snapshot, settings: PlannerSettings, files: Sequence[Mergeable]) -> JobDraft:
    known = {each.file.file_id: each.file for each in files}
    draft = JobDraft(JobKind.MERGING, known, settings, snapshot.now_ms)
    for key, extents in by_partition(extent for each in files for extent in each.extents).items():
        draft.take(snapshot.mergeable_views[key], sorted(extents, key=lambda extent: extent.base_offset))
    draft.cut_evenly()
    draft.dead_bytes = sum(each.dead_bytes for each in files)
    return draft
