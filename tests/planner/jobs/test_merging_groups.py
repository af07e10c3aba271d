"""Which files one merging job takes, compared with a plain model of the rules."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalog.model import FileKind, PartitionId
from object_format.limits import MAX_SPAN
from planner.jobs.clustering import is_clustered_by_range
from planner.jobs.merging import draft_merging_jobs, is_mostly_dead, level_of
from planner.plan import JobKind
from planner.settings import PlannerSettings
from planner.snapshot import Mergeable, Snapshot
from tests.planner.model_log import NOW_MS, Chunk, ModelLog, topic_rules
from tests.planner.strategies import THOROUGH

if TYPE_CHECKING:
    from collections.abc import Sequence

    from catalog.model import Extent
    from planner.snapshot import PartitionView

SETTINGS = st.builds(
    PlannerSettings,
    target_file_bytes=st.sampled_from([60, 300, 1_000]),
    merge_fan_in=st.integers(2, 3),
    level_floor_bytes=st.sampled_from([1, 10, 50]),
    max_job_files=st.sampled_from([1, 2, 3, 400]),
    max_job_extents=st.sampled_from([1, 4, 5, 50_000]),
    max_job_input_bytes=st.sampled_from([120, 130, 1 << 30]),
    max_plan_extents=st.sampled_from([8, 16, 32_000]),
    dead_share=st.sampled_from([0.3, 0.5, 1.0]),
    min_dead_bytes=st.sampled_from([1, 100]),
)
USUAL_SETTINGS = PlannerSettings(target_file_bytes=1_000, merge_fan_in=2, level_floor_bytes=50)


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """A compacted file to be: lengths by partition; `skipped` bytes lie between its sections."""

    lengths: dict[int, int]
    size: int = 0
    skipped: int = 0
    dead_bytes: int = 0
    records: int = 1
    age_ms: int = 0
    span_ms: int = 0
    committed_ms: int = 0
    is_mergeable: bool = True


FILES = st.builds(
    File,
    lengths=st.dictionaries(st.integers(0, 3), st.sampled_from([0, 10, 20, 30, 100]), min_size=1, max_size=3),
    size=st.sampled_from([1, 100, 149, 150, 10_000]),
    skipped=st.sampled_from([0, 0, 10]),
    dead_bytes=st.sampled_from([0, 0, 10, 50, 100, 200]),
    records=st.sampled_from([1, 1, 1, 1, MAX_SPAN // 2, MAX_SPAN // 2 + 1]),
    age_ms=st.sampled_from([0, 0, 0, 1_000, 1_001]),
    span_ms=st.sampled_from([0, 0, 0, 1, 1_000, 1_001]),
    committed_ms=st.integers(0, 3),
    is_mergeable=st.sampled_from([True, True, True, True, True, False]),
)

USUAL_FILES = st.builds(
    File,
    lengths=st.dictionaries(st.integers(0, 2), st.sampled_from([10, 20]), min_size=1, max_size=2),
    span_ms=st.sampled_from([0, 0, 1_000, 1_001]),
    age_ms=st.sampled_from([0, 0, 1_000]),
)

# Files that differ in their partitions only, most of them clustered by range.
SORTED_FILES = st.builds(
    lambda partitions, size: File(lengths=dict.fromkeys(partitions, 20), size=size),
    st.sets(st.integers(0, 3), min_size=1, max_size=2),
    st.sampled_from([1, 10_000, 10_000]),
)


def snapshot_of(
    files: Sequence[File], *, policies: tuple[str, str], unstable: int, is_known: bool
) -> Snapshot:
    """Return a snapshot with two topics of two partitions each."""
    log = ModelLog(
        rules=[
            topic_rules(number, cleanup_policy=policy, retention_ms=4_000, min_compaction_lag_ms=4_000)
            for number, policy in enumerate(policies)
        ],
        partition_count=2,
    )
    keys = sorted(log.extents)
    mergeable = []
    for file in files:
        chunks = {
            keys[number]: Chunk(records=file.records, length=length, age_ms=file.age_ms, span_ms=file.span_ms)
            for number, length in file.lengths.items()
        }
        view = replace(log.append(chunks), kind=FileKind.COMPACTED, size=file.size, extents=len(chunks))
        extents = []
        for order, key in enumerate(sorted(chunks)):
            extent = log.extents[key][-1]
            moved = extent.position + order * file.skipped
            log.extents[key][-1] = extent._replace(
                file_kind=FileKind.COMPACTED, position=moved, committed_ms=file.committed_ms
            )
            extents.append(log.extents[key][-1])
        if file.is_mergeable:
            live = sum(each.length for each in extents)
            mergeable.append(
                Mergeable(file=view, extents=tuple(extents), live_bytes=live, dead_bytes=file.dead_bytes)
            )
    log.unstable[keys[0]] = unstable
    views = {key: replace(log.view(key), extents=()) for key in (keys if is_known else keys[:3])}
    return Snapshot(now_ms=NOW_MS, partitions=(), mergeable=tuple(mergeable), mergeable_views=views)


def bounded(
    settings: PlannerSettings, bound: str, files: Sequence[Mergeable], *, misses: bool
) -> PlannerSettings:
    """Return settings with a bound that these files reach exactly, or miss by one."""
    match bound:
        case "bytes":
            size = sum(_hull(each.extents) for each in files)
            return replace(settings, max_job_input_bytes=max(1, size - misses))
        case "extents":
            extents = sum(len(each.extents) for each in files)
            return replace(settings, max_job_extents=max(1, extents - misses))
        case "files":
            return replace(settings, max_job_files=max(1, len(files) - misses))
        case "full":
            live = sum(each.live_bytes for each in files)
            return replace(settings, target_file_bytes=max(1, live + misses))
        case _:
            return settings


def _key(extent: Extent) -> PartitionId:
    return PartitionId(extent.topic_id, extent.partition)


@dataclass
class Model:
    """Groups of files, checked from scratch for each file that might join."""

    snapshot: Snapshot
    settings: PlannerSettings
    taken: set[int]
    groups: list[list[Mergeable]] = field(default_factory=list)

    def run(self) -> list[list[Mergeable]]:
        left = [each for each in self.snapshot.mergeable if all(map(self._is_free, each.extents))]
        small = [each for each in left if self._is_small(each)]
        small.sort(
            key=lambda each: (
                *min((extent.committed_ms, extent.base_offset) for extent in each.extents),
                each.file.file_id,
            )
        )
        for level in sorted(set(map(self._level, small))):
            for kind in (True, False):
                files = [each for each in small if self._level(each) <= level and self._kinds(each) == {kind}]
                self.groups += [group for group in self._filled(files) if self._is_worth_it(group, level)]
                used = [each for group in self.groups for each in group]
                small = [each for each in small if each not in used]
        used = [each for group in self.groups for each in group]
        alone = [each for each in left if each not in used and is_mostly_dead(each, self.settings)]
        return self.groups + [[each] for each in alone]

    def _is_free(self, extent: Extent) -> bool:
        view = self.snapshot.mergeable_views.get(_key(extent))
        is_stable = view is not None and extent.last_offset < view.state.last_stable_offset
        return is_stable and extent.base_offset not in self.taken

    def _is_small(self, file: Mergeable) -> bool:
        few = len(file.extents) <= self.settings.max_merged_extents
        return few and file.live_bytes < self.settings.full_bytes

    def _level(self, file: Mergeable) -> int:
        return level_of(file.live_bytes, self.settings)

    def _kinds(self, file: Mergeable) -> set[bool]:
        return {self.snapshot.mergeable_views[_key(each)].rules.compacted for each in file.extents}

    def _is_worth_it(self, group: Sequence[Mergeable], level: int) -> bool:
        many = sum(self._level(each) == level for each in group) >= self.settings.merge_fan_in
        full = sum(each.live_bytes for each in group) >= self.settings.full_bytes
        return len(group) > 1 and (many or full)

    def _filled(self, files: Sequence[Mergeable]) -> list[list[Mergeable]]:
        groups: list[list[Mergeable]] = []
        closed: list[list[Mergeable]] = []
        for file in files:
            for group in groups:
                if not self._is_within_bounds([*group, file]):
                    closed.append(group)
                elif self._may_join(group, file):
                    group.append(file)
                    break
            else:
                groups.append([file])
            groups = [each for each in groups if not any(each is other for other in closed)]
        return closed + groups

    def _is_within_bounds(self, group: Sequence[Mergeable]) -> bool:
        extents = [each.extents for each in group]
        return (
            sum(map(_hull, extents)) <= self.settings.max_job_input_bytes
            and len(group) <= self.settings.max_job_files
            and sum(map(len, extents)) <= self.settings.max_job_extents
        )

    def _may_join(self, group: Sequence[Mergeable], file: Mergeable) -> bool:
        present = [_key(extent) for each in group for extent in each.extents]
        own = [_key(extent) for extent in file.extents]
        is_apart = max(own) < min(present) or min(own) > max(present)
        if is_apart and is_clustered_by_range(file.file, self.settings):
            return False
        return all(self._is_one_extent(key, [*group, file]) for key in set(own) & set(present))

    def _is_one_extent(self, key: PartitionId, group: Sequence[Mergeable]) -> bool:
        extents = [extent for each in group for extent in each.extents if _key(extent) == key]
        extents.sort(key=lambda each: each.base_offset)
        oldest = min(each.min_timestamp for each in extents)
        newest = max(each.max_timestamp for each in extents)
        view: PartitionView = self.snapshot.mergeable_views[key]
        return (
            all(one.last_offset + 1 == other.base_offset for one, other in pairwise(extents))
            and extents[-1].last_offset + 1 - extents[0].base_offset <= MAX_SPAN
            and not view.rules.spans_too_long(oldest, newest, NOW_MS)
        )


def _hull(extents: Sequence[Extent]) -> int:
    bounds = [
        edge for each in extents if each.length for edge in (each.position, each.position + each.length)
    ]
    return max(bounds, default=0) - min(bounds, default=0)


@THOROUGH
@given(
    st.lists(FILES, max_size=9)
    | st.lists(USUAL_FILES, min_size=4, max_size=9)
    | st.lists(SORTED_FILES, min_size=3, max_size=9),
    SETTINGS | st.sampled_from([USUAL_SETTINGS]),
    st.tuples(*[st.sampled_from(["compact", "delete", "compact,delete"])] * 2),
    st.sampled_from([0, 0, 0, 1]),
    st.sampled_from([True, True, True, False]),
    st.sampled_from([set[int](), set[int](), {1}]),
    st.sampled_from(["settings", "settings", "bytes", "extents", "files", "full"]),
    st.integers(1, 4),
    st.booleans(),
)
def test_files_are_grouped_by_level_kind_and_range(
    files: list[File],
    settings: PlannerSettings,
    policies: tuple[str, str],
    unstable: int,
    is_known: bool,
    taken: set[int],
    bound: str,
    fitting: int,
    misses: bool,
) -> None:
    """Each group is one job. Mostly dead files that are in no group are rewritten alone.

    The bounds are drawn, or the first `fitting` files reach one of them exactly, or miss it by one.
    """
    snapshot = snapshot_of(files, policies=policies, unstable=unstable, is_known=is_known)
    settings = bounded(settings, bound, snapshot.mergeable[:fitting], misses=misses)
    drafts = draft_merging_jobs(snapshot, settings, lambda extent: extent.base_offset in taken)
    expected = Model(snapshot, settings, taken).run()
    assert all(draft.kind is JobKind.MERGING for draft in drafts)
    found = [{extent.file_id for _, extents in draft.partitions() for extent in extents} for draft in drafts]
    assert sorted(map(sorted, found)) == sorted(
        sorted(each.file.file_id for each in group) for group in expected
    )
    by_files = {frozenset(each.file.file_id for each in group): group for group in expected}
    for draft, names in zip(drafts, found, strict=True):
        group = by_files[frozenset(names)]
        assert draft.dead_bytes == sum(each.dead_bytes for each in group)
        by_partition: dict[PartitionId, list[Extent]] = {}
        for extent in sorted(
            (one for each in group for one in each.extents), key=lambda one: one.base_offset
        ):
            by_partition.setdefault(_key(extent), []).append(extent)
        assert {view.partition_id: list(extents) for view, extents in draft.partitions()} == by_partition
        live = sum(each.live_bytes for each in group)
        pieces = max(1, live // settings.full_bytes)
        assert draft.output_bytes == max(settings.full_bytes, math.ceil(live / pieces))


@pytest.mark.parametrize(
    ("live_bytes", "dead_bytes", "expected"),
    [(100, 100, True), (101, 100, False), (20, 80, True), (20, 79, False)],
)
def test_a_file_is_mostly_dead_from_the_least_share_and_number_of_dead_bytes_on(
    live_bytes: int, dead_bytes: int, *, expected: bool
) -> None:
    settings = PlannerSettings(dead_share=0.5, min_dead_bytes=80)
    log = ModelLog(rules=[topic_rules(0)])
    file = log.append({key: Chunk(records=1, length=live_bytes) for key in log.extents})
    found = Mergeable(file=file, extents=(), live_bytes=live_bytes, dead_bytes=dead_bytes)
    assert is_mostly_dead(found, settings) is expected


def test_the_oldest_of_64_groups_is_closed_for_another_one() -> None:
    """Files of different partitions are in different groups, and the last three could each join one."""
    settings = PlannerSettings(target_file_bytes=1_000, merge_fan_in=2)
    log = ModelLog(rules=[topic_rules(0)], partition_count=65)
    keys = sorted(log.extents)
    mergeable = []
    for number in (*range(65), 1, 64, 0):
        file = replace(log.append({keys[number]: Chunk(records=1, length=10)}), size=1_000)
        extents = (log.extents[keys[number]][-1],)
        mergeable.append(Mergeable(file=file, extents=extents, live_bytes=10, dead_bytes=0))
    views = {key: replace(log.view(key), extents=()) for key in keys}
    snapshot = Snapshot(now_ms=NOW_MS, partitions=(), mergeable=tuple(mergeable), mergeable_views=views)
    drafts = draft_merging_jobs(snapshot, settings, lambda _: False)
    assert [[view.partition_id for view, _ in draft.partitions()] for draft in drafts] == [
        [keys[1]],
        [keys[64]],
    ]
