"""Load a snapshot of the catalog for the policy.

The order of queries makes stale data harmless: first ingestion files, then the partitions' bounds, then their
extents, then their aborted transactions. A change in between is missed, not misread. The first planner to
claim an extent gets it: the catalog refuses the other planner's job, and that planner plans again.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from catalog.grouping import by_partition
from catalog.jobs.planning_queries import DirtyRule
from catalog.model import Exactness, FileKind, PartitionId
from planner.jobs.fault_bisection import can_be_retried
from planner.policy import PRICES
from planner.score import spent_on
from planner.snapshot import FileView, Mergeable, PartitionView, Snapshot, TopicRules, is_readable
from planner.transactions import transaction_views

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from uuid import UUID

    from catalog.jobs.planning_queries import LiveFile, PartitionSize
    from catalog.jobs.quarantine import QuarantineCandidate
    from catalog.model import Extent, JobInput, PartitionState, Topic
    from catalog.open import Catalog
    from planner.settings import PlannerSettings

NO_LIMIT_MS: Final = 2**63 - 1
PARTITIONS_AT_ONCE: Final = 500
EXTENTS_OF_ONE: Final = 10_000
CANDIDATES_AT_ONCE: Final = 10_000
BUDGET_MS: Final = 60 * 60 * 1000
MINUTE_MS: Final = 60 * 1000
SECOND_MS: Final = 1000


def load_snapshot(
    catalog: Catalog,
    now_ms: int,
    settings: PlannerSettings,
    *,
    explain: str | None = None,
    after: int | None = None,
) -> Snapshot:
    """Return what the policy needs, bounded by the settings.

    Ingestion files may take half of `max_plan_extents`. Files to merge get at least a quarter, and compacted
    and fragmented partitions at least an eighth each. What one kind leaves goes to the next, in this order:
    compacted partitions, fragmented partitions, files to merge.

    With `after`, the `ingestion_end` of an earlier snapshot of the same look, return only the ingestion files
    that follow, and their partitions.
    """
    explained = catalog.topics.get(explain).topic_id if explain is not None else None
    rules = {topic.topic_id: rules_of(topic) for topic in catalog.topics.list()}
    quarantine_candidates = {each.file_id: each for each in catalog.quarantine.list(limit=CANDIDATES_AT_ONCE)}
    page = catalog.planning.ingestion_files(
        settings.max_plan_files, max_extents=max(1, settings.max_plan_extents // 2), after=after or 0
    )
    is_first = after is None
    tried = _retried(catalog, quarantine_candidates.values(), now_ms, settings) if is_first else []
    files = [file for file in (*tried, *page.files) if is_readable(file.extents[0])]
    free = by_partition(extent for file in files for extent in file.extents)
    sizes = _sizes(catalog, rules, settings, free, explained, is_first=is_first)
    deep = [
        size for size in sizes if rules[size.state.topic_id].compacted or size.state.topic_id == explained
    ]
    room = settings.max_plan_extents - sum(len(extents) for extents in free.values())
    quarter, eighth = settings.max_plan_extents // 4, settings.max_plan_extents // 8
    # Never less than these parts, even if many candidates are retried.
    loaded = _load_extents(catalog, deep, max(eighth, room - quarter - eighth))
    room -= sum(len(extents) for extents in loaded.values())
    is_complete = len(sizes) < settings.max_plan_partitions and all(
        size.partition_id in loaded and len(loaded[size.partition_id]) < EXTENTS_OF_ONE for size in deep
    )
    fragmented: tuple[PartitionView, ...] = ()
    mergeable: tuple[Mergeable, ...] = ()
    if is_first:
        bounds = max(eighth, room - quarter), now_ms
        fragmented, has_all = _fragmented(catalog, settings, rules, quarantine_candidates, bounds)
        is_complete = is_complete and has_all
        room -= sum(len(view.extents) for view in fragmented)
    partitions = tuple(
        PartitionView(
            rules=rules[size.state.topic_id],
            state=_without_leading_controls(size.state, loaded.get(size.partition_id, ())),
            extents=_merged(loaded.get(size.partition_id), free.get(size.partition_id, [])),
            quarantine_candidates=quarantine_candidates,
            exactness=_exactness(size, settings),
        )
        # In the order of their topics: the extents of the first partitions are read.
        for size in sorted(sizes, key=lambda each: (each.state.topic_id.int, each.state.partition))
    )
    partitions, fragmented = _with_transactions(catalog, partitions), _with_transactions(catalog, fragmented)
    views = _files(catalog, files, (*partitions, *fragmented))
    mergeable_views: dict[PartitionId, PartitionView] = {}
    if is_first:
        mergeable, has_all = _mergeable(catalog, settings, rules, max(quarter, room), now_ms)
        mergeable, mergeable_views = _views_of(catalog, mergeable, rules)
        is_complete = is_complete and has_all
    return Snapshot(
        now_ms=now_ms,
        partitions=tuple(view for view in partitions if _has_its_files(view, views)),
        files=views,
        quarantine_candidates=quarantine_candidates,
        mergeable=mergeable,
        mergeable_views=mergeable_views,
        fragmented=fragmented,
        spent=spent_on(catalog.jobs.recent_work(BUDGET_MS), PRICES),
        ingestion_end=page.end,
        is_complete=is_complete and len(quarantine_candidates) < CANDIDATES_AT_ONCE,
    )


def _retried(
    catalog: Catalog, candidates: Iterable[QuarantineCandidate], now_ms: int, settings: PlannerSettings
) -> list[JobInput]:
    """Return the files of failed jobs that may be tried again."""
    due = [each for each in candidates if can_be_retried(each, now_ms)]
    return catalog.planning.inputs_of_candidates(due[: settings.max_plan_files])


def _sizes(
    catalog: Catalog,
    rules: Mapping[UUID, TopicRules],
    settings: PlannerSettings,
    free: Iterable[PartitionId],
    explained: UUID | None,
    *,
    is_first: bool,
) -> list[PartitionSize]:
    """Return the partitions to examine: explained ones, those that may be dirty, those in ingestion files."""
    found: list[PartitionSize] = []
    if explained is not None:
        found += catalog.planning.partition_sizes([explained])
    if is_first:
        found += catalog.planning.dirty_partitions(
            _dirty_rules(rules, settings), settings.max_plan_partitions, include_incomplete=settings.exact
        )
    found += catalog.planning.sizes_of([key for key in free if key.topic_id in rules])
    return list({size.partition_id: size for size in found}.values())


def _mergeable(
    catalog: Catalog,
    settings: PlannerSettings,
    rules: Mapping[UUID, TopicRules],
    max_extents: int,
    now_ms: int,
) -> tuple[tuple[Mergeable, ...], bool]:
    """Return files to merge, and whether these are all."""
    found = catalog.planning.files_to_merge(
        below_bytes=settings.full_bytes,
        dead_bytes=settings.min_dead_bytes,
        dead_share=settings.dead_share,
        limit=settings.max_plan_files,
        max_extents=max_extents,
        extents_each=settings.max_merged_extents,
        from_bytes=small_files_from(now_ms, settings),
    )
    files = tuple(
        Mergeable(
            file=_file_view(each.file),
            extents=each.extents,
            live_bytes=each.live_bytes,
            dead_bytes=each.dead_bytes,
        )
        for each in found.files
        if all(extent.topic_id in rules and is_readable(extent) for extent in each.extents)
    )
    return files, found.is_complete


def small_files_from(now_ms: int, settings: PlannerSettings) -> int:
    """Return the size from which a plan examines small files, chosen by the minute.

    Small files that fit no group stay. If there are more of them than a plan may examine, the others would
    never be seen. A hash chooses the size, so that plans at regular times see all sizes.
    """
    chosen = 2 * hashed(now_ms // MINUTE_MS)
    return 0 if chosen >= 1 else int(settings.full_bytes**chosen)


def _fragmented(
    catalog: Catalog,
    settings: PlannerSettings,
    rules: Mapping[UUID, TopicRules],
    quarantine_candidates: Mapping[UUID, QuarantineCandidate],
    room: tuple[int, int],
) -> tuple[tuple[PartitionView, ...], bool]:
    """Return neighbouring partitions with many short extents, and whether these are all.

    `room` is extents and time. If there are more than fit, the plan starts at a partition that a hash of the
    time selects.
    """
    max_extents, now_ms = room
    limit = max(1, max_extents // (settings.resting_extents // 2 + 1))
    sizes = catalog.planning.fragmented_partitions(
        section_bytes=settings.section_bytes,
        resting_extents=settings.resting_extents // 2,
        start=hashed(now_ms // SECOND_MS),
        limit=limit,
    )
    is_complete = len(sizes) < limit
    most = settings.max_seen_extents
    chosen: dict[PartitionId, PartitionSize] = {}
    for size in sizes:
        if size.state.topic_id not in rules:
            continue
        max_extents -= min(size.compacted_extents, most)
        if max_extents < 0 and chosen:
            is_complete = False
            break
        chosen[size.partition_id] = size
    keys = sorted(chosen)
    found = by_partition(catalog.planning.newest_compacted_extents(keys, most) if keys else ())
    views = tuple(
        PartitionView(
            rules=rules[key.topic_id],
            state=chosen[key].state,
            extents=tuple(found.get(key, ())),
            quarantine_candidates=quarantine_candidates,
            exactness=_exactness(chosen[key], settings),
        )
        for key in keys
    )
    return views, is_complete


def hashed(number: int) -> float:
    """Return a pseudo-random number in [0, 1), the same for the same input."""
    return ((number * 0x9E37_79B9_7F4A_7C15 & (1 << 64) - 1) >> 32) / 2**32  # Fibonacci hashing


def _with_transactions(catalog: Catalog, views: Sequence[PartitionView]) -> tuple[PartitionView, ...]:
    """Add the transactions of partitions to their views."""
    found = transaction_views(catalog, {view.partition_id: (view.state, view.extents) for view in views})
    if not found:
        return tuple(views)
    return tuple(
        replace(
            view,
            state=each.state,
            extents=each.extents,
            aborted=each.aborted,
            records_from=each.records_from,
        )
        if (each := found.get(view.partition_id))
        else view
        for view in views
    )


def _views_of(
    catalog: Catalog, files: tuple[Mergeable, ...], rules: Mapping[UUID, TopicRules]
) -> tuple[tuple[Mergeable, ...], dict[PartitionId, PartitionView]]:
    """Return files that may be merged, and their partitions without extents."""
    grouped = by_partition(extent for file in files for extent in file.extents)
    for extents in grouped.values():
        extents.sort(key=lambda extent: extent.base_offset)
    views = {
        size.partition_id: PartitionView(
            rules=rules[size.state.topic_id],
            state=size.state,
            extents=tuple(grouped[size.partition_id]),
        )
        for size in (catalog.planning.sizes_of(grouped.keys()) if grouped else ())
    }
    changed = {view.partition_id: view for view in _with_transactions(catalog, tuple(views.values()))}
    extents_of = {
        (extent.topic_id.int, extent.partition, extent.base_offset): extent
        for view in changed.values()
        for extent in view.extents
        if extent.controls_after
    }
    if extents_of:
        files = tuple(
            replace(
                file,
                extents=tuple(
                    extents_of.get((each.topic_id.int, each.partition, each.base_offset), each)
                    for each in file.extents
                ),
            )
            for file in files
        )
    return files, {key: replace(view, extents=()) for key, view in changed.items()}


def _exactness(size: PartitionSize, settings: PlannerSettings) -> Exactness:
    return size.exactness if settings.exact else Exactness.EXACT


def _has_its_files(view: PartitionView, files: Mapping[UUID, FileView]) -> bool:
    """Return True unless a compacted file of the partition disappeared while the snapshot was loaded."""
    return all(
        extent.file_kind is FileKind.INGESTION or extent.file_id in files or not view.rules.compacted
        for extent in view.extents
    )


def rules_of(topic: Topic) -> TopicRules:
    """Return the part of a topic's configuration that matters to compaction."""
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
    """Return the live extents of each partition, at most `EXTENTS_OF_ONE`; about `limit` in total.

    Partitions that do not fit are left out.
    """
    loaded: dict[PartitionId, list[Extent]] = {}
    for starts in _batches(sizes, limit):
        loaded.update({partition: [] for partition, _ in starts})
        loaded.update(
            by_partition(catalog.planning.extents_of_each(starts, EXTENTS_OF_ONE, with_controls=False))
        )
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


def _without_leading_controls(state: PartitionState, loaded: Sequence[Extent]) -> PartitionState:
    """Let the log start at the first of its extents of records: only control batches are before it."""
    if not state.has_transactions or not loaded:
        return state
    first = min(max(state.log_start_offset, loaded[0].base_offset), state.last_stable_offset)
    return replace(state, log_start_offset=first)


def _merged(loaded: list[Extent] | None, free: Sequence[Extent]) -> tuple[Extent, ...]:
    """Return the loaded extents; if they were cut off, add the free ones in ingestion files."""
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
    """Return the files that a job may take: compacted files, then ingestion files, older ones first."""
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
