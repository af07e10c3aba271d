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
    return _Loader(catalog, now_ms, settings).load(explained, after)


class _Loader:
    """Loads one snapshot. `_room` is the number of extents that it may still load."""

    def __init__(self, catalog: Catalog, now_ms: int, settings: PlannerSettings) -> None:
        self._catalog = catalog
        self._now_ms = now_ms
        self._settings = settings
        self._rules = {topic.topic_id: rules_of(topic) for topic in catalog.topics.list()}
        self._candidates = {each.file_id: each for each in catalog.quarantine.list(limit=CANDIDATES_AT_ONCE)}
        self._is_complete = len(self._candidates) < CANDIDATES_AT_ONCE
        self._room = settings.max_plan_extents
        self._quarter, self._eighth = settings.max_plan_extents // 4, settings.max_plan_extents // 8

    def load(self, explained: UUID | None, after: int | None) -> Snapshot:
        """Return the snapshot: the first one of a look, or one of the ingestion files that follow `after`."""
        settings, is_first = self._settings, after is None
        page = self._catalog.planning.ingestion_files(
            settings.max_plan_files, max_extents=max(1, settings.max_plan_extents // 2), after=after or 0
        )
        tried = self._retried() if is_first else []
        files = [file for file in (*tried, *page.files) if is_readable(file.extents[0])]
        free = by_partition(extent for file in files for extent in file.extents)
        self._room -= sum(len(extents) for extents in free.values())
        partitions = self._partitions(self._sizes(free, explained, is_first=is_first), free, explained)
        fragmented = self._fragmented() if is_first else ()
        partitions, fragmented = self._with_transactions(partitions), self._with_transactions(fragmented)
        views = self._files(files, (*partitions, *fragmented))
        mergeable, mergeable_views = self._mergeable() if is_first else ((), {})
        return Snapshot(
            now_ms=self._now_ms,
            partitions=tuple(view for view in partitions if _has_its_files(view, views)),
            files=views,
            quarantine_candidates=self._candidates,
            mergeable=mergeable,
            mergeable_views=mergeable_views,
            fragmented=fragmented,
            spent=spent_on(self._catalog.jobs.recent_work(BUDGET_MS), PRICES),
            ingestion_end=page.end,
            is_complete=self._is_complete,
        )

    def _retried(self) -> list[JobInput]:
        """Return the files of failed jobs that may be tried again."""
        due = [each for each in self._candidates.values() if can_be_retried(each, self._now_ms)]
        return self._catalog.planning.inputs_of_candidates(due[: self._settings.max_plan_files])

    def _sizes(
        self, free: Iterable[PartitionId], explained: UUID | None, *, is_first: bool
    ) -> list[PartitionSize]:
        """Return the partitions to examine: explained, perhaps dirty, or in ingestion files."""
        planning, settings = self._catalog.planning, self._settings
        found: list[PartitionSize] = []
        if explained is not None:
            found += planning.partition_sizes([explained])
        if is_first:
            found += planning.dirty_partitions(
                self._dirty_rules(), settings.max_plan_partitions, include_incomplete=settings.exact
            )
        found += planning.sizes_of([key for key in free if key.topic_id in self._rules])
        return list({size.partition_id: size for size in found}.values())

    def _dirty_rules(self) -> dict[UUID, DirtyRule]:
        return {
            topic_id: DirtyRule(
                above_ratio=each.min_cleanable_dirty_ratio,
                limited=self._settings.force or each.max_compaction_lag_ms < NO_LIMIT_MS,
            )
            for topic_id, each in self._rules.items()
            if each.compacted
        }

    def _partitions(
        self,
        sizes: Sequence[PartitionSize],
        free: Mapping[PartitionId, Sequence[Extent]],
        explained: UUID | None,
    ) -> tuple[PartitionView, ...]:
        """Return the partitions, those of compacted topics and the explained ones with all their extents."""
        deep = [
            size
            for size in sizes
            if self._rules[size.state.topic_id].compacted or size.state.topic_id == explained
        ]
        # Never less than an eighth, even if many candidates are retried.
        loaded = self._load_extents(deep, max(self._eighth, self._room - self._quarter - self._eighth))
        self._room -= sum(len(extents) for extents in loaded.values())
        if len(sizes) >= self._settings.max_plan_partitions or any(
            len(loaded.get(size.partition_id, ())) >= EXTENTS_OF_ONE or size.partition_id not in loaded
            for size in deep
        ):
            self._is_complete = False
        return tuple(
            self._view(
                size,
                _merged(loaded.get(size.partition_id), free.get(size.partition_id, ())),
                _without_leading_controls(size.state, loaded.get(size.partition_id, ())),
            )
            for size in sorted(sizes, key=lambda each: (each.state.topic_id.int, each.state.partition))
        )

    def _view(
        self, size: PartitionSize, extents: tuple[Extent, ...], state: PartitionState | None = None
    ) -> PartitionView:
        return PartitionView(
            rules=self._rules[size.state.topic_id],
            state=state or size.state,
            extents=extents,
            quarantine_candidates=self._candidates,
            exactness=size.exactness if self._settings.exact else Exactness.EXACT,
        )

    def _load_extents(self, sizes: Sequence[PartitionSize], limit: int) -> dict[PartitionId, list[Extent]]:
        """Return the live extents of each partition, at most `EXTENTS_OF_ONE`; about `limit` in total.

        Partitions that do not fit are left out.
        """
        loaded: dict[PartitionId, list[Extent]] = {}
        for starts in _batches(sizes, limit):
            loaded.update({partition: [] for partition, _ in starts})
            loaded.update(
                by_partition(
                    self._catalog.planning.extents_of_each(starts, EXTENTS_OF_ONE, with_controls=False)
                )
            )
        return loaded

    def _fragmented(self) -> tuple[PartitionView, ...]:
        """Return neighbouring partitions with many short extents.

        If there are more than fit, the plan starts at a partition that a hash of the time selects.
        """
        planning, settings = self._catalog.planning, self._settings
        max_extents = max(self._eighth, self._room - self._quarter)
        limit = max(1, max_extents // (settings.resting_extents // 2 + 1))
        sizes = planning.fragmented_partitions(
            section_bytes=settings.section_bytes,
            resting_extents=settings.resting_extents // 2,
            start=hashed(self._now_ms // SECOND_MS),
            limit=limit,
        )
        chosen: dict[PartitionId, PartitionSize] = {}
        has_all = len(sizes) < limit
        for size in sizes:
            if size.state.topic_id not in self._rules:
                continue
            max_extents -= min(size.compacted_extents, settings.max_seen_extents)
            if max_extents < 0 and chosen:
                has_all = False
                break
            chosen[size.partition_id] = size
        keys = sorted(chosen)
        found = by_partition(
            planning.newest_compacted_extents(keys, settings.max_seen_extents) if keys else ()
        )
        self._room -= sum(len(extents) for extents in found.values())
        self._is_complete = self._is_complete and has_all
        return tuple(self._view(chosen[key], tuple(found.get(key, ()))) for key in keys)

    def _mergeable(self) -> tuple[tuple[Mergeable, ...], dict[PartitionId, PartitionView]]:
        """Return files to merge, and their partitions without extents."""
        settings = self._settings
        found = self._catalog.planning.files_to_merge(
            below_bytes=settings.full_bytes,
            dead_bytes=settings.min_dead_bytes,
            dead_share=settings.dead_share,
            limit=settings.max_plan_files,
            max_extents=max(self._quarter, self._room),
            extents_each=settings.max_merged_extents,
            from_bytes=small_files_from(self._now_ms, settings),
        )
        self._is_complete = self._is_complete and found.is_complete
        files = tuple(
            Mergeable(
                file=replace(_file_view(each.file), whole_extents=len(each.extents)),
                extents=each.extents,
                live_bytes=each.live_bytes,
                dead_bytes=each.dead_bytes,
            )
            for each in found.files
            if all(extent.topic_id in self._rules and is_readable(extent) for extent in each.extents)
        )
        return self._with_controls(files)

    def _with_controls(
        self, files: tuple[Mergeable, ...]
    ) -> tuple[tuple[Mergeable, ...], dict[PartitionId, PartitionView]]:
        """Add the control batches after their extents to files; also return the files' partitions."""
        grouped = by_partition(extent for file in files for extent in file.extents)
        for extents in grouped.values():
            extents.sort(key=lambda extent: extent.base_offset)
        sizes = self._catalog.planning.sizes_of(grouped.keys()) if grouped else []
        views = self._with_transactions(
            [
                PartitionView(
                    rules=self._rules[size.state.topic_id],
                    state=size.state,
                    extents=tuple(grouped[size.partition_id]),
                )
                for size in sizes
            ]
        )
        extents_of = {
            (extent.topic_id.int, extent.partition, extent.base_offset): extent
            for view in views
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
        return files, {view.partition_id: replace(view, extents=()) for view in views}

    def _with_transactions(self, views: Sequence[PartitionView]) -> tuple[PartitionView, ...]:
        """Add the transactions of partitions to their views."""
        found = transaction_views(
            self._catalog, {view.partition_id: (view.state, view.extents) for view in views}
        )
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

    def _files(
        self, ingestion: Sequence[JobInput], partitions: Sequence[PartitionView]
    ) -> dict[UUID, FileView]:
        """Return the files that a job may take: compacted files, then ingestion files, older ones first."""
        compacted = {
            extent.file_id
            for view in partitions
            for extent in view.extents
            if extent.file_kind is FileKind.COMPACTED
        }
        files = {known.file_id: _file_view(known) for known in self._catalog.planning.files_of(compacted)}
        for file in ingestion:
            files[file.file_id] = FileView(
                file_id=file.file_id,
                object_name=file.object_name,
                size=file.size,
                kind=file.extents[0].file_kind,
                committed_ms=min(extent.committed_ms for extent in file.extents),
                extents=0,
                whole_extents=len(file.extents) if file.is_whole else 0,
            )
        return files


def small_files_from(now_ms: int, settings: PlannerSettings) -> int:
    """Return the size from which a plan examines small files, chosen by the minute.

    Small files that fit no group stay. If there are more of them than a plan may examine, the others would
    never be seen. A hash chooses the size, so that plans at regular times see all sizes.
    """
    chosen = 2 * hashed(now_ms // MINUTE_MS)
    return 0 if chosen >= 1 else int(settings.full_bytes**chosen)


def hashed(number: int) -> float:
    """Return a pseudo-random number in [0, 1), the same for the same input."""
    return ((number * 0x9E37_79B9_7F4A_7C15 & (1 << 64) - 1) >> 32) / 2**32  # Fibonacci hashing


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


def _file_view(file: LiveFile) -> FileView:
    return FileView(
        file_id=file.file_id,
        object_name=file.object_name,
        size=file.size,
        kind=file.kind,
        committed_ms=file.committed_ms,
        extents=file.live_extents,
        whole_extents=0,
    )
