"""From the catalog to a plan, and from a plan to jobs.

A snapshot is loaded in an order that makes being out of date harmless: first the ingestion files, then the
partitions' bounds, then their extents. What changes meanwhile is missed, not mistaken, and whoever claims an
extent first has it: the catalog refuses the other's job, and that one plans anew.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from catalog.jobs.planning_queries import DirtyRule
from catalog.model import Exactness, FileKind, JobSpec, PartitionId
from core.errors import StaleStateError
from planner.fault_bisection import may_be_tried
from planner.policy import PRICES, make_plan
from planner.score import spent_on
from planner.snapshot import FileView, Mergeable, PartitionView, Snapshot, TopicRules

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from catalog.jobs.planning_queries import LiveFile, PartitionSize
    from catalog.jobs.quarantine import QuarantineCandidate
    from catalog.model import Extent, JobInput, Topic
    from catalog.open import Catalog
    from core.clock import Clock
    from core.ids import Ids
    from planner.plan import Plan, PlannedJob
    from planner.settings import PlannerSettings

NO_LIMIT_MS: Final = 2**63 - 1
PARTITIONS_AT_ONCE: Final = 500
EXTENTS_OF_ONE: Final = 10_000
REPLANS: Final = 3
SUSPECTS_AT_ONCE: Final = 10_000
BUDGET_MS: Final = 60 * 60 * 1000
MINUTE_MS: Final = 60 * 1000
SECOND_MS: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """The jobs that are in the catalog now, how many were lost to somebody faster or wait for the budget."""

    jobs: tuple[JobSpec, ...]
    lost: int
    deferred: int = 0


def plan(catalog: Catalog, clock: Clock, settings: PlannerSettings, *, explain: str | None = None) -> Plan:
    """What would be done now; changes nothing.

    `Plan.decisions` speaks of the partitions that were looked at: those with free extents in ingestion
    files, and compacted ones that are dirty. With `explain` also of every partition of that topic;
    NotFoundError when there is none.
    """
    with _all_of_it_alive():
        return make_plan(load_snapshot(catalog, clock.now_ms(), settings, explain=explain), settings)


def submit(catalog: Catalog, clock: Clock, ids: Ids, settings: PlannerSettings, planned: Plan) -> Submission:
    """Freeze the plan's jobs and hand them to the catalog, one by one; jobs that come too late are lost."""
    jobs: list[JobSpec] = []
    lost = 0
    for job in planned.jobs:
        spec = freeze(job, clock, ids, settings)
        try:
            catalog.jobs.submit(spec, moved_bytes=job.worth.moved_bytes, nanodollars=job.worth.nanodollars)
        except StaleStateError:
            lost += 1
        else:
            jobs.append(spec)
    return Submission(jobs=tuple(jobs), lost=lost, deferred=planned.deferred)


def plan_and_submit(catalog: Catalog, clock: Clock, ids: Ids, settings: PlannerSettings) -> Submission:
    """Plan and submit, and again while jobs are lost to somebody faster, a few times at most."""
    jobs: list[JobSpec] = []
    lost = deferred = 0
    for _ in range(1 + REPLANS):
        submission = submit(catalog, clock, ids, settings, plan(catalog, clock, settings))
        jobs += submission.jobs
        lost += submission.lost
        deferred = submission.deferred
        if not submission.lost:
            break
    return Submission(jobs=tuple(jobs), lost=lost, deferred=deferred)


def freeze(job: PlannedJob, clock: Clock, ids: Ids, settings: PlannerSettings) -> JobSpec:
    """Fix everything that the job's outcome depends on."""
    now_ms = clock.now_ms()
    return JobSpec(
        job_id=ids.new_uuid(),
        created_ms=now_ms,
        now_ms=now_ms,
        hash_seed=ids.random_bytes(16),
        table_bytes=settings.table_bytes,
        reason=job.reason,
        inputs=job.inputs,
        partitions=job.partitions,
        output_bytes=job.output_bytes,
        merge_batches=settings.merge_batches,
        exact=job.exact,
    )


