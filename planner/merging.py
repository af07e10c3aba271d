"""Merging jobs: small compacted files become larger ones, and files that are mostly dead are written anew.

A job takes whole files, all their extents, so that each of them dies. Files go together where every
partition's extents stay one range of offsets, and where they are of one kind of cleanup policy. What comes
out is cut at section borders into files that are large enough, each of which covers a range of (topic,
partition). Nothing is deduplicated: a merge writes what is live, no more and no less. Files with so many
extents that a plan has no room for as many as the fan-in are left to `sorting`.

Small files have levels by their live bytes, each level `merge_fan_in` times as large as the one below. A
group is worth a job when it has `merge_fan_in` files of its highest level (then every byte of it rises a
level), or so many bytes that nothing small need come out. Either way fewer small files are left than before,
which is why it ends; `docs/explanation/planner.md` derives how often a byte is written at the most.

Tiered merging as in log-structured merge trees (O'Neil et al., 1996; Jagadish et al., 1997).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from uuid import UUID

from catalog.jobs.byte_ranges import byte_range_of
from catalog.model import PartitionId
from planner.clustering import is_sorted_by_ranges
from planner.dirtiness import spans_too_many
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
    """The merging jobs of a snapshot; `is_taken` tells which extents other jobs of the plan have."""
    left = [
        each
        for each in snapshot.mergeable
        if each.extents
        and not any(is_taken(extent) for extent in each.extents)
        and all(_is_settled(snapshot.mergeable_views.get(_key(extent)), extent) for extent in each.extents)
    ]
    groups = _groups(snapshot, settings, left)
    used = {each.file.file_id for group in groups for each in group}
    groups += [[each] for each in left if each.file.file_id not in used and is_mostly_dead(each, settings)]
    return [_draft(snapshot, settings, group) for group in groups]


def is_mostly_dead(file: Mergeable, settings: PlannerSettings) -> bool:
    """Whether so much of a file has died that it is worth writing the rest anew."""
    born_bytes = file.live_bytes + file.dead_bytes
    return file.dead_bytes >= max(settings.min_dead_bytes, settings.dead_share * born_bytes)


def level_of(live_bytes: int, settings: PlannerSettings) -> int:
    """Which level a small file of so many live bytes is on; 0 below `level_floor_bytes`."""
    level, bound = 0, settings.level_floor_bytes
    while live_bytes >= bound:
        level, bound = level + 1, bound * settings.merge_fan_in
    return level


def _is_settled(view: PartitionView | None, extent: Extent) -> bool:
    """Whether the partition was looked at, and the extent lies below its last stable offset."""
    return view is not None and extent.last_offset < view.state.last_stable_offset


def _key(extent: Extent) -> PartitionId:
    return PartitionId(extent.topic_id, extent.partition)


@dataclass(slots=True)
class _Run:
    """What a group has of one partition."""

    base_offset: int
    end_offset: int
    oldest_ms: int
    newest_ms: int

    @classmethod
    def of(cls, extent: Extent) -> _Run:
        return cls(extent.base_offset, extent.last_offset + 1, extent.min_timestamp, extent.max_timestamp)

    def joined(self, other: _Run) -> _Run | None:
        """Both as one; None when there is something between them, or no section can hold both."""
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
        """Whether the bounds of a job allow one file more, of which so many bytes are read."""
        limits = self.settings
        return not self.files or (
            self.input_bytes + reads <= limits.max_job_input_bytes
            and len(self.files) < limits.max_job_files
            and self.extents + len(file.extents) <= limits.max_job_extents
        )

    def take(self, file: Mergeable, reads: int) -> bool:
        """Add a file, unless a partition would not be one range any more, or one that spans too much time.

        Nor one of another range of partitions, if it is sorted by ranges: that would save nobody a request.
        """
        first, last = _key(file.extents[0]), _key(file.extents[-1])
        elsewhere = bool(self.files) and (last < self.first or self.last < first)
        if elsewhere and is_sorted_by_ranges(file.file, self.settings):
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
        """Whether all of it rises above `level`, or nothing small need come out."""
        if len(self.files) < 2:
            return False
        highest = sum(1 for each in self.files if level_of(each.live_bytes, self.settings) == level)
        return highest >= self.settings.merge_fan_in or self.live_bytes >= self.settings.full_bytes


def _groups(
    snapshot: Snapshot, settings: PlannerSettings, candidates: Iterable[Mergeable]
) -> list[list[Mergeable]]:
    """Small files that go together, from the lowest level up; no file is in two groups."""
    small = [
        each
        for each in candidates
        if each.live_bytes < settings.full_bytes and len(each.extents) <= settings.most_merged_extents
    ]
    small.sort(key=_place_in_log)
    found: list[list[Mergeable]] = []
    for level in range(1 + level_of(settings.full_bytes, settings)):
        for compacted in (True, False):
            of_level = [
                each
                for each in small
                if level_of(each.live_bytes, settings) <= level and _is_compacted(snapshot, each) is compacted
            ]
            worth = [
                group.files for group in _fill(snapshot, settings, of_level) if group.is_worth_a_job(level)
            ]
            used = {each.file.file_id for files in worth for each in files}
            small = [each for each in small if each.file.file_id not in used]
            found += worth
    return found


def _fill(snapshot: Snapshot, settings: PlannerSettings, files: Sequence[Mergeable]) -> list[_Group]:
    """Each file goes into the first group that takes it; a group without room for the next one is closed."""
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


def _place_in_log(file: Mergeable) -> tuple[int, int, int]:
    """By when the oldest of it was committed, as the offsets of each partition rise with commits."""
    oldest = min(file.extents, key=lambda extent: (extent.committed_ms, extent.base_offset))
    return oldest.committed_ms, oldest.base_offset, file.file.file_id.int


def _is_compacted(snapshot: Snapshot, file: Mergeable) -> bool | None:
    """Of which kind the file's topics are; None where settings have changed, and it has both."""
    kinds = {snapshot.mergeable_views[_key(extent)].rules.compacted for extent in file.extents}
    return kinds.pop() if len(kinds) == 1 else None


def _draft(snapshot: Snapshot, settings: PlannerSettings, files: Sequence[Mergeable]) -> JobDraft:
    known = {each.file.file_id: each.file for each in files}
    draft = JobDraft(JobKind.MERGING, known, settings, snapshot.now_ms)
    by_partition: dict[PartitionId, list[Extent]] = {}
    for each in files:
        for extent in each.extents:
            by_partition.setdefault(_key(extent), []).append(extent)
    for key, extents in by_partition.items():
        draft.take(snapshot.mergeable_views[key], sorted(extents, key=lambda extent: extent.base_offset))
    draft.cut_evenly()
    draft.dead_bytes = sum(each.dead_bytes for each in files)
    return draft