@contextmanager
def _all_of_it_alive() -> Iterator[None]:
    """Keeps the collector of cycles from going through a snapshot as it grows: that took half of the time.

    A snapshot is bounded, has no cycles and is freed by its reference counts.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def load_snapshot(
    catalog: Catalog, now_ms: int, settings: PlannerSettings, *, explain: str | None = None
) -> Snapshot:
    """What the policy needs to see, bounded by the settings.

    Of `max_plan_extents`, ingestion files may have half. Files to be merged have a quarter at least,
    compacted partitions an eighth, and so have fragmented ones. What one leaves, those that come after it may
    have, in this order: compacted partitions, fragmented ones, files to be merged.
    """
    explained = catalog.topics.get(explain).topic_id if explain is not None else None
    rules = {topic.topic_id: rules_of(topic) for topic in catalog.topics.list()}
    suspects = {each.file_id: each for each in catalog.quarantine.list(limit=SUSPECTS_AT_ONCE)}
    tried = [each for each in suspects.values() if may_be_tried(each, now_ms)][: settings.max_plan_files]
    files = [
        *catalog.planning.inputs_of_candidates(tried),
        *catalog.planning.ingestion_files(
            settings.max_plan_files, max_extents=max(1, settings.max_plan_extents // 2)
        ),
    ]
    free: dict[PartitionId, list[Extent]] = {}
    for file in files:
        for extent in file.extents:
            free.setdefault(PartitionId(extent.topic_id, extent.partition), []).append(extent)
    named = [key for key in free if key.topic_id in rules]
    dirty = catalog.planning.dirty_partitions(
        _dirty_rules(rules, settings), settings.max_plan_partitions, include_incomplete=settings.exact
    )
    asked = () if explained is None else catalog.planning.partition_sizes([explained])
    # By the turn of their topics: who comes first has its extents looked at.
    by_turn = {size.partition_id: size for size in (*asked, *dirty, *catalog.planning.sizes_of(named))}
    sizes = [by_turn[key] for key in sorted(by_turn, key=lambda each: (each.topic_id.int, each.partition))]
    deep = [
        size
        for size in by_turn.values()
        if rules[size.state.topic_id].compacted or size.state.topic_id == explained
    ]
    room = settings.max_plan_extents - sum(len(extents) for extents in free.values())
    quarter, eighth = settings.max_plan_extents // 4, settings.max_plan_extents // 8
    # Not less than these parts, also when many suspects are tried again.
    loaded = _load_extents(catalog, deep, max(eighth, room - quarter - eighth))
    room -= sum(len(extents) for extents in loaded.values())
    fragmented = _fragmented(catalog, settings, rules, suspects, (max(eighth, room - quarter), now_ms))
    room -= sum(len(view.extents) for view in fragmented)
    partitions = tuple(
        PartitionView(
            rules=rules[size.state.topic_id],
            state=size.state,
            extents=_merged(loaded.get(size.partition_id), free.get(size.partition_id, [])),
            suspects=suspects,
            exactness=_exactness(size, settings),
        )
        for size in sizes
    )
    views = _files(catalog, files, (*partitions, *fragmented))
    mergeable = _mergeable(catalog, settings, rules, max(quarter, room), now_ms)
    return Snapshot(
        now_ms=now_ms,
        partitions=tuple(view for view in partitions if _has_its_files(view, views)),
        files=views,
        suspects=suspects,
        mergeable=mergeable,
        mergeable_views=_views_of(catalog, mergeable, rules),
        fragmented=fragmented,
        spent=spent_on(catalog.jobs.recent_work(BUDGET_MS), PRICES),
    )


def _mergeable(
    catalog: Catalog,
    settings: PlannerSettings,
    rules: Mapping[UUID, TopicRules],
    max_extents: int,
    now_ms: int,
) -> tuple[Mergeable, ...]:
    found = catalog.planning.files_to_merge(
        below_bytes=settings.full_bytes,
        dead_bytes=settings.min_dead_bytes,
        dead_share=settings.dead_share,
        limit=settings.max_plan_files,
        max_extents=max_extents,
        extents_each=settings.most_merged_extents,
        from_bytes=small_files_from(now_ms, settings),
    )
    return tuple(
        Mergeable(
            file=_file_view(each.file),
            extents=each.extents,
            live_bytes=each.live_bytes,
            dead_bytes=each.dead_bytes,
        )
        for each in found
        if all(extent.topic_id in rules for extent in each.extents)
    )


def small_files_from(now_ms: int, settings: PlannerSettings) -> int:
    """At which size a plan begins to look at small files: at the smallest, or at another, by the minute.

    Small files that fit nowhere stay as they are. If there are more than one plan may look at, others would
    never be seen behind them. A hash chooses, so that plans at regular times see all sizes.
    """
    chosen = 2 * hashed(now_ms // MINUTE_MS)
    return 0 if chosen >= 1 else int(settings.full_bytes**chosen)


def _fragmented(
    catalog: Catalog,
    settings: PlannerSettings,
    rules: Mapping[UUID, TopicRules],
    suspects: Mapping[UUID, QuarantineCandidate],
    room: tuple[int, int],
) -> tuple[PartitionView, ...]:
    """Neighbouring partitions with many short extents, with the newest of these; `room` for extents, and now.

    Where there are more than find room, a plan begins somewhere among them, by the hash of a moment.
    """
    max_extents, now_ms = room
    sizes = catalog.planning.fragmented_partitions(
        section_bytes=settings.section_bytes,
        resting_extents=settings.resting_extents // 2,
        start=hashed(now_ms // SECOND_MS),
        limit=max(1, max_extents // (settings.resting_extents // 2 + 1)),
    )
    most = settings.seen_extents
    chosen: dict[PartitionId, PartitionSize] = {}
    for size in sizes:
        if size.state.topic_id not in rules:
            continue
        max_extents -= min(size.compacted_extents, most)
        if max_extents < 0 and chosen:
            break
        chosen[size.partition_id] = size
    held: dict[PartitionId, list[Extent]] = {key: [] for key in sorted(chosen)}
    for extent in catalog.planning.newest_compacted_extents(list(held), most) if held else ():
        held[PartitionId(extent.topic_id, extent.partition)].append(extent)
    return tuple(
        PartitionView(
            rules=rules[key.topic_id],
            state=chosen[key].state,
            extents=tuple(extents),
            suspects=suspects,
            exactness=_exactness(chosen[key], settings),
        )
        for key, extents in held.items()
    )


def hashed(number: int) -> float:
    """A share in [0, 1) that looks as if it were drawn, the same for the same number."""
    return ((number * 0x9E37_79B9_7F4A_7C15 & (1 << 64) - 1) >> 32) / 2**32  # Fibonacci hashing


def _views_of(
    catalog: Catalog, files: Sequence[Mergeable], rules: Mapping[UUID, TopicRules]
) -> dict[PartitionId, PartitionView]:
    """The partitions of files that may be merged, without their extents."""
    keys = {PartitionId(extent.topic_id, extent.partition) for file in files for extent in file.extents}
    return {
        size.partition_id: PartitionView(rules=rules[size.state.topic_id], state=size.state, extents=())
        for size in (catalog.planning.sizes_of(keys) if keys else ())
    }


def _exactness(size: PartitionSize, settings: PlannerSettings) -> Exactness:
    return size.exactness if settings.exact else Exactness.EXACT


def _has_its_files(view: PartitionView, files: Mapping[UUID, FileView]) -> bool:
    """Whether no compacted file of the partition went while the snapshot was loaded."""
    return all(
        extent.file_id in files or extent.file_kind is FileKind.INGESTION or not view.rules.compacted
        for extent in view.extents
    )


def rules_of(topic: Topic) -> TopicRules:
    """What of a topic's configuration decides about compaction."""
    config = topic.config
    return TopicRules(
        topic_id=topic.topic_id,
        name=topic.name,
        cleanup_policy=config.cleanup_policy,
        compression_type=config.compression_type,
        min_cleanable_dirty_ratio=config.min_cleanable_dirty_ratio,
        min_compaction_lag_ms=config.min_compaction_lag_ms,
        max_compaction_lag_ms=config.max_compaction_lag_ms,
        delete_retention_ms=config.delete_retention_ms,
        retention_ms=config.retention_ms,
        max_message_bytes=config.max_message_bytes,
    )


def _dirty_rules(rules: Mapping[UUID, TopicRules], settings: PlannerSettings) -> dict[UUID, DirtyRule]:
    return {
        topic_id: DirtyRule(
            above_ratio=each.min_cleanable_dirty_ratio,
            limited=settings.force or each.max_compaction_lag_ms < NO_LIMIT_MS,
        )
        for topic_id, each in rules.items()
        if each.compacted
    }


def _load_extents(
    catalog: Catalog, sizes: Sequence[PartitionSize], limit: int
) -> dict[PartitionId, list[Extent]]:
    """Every live extent of each partition, the first `EXTENTS_OF_ONE` at most; about `limit` altogether.

    Partitions for which there is no room are left out.
    """
    loaded: dict[PartitionId, list[Extent]] = {}
    for starts in _batches(sizes, limit):
        loaded.update({partition: [] for partition, _ in starts})
        for extent in catalog.planning.extents_of_each(starts, EXTENTS_OF_ONE):
            loaded[PartitionId(extent.topic_id, extent.partition)].append(extent)
    return loaded


def _batches(sizes: Iterable[PartitionSize], limit: int) -> Iterator[list[tuple[PartitionId, int]]]:
    starts: list[tuple[PartitionId, int]] = []
    left = limit
    for size in sizes:
        count = min(size.ingestion_extents + size.compacted_extents, EXTENTS_OF_ONE)
        if count > left:
            continue
        left -= count
        starts.append((size.partition_id, size.state.log_start_offset))
        if len(starts) == PARTITIONS_AT_ONCE:
            yield starts
            starts = []
    if starts:
        yield starts


def _merged(loaded: list[Extent] | None, free: Sequence[Extent]) -> tuple[Extent, ...]:
    """The extents as they were loaded; where they were cut off, then those free in ingestion files."""
    if loaded is None:
        return tuple(sorted(free, key=lambda extent: extent.base_offset))
    if len(loaded) < EXTENTS_OF_ONE:
        return tuple(loaded)
    end = loaded[-1].last_offset
    beyond = [extent for extent in free if extent.base_offset > end]
    return (*loaded, *sorted(beyond, key=lambda extent: extent.base_offset))


def _files(
    catalog: Catalog, ingestion: Sequence[JobInput], partitions: Sequence[PartitionView]
) -> Mapping[UUID, FileView]:
    """The files that a job may take: compacted ones, then ingestion files, the older first."""
    compacted = {
        extent.file_id
        for view in partitions
        for extent in view.extents
        if extent.file_kind is FileKind.COMPACTED
    }
    files = {known.file_id: _file_view(known) for known in catalog.planning.files_of(compacted)}
    for file in ingestion:
        files[file.file_id] = FileView(
            file_id=file.file_id,
            object_name=file.object_name,
            size=file.size,
            kind=file.extents[0].file_kind,
            committed_ms=min(extent.committed_ms for extent in file.extents),
        )
    return files


def _file_view(file: LiveFile) -> FileView:
    return FileView(
        file_id=file.file_id,
        object_name=file.object_name,
        size=file.size,
        kind=file.kind,
        committed_ms=file.committed_ms,
        extents=file.live_extents,
    )
